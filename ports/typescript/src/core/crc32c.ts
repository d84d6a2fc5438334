let tables: Int32Array | undefined;

/** Eight tables, so that eight bytes are taken at once. */
function makeTables(): Int32Array {
  const made = new Int32Array(8 * 256);
  for (let i = 0; i < 256; i++) {
    let value = i;
    for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0x82f63b78 : value >>> 1;
    made[i] = value;
  }
  for (let i = 256; i < made.length; i++) {
    const before = made[i - 256];
    made[i] = (before >>> 8) ^ made[before & 255];
  }
  return made;
}

/** CRC-32C (Castagnoli) of bytes; `before` continues the checksum of the bytes before them. */
export function crc32c(bytes: Uint8Array, before = 0): number {
  if (bytes.length < leastFolded) return byTables(bytes, before);
  if (folding === undefined) folding = makeFolding();
  return folding ? byTables(folded(folding, bytes, before), 0xffffffff) : byTables(bytes, before);
}

function byTables(bytes: Uint8Array, before: number): number {
  tables ??= makeTables();
  // Words of four bytes are read at once, from the first aligned place on.
  const start = Math.min(bytes.length, -bytes.byteOffset & 3);
  const blocks = Math.floor((bytes.length - start) / 8);
  const end = start + 8 * blocks;
  let crc = byBytes(tables, ~before, bytes, 0, start);
  if (blocks > 0) crc = byWords(tables, crc, new Int32Array(bytes.buffer, bytes.byteOffset + start, 2 * blocks));
  return ~byBytes(tables, crc, bytes, end, bytes.length) >>> 0;
}

function byBytes(t: Int32Array, before: number, bytes: Uint8Array, start: number, end: number): number {
  let crc = before;
  for (let at = start; at < end; at++) crc = (crc >>> 8) ^ t[(crc ^ bytes[at]) & 255];
  return crc;
}

function byWords(t: Int32Array, before: number, words: Int32Array): number {
  let crc = before;
  for (let i = 0; i < words.length; i += 2) {
    const a = crc ^ words[i];
    const b = words[i + 1];
    crc =
      t[1792 + (a & 255)] ^
      t[1536 + ((a >>> 8) & 255)] ^
      t[1280 + ((a >>> 16) & 255)] ^
      t[1024 + (a >>> 24)] ^
      t[768 + (b & 255)] ^
      t[512 + ((b >>> 8) & 255)] ^
      t[256 + ((b >>> 16) & 255)] ^
      t[b >>> 24];
  }
  return crc;
}

// Long content is folded to its last 10 KB before tables are used: seven times as fast.
//
// A checksum is the remainder of a division by a polynomial P of bits. P divides x^5275 + x^4508 + x^2751 + 1, so it also
// divides the sixteenth power of that, which has the same four terms at distances of whole pairs of bytes. Dividing by that
// power first keeps the remainder by P, and each byte only takes in three bytes before it, without tables:
//
//     byte[i] ^= byte[i - 1534] ^ byte[i - 5048] ^ byte[i - 10550]
//
// JavaScript has no 128-bit vectors. This module of WebAssembly does it for sixteen bytes at once:
//
//     (module
//       (memory (export "m") 2)
//       (func (export "f") (param $data i32) (param $before i32) (param $end i32)
//         (loop $next
//           (v128.store align=1 (local.get $data)
//             (v128.xor
//               (v128.xor (v128.load align=1 (local.get $data)) (v128.load align=1 (local.get $before)))
//               (v128.xor (v128.load offset=5502 align=1 (local.get $before))
//                         (v128.load offset=9016 align=1 (local.get $before)))))
//           (local.set $before (i32.add (local.get $before) (i32.const 16)))
//           (br_if $next (i32.lt_u (local.tee $data (i32.add (local.get $data) (i32.const 16)))
//                                  (local.get $end))))))

const foldModule =
  "AGFzbQEAAAABBwFgA39/fwADAgEABQMBAAIHCQIBbQIAAWYAAApAAT4AA0AgACAA/QAAACAB/QAAAP1RIAH9AAD+KiAB/QAAuEb9Uf1R/QsAACABQRBqIQEgAEEQaiIAIAJJDQALCw==";
/** How far back a byte reaches. */
const reach = 10550;
const leastFolded = 16384;
/** Places in the memory of the module: a piece of the content, with the bytes before it, and the end of the content. */
const pieceAt = 10560;
const pieceSize = 65536;
const endAt = pieceAt + pieceSize;

/** Where the bytes start that the first of the piece takes in. */
const beforeAt = pieceAt - reach;

interface Folding {
  memory: Uint8Array;
  /** Folds the bytes from `data` up to `end`; those that they take in start at `before`. */
  fold(data: number, before: number, end: number): void;
}

let folding: Folding | null | undefined;

/** Null in old browsers, and in pages whose policy forbids WebAssembly. */
function makeFolding(): Folding | null {
  try {
    const code = Uint8Array.from(atob(foldModule), (one) => one.charCodeAt(0));
    const { m, f } = new WebAssembly.Instance(new WebAssembly.Module(code)).exports;
    return { memory: new Uint8Array((m as WebAssembly.Memory).buffer), fold: f as Folding["fold"] };
  } catch {
    return null;
  }
}

/** Shorter bytes that have the checksum of all, if theirs starts with 0 and not with ones. */
function folded({ memory, fold }: Folding, bytes: Uint8Array, before: number): Uint8Array {
  const size = bytes.length - reach - ((bytes.length - reach) % 16);
  memory.fill(0, 0, pieceAt);
  memory.set(new Uint8Array(Int32Array.of(~before).buffer), beforeAt); // only the first four bytes take these in
  for (let at = 0; at < size; at += pieceSize) {
    const piece = bytes.subarray(at, Math.min(at + pieceSize, size));
    memory.set(piece, pieceAt);
    fold(pieceAt, beforeAt, pieceAt + piece.length);
    memory.copyWithin(beforeAt, beforeAt + piece.length, pieceAt + piece.length);
  }
  // The last bytes take in those before them, and not one another.
  memory.fill(0, pieceAt, pieceAt + reach);
  memory.set(bytes.subarray(size), endAt);
  fold(endAt, beforeAt, endAt + reach);
  return memory.subarray(endAt, endAt + bytes.length - size);
}
