let tables: Int32Array | undefined;

/** Sixteen tables, so that sixteen bytes are taken at once. */
function makeTables(): Int32Array {
  const made = new Int32Array(16 * 256);
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
  tables ??= makeTables();
  // Words of four bytes are read at once, from the first aligned place on.
  const start = Math.min(bytes.length, -bytes.byteOffset & 3);
  const blocks = Math.floor((bytes.length - start) / 16);
  const end = start + 16 * blocks;
  let crc = byBytes(tables, ~before, bytes, 0, start);
  if (blocks > 0) crc = byWords(tables, crc, new Int32Array(bytes.buffer, bytes.byteOffset + start, 4 * blocks));
  return ~byBytes(tables, crc, bytes, end, bytes.length) >>> 0;
}

function byBytes(t: Int32Array, before: number, bytes: Uint8Array, start: number, end: number): number {
  let crc = before;
  for (let at = start; at < end; at++) crc = (crc >>> 8) ^ t[(crc ^ bytes[at]) & 255];
  return crc;
}

function byWords(t: Int32Array, before: number, words: Int32Array): number {
  let crc = before;
  for (let i = 0; i < words.length; i += 4) {
    const a = crc ^ words[i];
    const b = words[i + 1];
    const c = words[i + 2];
    const d = words[i + 3];
    crc =
      t[3840 + (a & 255)] ^
      t[3584 + ((a >>> 8) & 255)] ^
      t[3328 + ((a >>> 16) & 255)] ^
      t[3072 + (a >>> 24)] ^
      t[2816 + (b & 255)] ^
      t[2560 + ((b >>> 8) & 255)] ^
      t[2304 + ((b >>> 16) & 255)] ^
      t[2048 + (b >>> 24)] ^
      t[1792 + (c & 255)] ^
      t[1536 + ((c >>> 8) & 255)] ^
      t[1280 + ((c >>> 16) & 255)] ^
      t[1024 + (c >>> 24)] ^
      t[768 + (d & 255)] ^
      t[512 + ((d >>> 8) & 255)] ^
      t[256 + ((d >>> 16) & 255)] ^
      t[d >>> 24];
  }
  return crc;
}
