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
  tables ??= makeTables();
  const t = tables;
  let crc = ~before;
  let at = 0;
  for (const end = bytes.length - 7; at < end; at += 8) {
    crc ^= bytes[at] | (bytes[at + 1] << 8) | (bytes[at + 2] << 16) | (bytes[at + 3] << 24);
    crc =
      t[1792 + (crc & 255)] ^
      t[1536 + ((crc >>> 8) & 255)] ^
      t[1280 + ((crc >>> 16) & 255)] ^
      t[1024 + (crc >>> 24)] ^
      t[768 + bytes[at + 4]] ^
      t[512 + bytes[at + 5]] ^
      t[256 + bytes[at + 6]] ^
      t[bytes[at + 7]];
  }
  for (; at < bytes.length; at++) crc = (crc >>> 8) ^ t[(crc ^ bytes[at]) & 255];
  return ~crc >>> 0;
}
