// In a notebook the page is in a frame without rights. Its parent (widget.js of the Python package) passes questions on
// to the kernel, with the same paths as those of `wshard view`.

import type { Given } from "./worker/protocol";

interface Answer {
  readonly wshard: number;
  readonly document?: unknown;
  readonly bytes?: ArrayBuffer;
  /** Why there is neither. */
  readonly error?: string;
}

interface Listed {
  readonly title: string;
  readonly files: readonly { readonly number: number; readonly name: string; readonly size: number }[];
}

const waiting = new Map<number, (answer: Answer) => void>();
const numbers = new Map<string, number>();
let asked = 0;

function ask(path: string, offset?: number, length?: number): Promise<Answer> {
  if (asked === 0) addEventListener("message", receive);
  const wshard = ++asked;
  return new Promise((resolve) => {
    waiting.set(wshard, resolve);
    // To any origin: that of a notebook is not known here, and a question holds no data.
    parent.postMessage({ wshard, path, offset, length }, "*");
  });
}

function receive({ source, data }: MessageEvent<Answer | null>): void {
  if (source !== parent || typeof data?.wshard !== "number") return;
  const resolve = waiting.get(data.wshard);
  waiting.delete(data.wshard);
  resolve?.(data);
}

/** The files that the kernel has, and what to call them together. */
export async function listNotebook(): Promise<{ given: Given; title: string }> {
  const { document, error } = await ask("/files.json");
  if (document === undefined) throw new Error(error);
  const { title, files } = document as Listed;
  for (const { name, number } of files) numbers.set(name, number);
  return { given: { kind: "widget", files }, title };
}

/** A range of one of these files, or the words of the kernel that cannot give it. */
export async function readFromNotebook(file: string, offset: number, length: number): Promise<Uint8Array> {
  const { bytes, error } = await ask(`/f/${numbers.get(file)}`, offset, length);
  if (bytes === undefined) throw new Error(error);
  return new Uint8Array(bytes);
}
