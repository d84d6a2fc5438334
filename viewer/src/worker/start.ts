// Starts the worker: the page carries its script in a compressed form.

import packed from "packed-worker:./index";

/** The address of the script, made once. */
let script: Promise<string> | undefined;

async function unpack(): Promise<string> {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return URL.createObjectURL(new Blob([await new Response(unpacked).blob()], { type: "text/javascript" }));
}

export async function startWorker(): Promise<Worker> {
  script ??= unpack();
  return new Worker(await script);
}
