// Starts workers: the page carries their scripts in a compressed form.

import packed from "packed-worker:./index";

/** The addresses of the scripts, made once each. */
const scripts = new Map<string, Promise<string>>();

async function unpack(packed: string): Promise<string> {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return URL.createObjectURL(new Blob([await new Response(unpacked).blob()], { type: "text/javascript" }));
}

/** A worker that runs a script, which was imported as `packed-worker:…`. */
export async function startPacked(packed: string): Promise<Worker> {
  const script = scripts.get(packed) ?? unpack(packed);
  scripts.set(packed, script);
  return new Worker(await script);
}

/** The worker that reads. */
export function startWorker(): Promise<Worker> {
  return startPacked(packed);
}
