/** Blocks: bytes of an entry that are read when they are asked for. */

import { ShardError } from "../core/errors.js";
import type { ReadOptions } from "../core/source.js";

/** The bytes of one array. */
export interface Block {
  /** The name of the entry. */
  readonly name: string;
  /** The file that it is in, if there is one; for errors. */
  readonly path?: string | undefined;
  /** Its size in bytes, uncompressed. */
  readonly size: number;
  /** Reads all of it, or the bytes from `start` up to `end`. */
  read(start?: number, end?: number, options?: ReadOptions): Promise<Uint8Array>;
}

/** Gives a block by its name; null if there is none. */
export type FindBlock = (name: string) => Block | null;

/** Bytes in memory as a block. */
export function memoryBlock(name: string, bytes: Uint8Array): Block {
  return { name, size: bytes.length, read: async (start = 0, end = bytes.length) => bytes.subarray(start, end) };
}

/** A block whose bytes are computed when they are first read. */
export function lazyBlock(name: string, size: number, load: () => Promise<Uint8Array>): Block {
  let loaded: Promise<Uint8Array> | null = null;
  return {
    name,
    size,
    read: async (start = 0, end = size) => {
      loaded ??= load().catch((error: unknown) => {
        loaded = null; // the next call may have more luck
        throw error;
      });
      return (await loaded).subarray(start, end);
    },
  };
}

/** Blocks one after another, as one; of each, the first `sizes` bytes count. */
export function chainedBlock(name: string, parts: readonly Block[], sizes: readonly number[]): Block {
  const starts: number[] = [];
  let size = 0;
  for (const one of sizes) {
    starts.push(size);
    size += one;
  }
  const read = async (start = 0, end = size, options?: ReadOptions): Promise<Uint8Array> => {
    const pieces: Uint8Array[] = [];
    for (const [number, part] of parts.entries()) {
      const from = Math.max(start, starts[number]);
      const to = Math.min(end, starts[number] + sizes[number]);
      if (from < to) pieces.push(await part.read(from - starts[number], to - starts[number], options));
    }
    return concatenated(pieces);
  };
  return { name, path: parts[0]?.path, size, read };
}

/** Pieces one after another; a single piece as it is. */
export function concatenated(pieces: readonly Uint8Array[]): Uint8Array {
  if (pieces.length === 1) return pieces[0];
  const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

/** Checks the bounds of a window of steps. */
export function checkWindow(start: number, end: number, length: number, entry: string): void {
  if (Number.isInteger(start) && Number.isInteger(end) && 0 <= start && start <= end && end <= length) return;
  throw new ShardError("invalid_argument", "the window is outside the channel", {
    entry,
    expected: `0 to ${length}, in order`,
    found: `${start} to ${end}`,
  });
}
