// zstd frames (RFC 8878): where they are, how long they are, and what they claim. Decoding is left to a library, which
// gets one complete frame at a time and is told how much may come out.

import { plainBytes, viewOf } from "./bytes.js";
import { broken, ShardError } from "./errors.js";
import { xxh64Low } from "./xxh64.js";

/** A zstd library. Its functions may be asynchronous. */
export interface Zstd {
  /**
   * Decodes one frame to at most `size` bytes, and verifies the frame's own checksum if it has one. Fails, or returns
   * something of another length, if that is not possible.
   */
  decompress(frame: Uint8Array, size: number): Uint8Array | Promise<Uint8Array>;
  /** Makes one frame that declares the size of its content. Only writers need it. */
  compress?(data: Uint8Array, level: number): Uint8Array | Promise<Uint8Array>;
}

/** A zstd library, or a function that loads one when it is first needed. */
export type ZstdProvider = Zstd | (() => Promise<Zstd>);

/** Gives the library of a provider. */
export async function loadZstd(provider: ZstdProvider | undefined): Promise<Zstd> {
  if (provider === undefined) {
    const problem = "zstd needs a library: give the option zstd, for example loadZstd of @shard-format/core/zstd";
    throw new ShardError("missing_extra", problem);
  }
  return typeof provider === "function" ? await provider() : provider;
}

export const frameMagic = 0xfd2fb528;
const skippableMagic = 0x184d2a50;
const maxBlockSize = 128 * 1024;
const headSize = 4 + 1 + 1 + 4 + 8;
/** The low half of the XXH64 of nothing. */
const emptyChecksum = 0x51d8e999;
/** How much is decoded only to find out whether a frame is damaged or too long. */
const probeSize = 8 * 1024 * 1024;

/** One data frame in the stored bytes of an entry. */
export interface Frame {
  start: number;
  end: number;
  /** The size that the frame declares; a number above 2⁵³ is not exact. */
  contentSize: number | undefined;
  /** What the blocks can hold at most. */
  bound: number;
  hasChecksum: boolean;
}

/** Finds the data frames (S-CMP-4 to S-CMP-7), of which there may be very many. Decodes nothing. */
export function* eachFrame(stored: Uint8Array, maxWindow: number): Generator<Frame> {
  const view = viewOf(stored);
  let count = 0;
  for (let at = 0; at < stored.length; ) {
    if (stored.length - at < 4) throw incomplete();
    const number = view.getUint32(at, true);
    if (number === frameMagic) {
      const frame = walkFrame(stored, at, maxWindow);
      yield frame;
      count++;
      at = frame.end;
    } else if ((number & 0xfffffff0) >>> 0 === skippableMagic) {
      if (stored.length - at < 8) throw incomplete();
      at += 8 + view.getUint32(at + 4, true);
      if (at > stored.length) throw incomplete();
    } else {
      const found = `0x${number.toString(16)} at stored byte ${at}`;
      throw broken("bad_compression", "S-CMP-5", "no zstd frame where one must start", { found });
    }
  }
  if (count === 0) throw broken("bad_compression", "S-CMP-4", "the entry has no zstd frame");
}

/** All data frames, for bytes that should have few. */
export function walkFrames(stored: Uint8Array, maxWindow: number): Frame[] {
  return [...eachFrame(stored, maxWindow)];
}

function incomplete(): ShardError {
  return broken("bad_compression", "S-CMP-4", "a zstd frame is incomplete");
}

/** Reads the frame that starts at a place; the four bytes of its magic were read. */
export function walkFrame(stored: Uint8Array, start: number, maxWindow: number): Frame {
  const { contentSize, window, hasChecksum, size } = frameHead(stored, start);
  if (window > maxWindow) {
    const details = { expected: `at most ${maxWindow} bytes`, found: window };
    throw broken("limit_exceeded", "S-CMP-7", "a zstd frame needs a window that is too large", details);
  }
  let at = start + size;
  let bound = 0;
  for (let isLast = false; !isLast; ) {
    const block = blockAt(stored, at, window);
    at = block.end;
    bound += block.bound;
    isLast = block.isLast;
  }
  if (hasChecksum) at += 4;
  if (at > stored.length) throw incomplete();
  return { start, end: at, contentSize, bound, hasChecksum };
}

/** Reads the header of a block: where it ends, and how much it can hold. */
function blockAt(stored: Uint8Array, at: number, window: number): { end: number; bound: number; isLast: boolean } {
  if (stored.length - at < 3) throw incomplete();
  const head = stored[at] | (stored[at + 1] << 8) | (stored[at + 2] << 16);
  const type = (head >> 1) & 3;
  const size = head >>> 3;
  if (type === 3) throw broken("bad_compression", "S-CMP-4", "a zstd block has the reserved type");
  const end = at + 3 + (type === 1 ? 1 : size);
  if (end > stored.length) throw incomplete();
  return { end, bound: type === 2 ? Math.min(window, maxBlockSize) : size, isLast: (head & 1) !== 0 };
}

function frameHead(stored: Uint8Array, start: number) {
  // A copy that is long enough to read every field; what is missing is found at the end.
  const head = new Uint8Array(headSize);
  head.set(stored.subarray(start, start + headSize));
  const view = viewOf(head);
  const descriptor = head[4];
  if (descriptor & 0x08) throw broken("bad_compression", "S-CMP-4", "a reserved bit of a zstd frame header is set");
  const single = (descriptor & 0x20) !== 0;
  let at = 5;
  let window = 0;
  if (!single) {
    const base = 2 ** (10 + (head[at] >> 3));
    window = base + (base / 8) * (head[at] & 7);
    at++;
  }
  const idEnd = at + [0, 1, 2, 4][descriptor & 3];
  for (; at < idEnd; at++) {
    if (head[at] !== 0) throw broken("bad_compression", "S-CMP-6", "a zstd frame needs a dictionary");
  }
  let contentSize: number | undefined;
  const sizeFlag = descriptor >> 6;
  if (sizeFlag === 3) contentSize = Number(view.getBigUint64(at, true));
  else if (sizeFlag === 2) contentSize = view.getUint32(at, true);
  else if (sizeFlag === 1) contentSize = view.getUint16(at, true) + 256;
  else if (single) contentSize = head[at];
  at += sizeFlag === 0 ? (single ? 1 : 0) : 2 ** sizeFlag;
  if (start + at > stored.length) throw incomplete();
  if (single) window = contentSize as number;
  return { contentSize, window, hasChecksum: (descriptor & 0x04) !== 0, size: at };
}

/** Decodes one frame; at most `room` bytes may come out (S-CMP-3, S-CMP-4). */
export async function decodeFrame(zstd: Zstd, stored: Uint8Array, frame: Frame, room: number): Promise<Uint8Array> {
  const { contentSize, bound } = frame;
  if (contentSize !== undefined && contentSize > room) throw tooLong(`${contentSize} bytes declared`, room);
  if (contentSize !== undefined && contentSize > bound) {
    const details = { expected: `${contentSize} bytes`, found: `at most ${bound}` };
    throw broken("bad_compression", "S-CMP-4", "a zstd frame has fewer bytes than it declares", details);
  }
  const bytes = stored.subarray(frame.start, frame.end);
  if (bound === 0) return emptyFrame(bytes, frame);
  const size = contentSize ?? Math.min(bound, room);
  const found = size > 0 ? await attempt(zstd, bytes, size) : undefined;
  if (found !== undefined && (contentSize === undefined || found.length === contentSize)) return found;
  throw await reason(zstd, bytes, frame, size, room);
}

/** A frame whose blocks hold nothing needs no decoder; some libraries cannot tell it from a damaged one. */
function emptyFrame(bytes: Uint8Array, frame: Frame): Uint8Array {
  if (frame.hasChecksum && viewOf(bytes).getUint32(bytes.length - 4, true) !== emptyChecksum) throw wrongChecksum();
  return new Uint8Array(0);
}

/** The content of a frame; undefined if the library cannot decode it to at most `size` bytes. */
async function attempt(zstd: Zstd, bytes: Uint8Array, size: number): Promise<Uint8Array | undefined> {
  try {
    const found = plainBytes(await zstd.decompress(bytes, size));
    return found.length <= size ? found : undefined;
  } catch {
    return undefined; // libraries have no common error codes
  }
}

/** Finds out why a frame could not be decoded, by trying again. */
async function reason(zstd: Zstd, bytes: Uint8Array, frame: Frame, size: number, room: number): Promise<ShardError> {
  if (frame.hasChecksum && size > 0) {
    const plain = new Uint8Array(bytes.subarray(0, -4));
    plain[4] &= ~0x04;
    const found = await attempt(zstd, plain, size);
    if (found !== undefined && (frame.contentSize ?? found.length) === found.length) return wrongChecksum();
  }
  if (frame.contentSize === undefined) {
    const { bytes: start, bound } = firstBlocks(bytes, Math.max(room, probeSize));
    const found = await attempt(zstd, start, bound);
    if (found !== undefined && found.length > room) return tooLong(`more than ${room} bytes`, room);
  }
  return broken("bad_compression", "S-CMP-4", "zstd cannot decode a frame");
}

/** The first blocks of a frame that declares no size, as a frame: enough to hold more than `size` bytes, if there are. */
function firstBlocks(frame: Uint8Array, size: number): { bytes: Uint8Array; bound: number } {
  const head = frameHead(frame, 0);
  let at = head.size;
  let bound = 0;
  let last = at;
  for (let isLast = false; !isLast && bound <= size; ) {
    const block = blockAt(frame, at, head.window);
    last = at;
    at = block.end;
    bound += block.bound;
    isLast = block.isLast;
  }
  const bytes = new Uint8Array(frame.subarray(0, at));
  bytes[4] &= ~0x04;
  bytes[last] |= 1;
  return { bytes, bound };
}

function wrongChecksum(): ShardError {
  return broken("checksum_mismatch", "S-CMP-4", "the checksum of a zstd frame does not fit");
}

function tooLong(found: string, room: number): ShardError {
  const details = { expected: `at most ${room} bytes`, found };
  return broken("size_mismatch", "S-CMP-3", "a zstd frame holds more than the index says", details);
}

/** Decodes all frames of an entry to exactly `size` bytes. */
export async function decodeFrames(
  zstd: Zstd,
  stored: Uint8Array,
  size: number,
  maxWindow: number,
): Promise<Uint8Array> {
  let only: Frame | undefined;
  let count = 0;
  let bound = 0;
  for (const frame of eachFrame(stored, maxWindow)) {
    only = frame;
    count++;
    bound += Math.min(frame.bound, frame.contentSize ?? frame.bound);
  }
  if (only && count === 1) {
    const content = await decodeFrame(zstd, stored, only, size);
    checkSize(content.length, size);
    return content;
  }
  if (bound < size) checkSize(bound, size); // before memory is made for what is claimed
  const out = new Uint8Array(size);
  let done = 0;
  for (const frame of eachFrame(stored, maxWindow)) {
    const content = await decodeFrame(zstd, stored, frame, size - done);
    out.set(content, done);
    done += content.length;
  }
  checkSize(done, size);
  return out;
}

/** S-CMP-3 */
export function checkSize(found: number, expected: number): void {
  if (found === expected) return;
  const details = { expected: `${expected} bytes`, found };
  throw broken("size_mismatch", "S-CMP-3", "the entry decodes to another size", details);
}

/** Compresses to one frame that declares its size; with a checksum if it is to be part of a seekable entry (S-SEK-5). */
export async function encodeFrame(zstd: Zstd, data: Uint8Array, level: number, checksum: boolean): Promise<Uint8Array> {
  if (zstd.compress === undefined) {
    throw new ShardError("missing_extra", "this zstd library cannot compress: give a writer one that can");
  }
  const made = await zstd.compress(data, level);
  const frame = walkFrame(made, 0, Number.POSITIVE_INFINITY);
  if (frame.end !== made.length || frame.contentSize !== data.length) {
    throw new ShardError("invalid_argument", "the zstd library does not make one frame that declares its size");
  }
  return checksum && !frame.hasChecksum ? addChecksum(made, xxh64Low(data)) : made;
}

/** A frame with a checksum, of one that has none. */
export function addChecksum(frame: Uint8Array, checksum: number): Uint8Array {
  const out = new Uint8Array(frame.length + 4);
  out.set(frame);
  out[4] |= 0x04;
  viewOf(out).setUint32(frame.length, checksum, true);
  return out;
}
