// The seek table at the end of a seekable entry.

import { viewOf } from "./bytes.js";
import { broken, ShardError } from "./errors.js";
import { addChecksum, decodeFrame, frameMagic, walkFrame, type Zstd } from "./zstd.js";

const seekMagic = 0x8f92eab1;
const seekFrameMagic = 0x184d2a5e;
const footerSize = 9;
const headSize = 8;
/** How much of the end of an entry is read first: most tables are shorter. */
export const seekTailSize = 16384;

/** One frame of a seekable entry. */
export interface SeekFrame {
  compressedSize: number;
  decompressedSize: number;
  /** The low half of the XXH64 of the content; undefined if the table has none. */
  checksum: number | undefined;
}

/** The size of the skippable frame with the table, from the last bytes of an entry; 0 if there is none. */
export function seekTableSize(tail: Uint8Array, diskSize: number): number {
  if (tail.length < footerSize) return 0;
  const view = viewOf(tail.subarray(-footerSize));
  if (view.getUint32(5, true) !== seekMagic) return 0;
  const size = headSize + rowSize(view.getUint8(4)) * view.getUint32(0, true) + footerSize;
  return size > diskSize ? 0 : size;
}

function rowSize(descriptor: number): number {
  return descriptor & 0x80 ? 12 : 8;
}

/** Says where each frame of an entry is. Rows are unpacked when they are asked for. */
export class SeekTable {
  declare readonly count: number;
  /** Where each frame starts in the stored bytes, and where the last one ends. */
  declare readonly stored: Float64Array;
  /** Where each frame starts in the content, and where the last one ends. */
  declare readonly content: Float64Array;
  readonly #view: DataView;
  readonly #rowSize: number;

  private constructor(table: Uint8Array, leading: number, descriptor: number) {
    this.#view = viewOf(table);
    this.#rowSize = rowSize(descriptor);
    this.count = (table.length - headSize - footerSize) / this.#rowSize;
    this.stored = new Float64Array(this.count + 1);
    this.content = new Float64Array(this.count + 1);
    this.stored[0] = leading;
    for (let i = 0; i < this.count; i++) {
      const { compressedSize, decompressedSize } = this.frame(i);
      this.stored[i + 1] = this.stored[i] + compressedSize;
      this.content[i + 1] = this.content[i] + decompressedSize;
    }
  }

  /**
   * Reads the table that the last bytes of an entry are (S-SEK-1, S-SEK-2, S-FLT-6); undefined if they are something
   * else. `leading` is the size of the frame that describes filters.
   */
  static parse(table: Uint8Array, diskSize: number, origSize: number, leading: number): SeekTable | undefined {
    const view = viewOf(table);
    const isTable = view.getUint32(0, true) === seekFrameMagic && view.getUint32(4, true) === table.length - headSize;
    if (!isTable) return undefined;
    const descriptor = view.getUint8(table.length - footerSize + 4);
    if (descriptor & 0x7c) {
      throw broken("bad_seek_table", "S-SEK-1", "reserved bits of the seek table are set", { found: descriptor });
    }
    const made = new SeekTable(table, leading, descriptor);
    const stored = made.stored[made.count] + table.length;
    const content = made.content[made.count];
    if (stored !== diskSize || content !== origSize) {
      const expected = `${diskSize} stored and ${origSize} decoded bytes`;
      const rule = leading > 0 ? "S-FLT-6" : "S-SEK-2";
      const problem = "the seek table does not add up to the sizes of the entry";
      throw broken("bad_seek_table", rule, problem, { expected, found: `${stored} and ${content}` });
    }
    return made;
  }

  frame(number: number): SeekFrame {
    const at = headSize + this.#rowSize * number;
    return {
      compressedSize: this.#view.getUint32(at, true),
      decompressedSize: this.#view.getUint32(at + 4, true),
      checksum: this.#rowSize === 12 ? this.#view.getUint32(at + 8, true) : undefined,
    };
  }

  /** The first frame that ends after a place in the content. */
  frameAt(place: number): number {
    let low = 0;
    let high = this.count - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.content[middle + 1] > place) high = middle;
      else low = middle + 1;
    }
    return low;
  }
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
  const own = frame.hasChecksum ? viewOf(stored).getUint32(stored.length - 4, true) : undefined;
  let content: Uint8Array;
  try {
    if (own === undefined && checksum !== undefined) {
      // The library verifies the checksum of the table, as if the frame had it.
      const bytes = addChecksum(stored, checksum);
      content = await decodeFrame(zstd, bytes, { ...frame, end: bytes.length, hasChecksum: true }, decompressedSize);
    } else {
      content = await decodeFrame(zstd, stored, frame, decompressedSize);
    }
  } catch (error) {
    if (!(error instanceof ShardError) || error.code !== "checksum_mismatch") throw error;
    throw broken("checksum_mismatch", "S-SEK-4", "a frame does not fit its checksum");
  }
  if (content.length !== decompressedSize) {
    throw wrong("a frame decodes to another size than the seek table says", decompressedSize, content.length);
  }
  if (own !== undefined && checksum !== undefined && own !== checksum) {
    throw broken("checksum_mismatch", "S-SEK-4", "the checksums of a frame and of the seek table differ");
  }
  return content;
}

/** The skippable frame with the table. */
export function packSeekTable(frames: readonly SeekFrame[]): Uint8Array {
  const out = new Uint8Array(headSize + 12 * frames.length + footerSize);
  const view = viewOf(out);
  view.setUint32(0, seekFrameMagic, true);
  view.setUint32(4, out.length - headSize, true);
  let at = headSize;
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
