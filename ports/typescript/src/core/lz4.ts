// The raw block format of lz4.

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

/** Decodes one block to exactly `size` bytes (S-CMP-3, S-CMP-4, S-CMP-9). */
export function decodeLz4(stored: Uint8Array, size: number): Uint8Array {
  const out = new Uint8Array(size);
  const end = stored.length;
  let at = 0;
  let done = 0;
  let matchEnd = 0;

  const damaged = (): ShardError => {
    if (end > 4 && viewOf(stored).getUint32(0, true) === size) {
      return broken("bad_compression", "S-CMP-9", "the lz4 block has its size in front");
    }
    return broken("bad_compression", "S-CMP-4", "the lz4 block is damaged or incomplete");
  };
  const longer = () =>
    broken("size_mismatch", "S-CMP-3", "the lz4 block holds more than the index says", { expected: `${size} bytes` });
  const length = (nibble: number): number => {
    let total = nibble;
    if (nibble < 15) return total;
    for (;;) {
      if (at >= end) throw damaged();
      const byte = stored[at++];
      total += byte;
      if (byte !== 255) return total;
    }
  };

  while (at < end) {
    const token = stored[at++];
    const literals = length(token >> 4);
    if (literals > end - at) throw damaged();
    if (literals > size - done) throw longer();
    if (literals < 32) for (let i = 0; i < literals; i++) out[done + i] = stored[at + i];
    else out.set(stored.subarray(at, at + literals), done);
    at += literals;
    done += literals;
    if (at === end) {
      if ((token & 15) !== 0 || (matchEnd > 0 && done - matchEnd < lastLiterals)) {
        throw broken("bad_compression", "S-CMP-9", "the lz4 block does not end with five literals");
      }
      checkSize(done, size);
      return out;
    }
    if (end - at < 2) throw damaged();
    const distance = stored[at] | (stored[at + 1] << 8);
    at += 2;
    const match = length(token & 15) + minMatch;
    if (distance === 0 || distance > done) throw damaged();
    if (match > size - done) throw longer();
    if (distance >= match && match >= 32) out.copyWithin(done, done - distance, done - distance + match);
    else for (let i = 0; i < match; i++) out[done + i] = out[done - distance + i]; // source and target may overlap
    done += match;
    matchEnd = done;
  }
  throw damaged();
}

/** Compresses to one block; undefined if it would not get smaller. */
export function encodeLz4(data: Uint8Array): Uint8Array | undefined {
  const out = new Uint8Array(data.length);
  const view = viewOf(data);
  const places = new Int32Array(2 ** hashBits).fill(-1);
  const lastMatch = data.length - matchLimit;
  let anchor = 0;
  let to = 0;

  /** Writes literals up to a place and a match behind them; no match at the end. False if there is no room. */
  const sequence = (literalEnd: number, distance: number, match: number): boolean => {
    const literals = literalEnd - anchor;
    if (to + literals + literals / 255 + match / 255 + 8 > out.length) return false;
    const rest = match > 0 ? match - minMatch : 0;
    out[to++] = (Math.min(literals, 15) << 4) | Math.min(rest, 15);
    to = more(out, to, literals);
    out.set(data.subarray(anchor, literalEnd), to);
    to += literals;
    if (match === 0) return true;
    out[to++] = distance & 255;
    out[to++] = distance >> 8;
    to = more(out, to, rest);
    return true;
  };

  for (let at = 0, misses = 0; at <= lastMatch; ) {
    const word = view.getUint32(at, true);
    const slot = Math.imul(word, 2654435761) >>> (32 - hashBits);
    const candidate = places[slot];
    places[slot] = at;
    if (candidate < 0 || at - candidate > maxDistance || view.getUint32(candidate, true) !== word) {
      at += 1 + (misses++ >> 6); // faster through data that does not repeat
      continue;
    }
    misses = 0;
    const limit = data.length - lastLiterals;
    let end = at + minMatch;
    while (end < limit && data[end] === data[end - at + candidate]) end++;
    if (!sequence(at, at - candidate, end - at)) return undefined;
    anchor = at = end;
  }
  return sequence(data.length, 0, 0) ? out.slice(0, to) : undefined;
}

/** Writes what a length has beyond the 15 of its token. */
function more(out: Uint8Array, start: number, length: number): number {
  let to = start;
  if (length < 15) return to;
  let rest = length - 15;
  for (; rest >= 255; rest -= 255) out[to++] = 255;
  out[to++] = rest;
  return to;
}
