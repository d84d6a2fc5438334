// The raw block format of lz4. The loops are one function each: a closure would make them several times slower.

import { viewOf } from "./bytes.js";
import { broken, type ShardError } from "./errors.js";
import { checkSize } from "./zstd.js";

const minMatch = 4;
/** The last bytes of a block are literals. */
const lastLiterals = 5;
/** No match starts in the last twelve bytes. */
const matchLimit = 12;
const maxDistance = 65535;
const hashBits = 14;
/** From this length on, a call is faster than a loop. */
const longCopy = 32;

/** Decodes one block to exactly `size` bytes (S-CMP-3, S-CMP-4, S-CMP-9). */
export function decodeLz4(stored: Uint8Array, size: number): Uint8Array {
  const out = new Uint8Array(size);
  const end = stored.length;
  let at = 0;
  let done = 0;
  let matchEnd = 0;
  while (at < end) {
    const token = stored[at++];
    let literals = token >> 4;
    if (literals === 15) {
      let byte = 255;
      while (byte === 255 && at < end) literals += byte = stored[at++];
      if (byte === 255) throw damaged(stored, size);
    }
    if (literals > end - at) throw damaged(stored, size);
    if (literals > size - done) throw longer(size);
    const literalEnd = at + literals;
    if (literals < longCopy) while (at < literalEnd) out[done++] = stored[at++];
    else {
      out.set(stored.subarray(at, literalEnd), done);
      at = literalEnd;
      done += literals;
    }
    if (at === end) {
      if (matchEnd > 0 && done - matchEnd < lastLiterals) {
        throw broken("bad_compression", "S-CMP-9", "the lz4 block does not end with five literals");
      }
      checkSize(done, size);
      return out;
    }
    if (end - at < 2) throw damaged(stored, size);
    const distance = stored[at] | (stored[at + 1] << 8);
    at += 2;
    let match = token & 15;
    if (match === 15) {
      let byte = 255;
      while (byte === 255 && at < end) match += byte = stored[at++];
      if (byte === 255) throw damaged(stored, size);
    }
    match += minMatch;
    if (distance === 0 || distance > done) throw damaged(stored, size);
    if (match > size - done) throw longer(size);
    matchEnd = done + match;
    if (match >= longCopy && distance >= match) {
      out.copyWithin(done, done - distance, matchEnd - distance);
      done = matchEnd;
    } else {
      for (let from = done - distance; done < matchEnd; ) out[done++] = out[from++]; // the two may overlap
    }
  }
  throw damaged(stored, size);
}

function damaged(stored: Uint8Array, size: number): ShardError {
  if (stored.length > 4 && viewOf(stored).getUint32(0, true) === size) {
    return broken("bad_compression", "S-CMP-9", "the lz4 block has its size in front");
  }
  return broken("bad_compression", "S-CMP-4", "the lz4 block is damaged or incomplete");
}

function longer(size: number): ShardError {
  const expected = `${size} bytes`;
  return broken("size_mismatch", "S-CMP-3", "the lz4 block holds more than the index says", { expected });
}

/** Compresses to one block; undefined if it would not get smaller. */
export function encodeLz4(data: Uint8Array): Uint8Array | undefined {
  const out = new Uint8Array(data.length);
  const view = viewOf(data);
  const places = new Int32Array(2 ** hashBits).fill(-1);
  const lastMatch = data.length - matchLimit;
  const matchEnd = data.length - lastLiterals;
  let anchor = 0;
  let to = 0;
  let misses = 0;
  for (let at = 0; at <= lastMatch; ) {
    const word = view.getInt32(at, true);
    const slot = Math.imul(word, 0x9e3779b1) >>> (32 - hashBits);
    const candidate = places[slot];
    places[slot] = at;
    if (candidate < 0 || at - candidate > maxDistance || view.getInt32(candidate, true) !== word) {
      at += 1 + (misses++ >> 6); // faster through data that does not repeat
      continue;
    }
    misses = 0;
    let end = at + minMatch;
    for (let from = candidate + minMatch; end < matchEnd && data[end] === data[from]; from++) end++;
    to = writeSequence(out, to, data, anchor, at, at - candidate, end - at);
    if (to < 0) return undefined;
    anchor = at = end;
  }
  to = writeSequence(out, to, data, anchor, data.length, 0, 0);
  return to < 0 ? undefined : out.slice(0, to);
}

/** Writes literals and the match behind them, if there is one. Returns the place behind them; -1 if there is no room. */
function writeSequence(
  out: Uint8Array,
  start: number,
  data: Uint8Array,
  literalStart: number,
  literalEnd: number,
  distance: number,
  match: number,
): number {
  const literals = literalEnd - literalStart;
  const rest = match > 0 ? match - minMatch : 0;
  let to = start;
  if (to + literals + literals / 255 + rest / 255 + 8 > out.length) return -1;
  out[to++] = (Math.min(literals, 15) << 4) | Math.min(rest, 15);
  if (literals >= 15) to = writeLength(out, to, literals - 15);
  if (literals < longCopy) for (let from = literalStart; from < literalEnd; ) out[to++] = data[from++];
  else {
    out.set(data.subarray(literalStart, literalEnd), to);
    to += literals;
  }
  if (match === 0) return to;
  out[to++] = distance & 255;
  out[to++] = distance >> 8;
  return rest >= 15 ? writeLength(out, to, rest - 15) : to;
}

/** Writes what a length has beyond the 15 of its token. */
function writeLength(out: Uint8Array, start: number, length: number): number {
  let to = start;
  let rest = length;
  for (; rest >= 255; rest -= 255) out[to++] = 255;
  out[to++] = rest;
  return to;
}
