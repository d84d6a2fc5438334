// The worker: reads, decodes and reduces, so that the page stays free.

import { ShardError } from "@shard-format/core";
import type { OpenEpisode } from "./episode";
import { Library } from "./library";
import type { FromWorker, Given, Problem, Question, ToWorker } from "./protocol";

const scope = globalThis as unknown as {
  postMessage(message: FromWorker, transfer: Transferable[]): void;
  addEventListener(type: "message", listener: (event: MessageEvent<ToWorker>) => void): void;
};
const running = new Map<number, AbortController>();
const wants = new Map<number, (answer: Extract<ToWorker, { given: number }>) => void>();
let wanted = 0;

function send(message: FromWorker, transfer: Transferable[] = []): void {
  scope.postMessage(message, transfer);
}

/** Methods of an episode that the page may call; the last argument is the signal. */
const reads = [
  "columns",
  "extent",
  "window",
  "entryAt",
  "positions",
  "times",
  "intervals",
  "posters",
  "scales",
  "provenance",
  "identity",
  "findings",
  "traffic",
] as const;

/** Methods of the files of an episode, or of one that holds none. */
const fileReads = [
  "entries",
  "bytes",
  "frames",
  "checkEntry",
  "computeIdentity",
  "signature",
  "checkSignature",
] as const;

async function answer(library: Library, { method, args }: Question, signal: AbortSignal): Promise<unknown> {
  const [first, ...rest] = args;
  if (method === "list") return library.list(first as Given);
  if (method === "open") return library.open(first as number);
  if (method === "thumbnail") return library.thumbnail(first as number);
  if (method === "close") return library.close(first as number);
  if (method === "container") return library.openContainer(first as number);
  if (method === "ping") return null;
  const fileRead = fileReads.find((one) => one === method);
  if (fileRead !== undefined) {
    const files = library.files(first as number);
    return (files[fileRead] as (...args: unknown[]) => Promise<unknown>).call(files, ...rest, { signal });
  }
  const read = reads.find((one) => one === method);
  if (read === undefined)
    throw new ShardError("invalid_argument", "the worker knows no such method", { found: method });
  const episode = library.episode(first as number);
  const call = episode[read] as (...args: unknown[]) => Promise<unknown>;
  return call.call(episode satisfies OpenEpisode, ...rest, { signal });
}

function problemOf(error: unknown): Problem {
  if (error instanceof ShardError) return { name: error.name, message: error.message, code: error.code };
  const { name, message } = error instanceof Error ? error : new Error(String(error));
  return { name, message, code: "" };
}

/** The memory of the arrays in an answer, which moves to the page. */
function buffersOf(value: unknown, found = new Set<ArrayBuffer>()): Set<ArrayBuffer> {
  if (ArrayBuffer.isView(value)) {
    if (value.buffer instanceof ArrayBuffer) found.add(value.buffer);
  } else if (Array.isArray(value)) {
    for (const one of value) if (typeof one === "object") buffersOf(one, found);
  } else if (typeof value === "object" && value !== null) {
    for (const one of Object.values(value)) if (typeof one === "object") buffersOf(one, found);
  }
  return found;
}

/** Answers the questions of the page. */
export function answerReads(): void {
  const library = new Library({
    rows: (rows, isComplete) => send({ rows, isComplete }),
    leftOut: (leftOut) => send({ leftOut }),
    arrived: (handle, key) => send({ arrived: key, handle }),
    grown: ({ handle, facts }) => send({ grown: handle, facts }),
    ask(file, offset, length) {
      return new Promise((resolve, reject) => {
        const want = wanted++;
        wants.set(want, (answer) => {
          wants.delete(want);
          if ("refused" in answer) reject(new ShardError("io_error", answer.refused, { path: file }));
          else resolve(answer.bytes);
        });
        send({ want, file, offset, length });
      });
    },
  });
  scope.addEventListener("message", async ({ data }) => {
    if ("cancel" in data) {
      running.get(data.cancel)?.abort();
      return;
    }
    if ("given" in data) {
      wants.get(data.given)?.(data);
      return;
    }
    const { id } = data;
    const ending = new AbortController();
    running.set(id, ending);
    try {
      const value = await answer(library, data, ending.signal);
      // Arrays were made for this answer: the reads copy what they keep.
      send({ id, value }, [...buffersOf(value)]);
    } catch (error) {
      send({ id, problem: problemOf(error) });
    } finally {
      running.delete(id);
    }
  });
}
