// Helpers for bytes and text that every other module uses.

import { computeSha256 } from "./sha256.js";

const encoder = /* @__PURE__ */ new TextEncoder();
// Without ignoreBOM a decoder drops a byte order mark, which would change a name.
const decoder = /* @__PURE__ */ new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** The UTF-8 bytes of a text; undefined if it has lone surrogates, which a TextEncoder would replace. */
export function encodeUtf8(text: string): Uint8Array | undefined {
  return isWellFormed(text) ? encoder.encode(text) : undefined;
}

/** The text of UTF-8 bytes; undefined if they are not valid. */
export function decodeUtf8(bytes: Uint8Array): string | undefined {
  try {
    return decoder.decode(bytes);
  } catch {
    return undefined;
  }
}

/** Whether a text has no lone surrogates. */
export function isWellFormed(text: string): boolean {
  return !/\p{Surrogate}/u.test(text);
}

/** Compares two texts by their UTF-8 bytes, which is the order of their code points. */
export function compareUtf8(a: string, b: string): number {
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i++) {
    const one = a.charCodeAt(i);
    const other = b.charCodeAt(i);
    if (one !== other) return rank(one) - rank(other);
  }
  return a.length - b.length;
}

/** UTF-16 units above the surrogates come before them: a surrogate stands for a code point above U+FFFF. */
function rank(unit: number): number {
  if (unit < 0xd800) return unit;
  return unit < 0xe000 ? unit + 0x2000 : unit - 0x800;
}

export function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

export function concat(parts: readonly Uint8Array[]): Uint8Array {
  let size = 0;
  for (const part of parts) size += part.length;
  const out = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

/** Bytes to which others are appended. */
export class ByteBuffer {
  #bytes = new Uint8Array(1024);
  #length = 0;

  get length(): number {
    return this.#length;
  }

  /** What was appended: a view, until more is appended. */
  get bytes(): Uint8Array {
    return this.#bytes.subarray(0, this.#length);
  }

  append(part: Uint8Array): void {
    const needed = this.#length + part.length;
    if (needed > this.#bytes.length) {
      const grown = new Uint8Array(Math.max(needed, 2 * this.#bytes.length));
      grown.set(this.bytes);
      this.#bytes = grown;
    }
    this.#bytes.set(part, this.#length);
    this.#length = needed;
  }
}

export function equalBytes(a: Uint8Array, b: Uint8Array): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

export function toHex(bytes: Uint8Array): string {
  let text = "";
  for (const byte of bytes) text += byte.toString(16).padStart(2, "0");
  return text;
}

/** The bytes of lower-case hex digits; undefined if the text is something else. */
export function fromHex(text: string): Uint8Array | undefined {
  if (text.length % 2 !== 0 || !/^[0-9a-f]*$/.test(text)) return undefined;
  const out = new Uint8Array(text.length / 2);
  for (let i = 0; i < out.length; i++) out[i] = Number.parseInt(text.slice(2 * i, 2 * i + 2), 16);
  return out;
}

/** SHA-256 as 64 lower-case hex digits. */
export async function sha256(bytes: Uint8Array): Promise<string> {
  const subtle = globalThis.crypto?.subtle;
  if (!subtle) return computeSha256(bytes);
  return toHex(new Uint8Array(await subtle.digest("SHA-256", bytes as BufferSource)));
}

/** The same bytes without a copy. A Buffer of Node has other methods under the names of Uint8Array, such as slice. */
export function plainBytes({ buffer, byteOffset, byteLength }: Uint8Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}
