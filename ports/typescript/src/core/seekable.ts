// The seek table at the end of a seekable entry.

import { viewOf } from "./bytes.js";
import { broken, ShardError } from "./errors.js";
import { xxh64Low } from "./xxh64.js";
import { decodeFrame, frameMagic, walkFrame, type Zstd } from "./zstd.js";

const seekMagic = 0x8f92eab1;
const seekFrameMagic = 0x184d2a5e;
export const seekFooterSize = 9;
const seekHeadSize = 8;

/** One frame of a seekable entry. */
export interface SeekFrame {
  compressedSize: number;
  decompressedSize: number;
  /** The low half of the XXH64 of the content; undefined if the table has none. */
  checksum: number | undefined;
}

/** Says where each frame of an entry is. The lists of places have one element more than there are frames. */
export interface SeekTable {
  frames: SeekFrame[];
  /** Where each frame starts in the stored bytes. */
  stored: number[];
  /** Where each frame starts in the content. */
  content: number[];
}

/** The size of the skippable frame with the table, from the last bytes of an entry; 0 if there is none. */
export function seekTableSize(tail: Uint8Array, diskSize: number): number {
  if (tail.length < seekFooterSize) return 0;
  const view = viewOf(tail.subarray(-seekFooterSize));
  if (view.getUint32(5, true) !== seekMagic) return 0;
  const size = seekHeadSize + rowSize(view.getUint8(4)) * view.getUint32(0, true) + seekFooterSize;
  return size > diskSize ? 0 : size;
}

function rowSize(descriptor: number): number {
  return descriptor & 0x80 ? 12 : 8;
}

/**
 * Reads a table from the last bytes of an entry; undefined if the bytes are something else. `leading` is the size of the
 * frame that describes filters.
 */
export function parseSeekTable(tail: Uint8Array, disk: number, orig: number, leading: number): SeekTable | undefined {
  const view = viewOf(tail);
  if (view.getUint32(0, true) !== seekFrameMagic || view.getUint32(4, true) !== tail.length - seekHeadSize) {
    return undefined;
  }
  const footer = tail.length - seekFooterSize;
  const descriptor = view.getUint8(footer + 4);
  if (descriptor & 0x7c) {
    throw broken("bad_seek_table", "S-SEK-1", "reserved bits of the seek table are set", { found: descriptor });
  }
  const table: SeekTable = { frames: [], stored: [leading], content: [0] };
  let stored = leading;
  let content = 0;
  for (let at = seekHeadSize; at < footer; at += rowSize(descriptor)) {
    const compressedSize = view.getUint32(at, true);
    const decompressedSize = view.getUint32(at + 4, true);
    const checksum = descriptor & 0x80 ? view.getUint32(at + 8, true) : undefined;
    table.frames.push({ compressedSize, decompressedSize, checksum });
    stored += compressedSize;
    content += decompressedSize;
    table.stored.push(stored);
    table.content.push(content);
  }
  if (stored + tail.length !== disk || content !== orig) {
    const details = {
      expected: `${disk} stored and ${orig} decoded bytes`,
      found: `${stored + tail.length} and ${content}`,
    };
    const rule = leading > 0 ? "S-FLT-6" : "S-SEK-2";
    throw broken("bad_seek_table", rule, "the seek table does not add up to the sizes of the entry", details);
  }
  return table;
}

/** The first frame that ends after a place in the content. */
export function frameAt(table: SeekTable, place: number): number {
  let low = 0;
  let high = table.frames.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (table.content[middle + 1] > place) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Decodes one frame of a seekable entry and checks it (S-SEK-3, S-SEK-4). */
export async function decodeSeekFrame(
  zstd: Zstd,
  stored: Uint8Array,
  { decompressedSize, checksum }: SeekFrame,
  maxWindow: number,
): Promise<Uint8Array> {
  const wrong = (problem: string, expected: number, found: number) =>
    broken("bad_seek_table", "S-SEK-3", problem, { expected: `${expected} bytes`, found });
  if (stored.length < 4 || viewOf(stored).getUint32(0, true) !== frameMagic) {
    throw broken("bad_seek_table", "S-SEK-3", "no zstd frame where the seek table says");
  }
  const frame = walkFrame(stored, 0, maxWindow);
  if (frame.end !== stored.length) {
    throw wrong("a frame is not as long as the seek table says", stored.length, frame.end);
  }
  if (frame.contentSize !== undefined && frame.contentSize !== decompressedSize) {
    throw wrong("a frame declares another size than the seek table", decompressedSize, frame.contentSize);
  }
  let content: Uint8Array;
  try {
    content = await decodeFrame(zstd, stored, frame, decompressedSize);
  } catch (error) {
    if (!(error instanceof ShardError) || error.code !== "checksum_mismatch") throw error;
    throw broken("checksum_mismatch", "S-SEK-4", "a frame does not fit its own checksum");
  }
  if (content.length !== decompressedSize) {
    throw wrong("a frame decodes to another size than the seek table says", decompressedSize, content.length);
  }
  // The library verified the frame's own checksum, which is the same hash: it need not be computed again.
  const own = frame.hasChecksum ? viewOf(stored).getUint32(stored.length - 4, true) : undefined;
  if (checksum !== undefined && checksum !== (own ?? xxh64Low(content))) {
    throw broken("checksum_mismatch", "S-SEK-4", "a frame does not fit the checksum of the seek table");
  }
  return content;
}

/** The skippable frame with the table. */
export function packSeekTable(frames: readonly SeekFrame[]): Uint8Array {
  const out = new Uint8Array(seekHeadSize + 12 * frames.length + seekFooterSize);
  const view = viewOf(out);
  view.setUint32(0, seekFrameMagic, true);
  view.setUint32(4, out.length - seekHeadSize, true);
  let at = seekHeadSize;
  for (const { compressedSize, decompressedSize, checksum } of frames) {
    view.setUint32(at, compressedSize, true);
    view.setUint32(at + 4, decompressedSize, true);
    view.setUint32(at + 8, checksum ?? 0, true);
    at += 12;
  }
  view.setUint32(at, frames.length, true);
  view.setUint8(at + 4, 0x80);
  view.setUint32(at + 5, seekMagic, true);
  return out;
}
