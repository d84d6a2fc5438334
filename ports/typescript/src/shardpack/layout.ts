// The byte layout of ShardPack version 1: spec/shardpack.md. No other module has these offsets.

import { viewOf } from "../core/bytes.js";
import { crc32c } from "../core/crc32c.js";

export const version = 1;
/** A block, which is a record or the index, starts with its size and its marker. */
export const blockStartSize = 12;
export const recordMarker = 0x31525053; // "SPR1"
export const indexMarker = 0x31495053; // "SPI1"
export const recordHeadSize = 32;
export const rowSize = 24;
export const checksumSize = 4;
/** The CRC-32C of any bytes followed by their own CRC-32C. */
export const checked = 0x48674bc7;
/** A record without entries, key and metadata. */
export const leastRecordSize = recordHeadSize + checksumSize;
export const indexHeadSize = 32;
export const footerSize = 64;
/** An empty index, which has one offset, and a footer. */
export const leastFileSize = indexHeadSize + 8 + footerSize;
export const alignments: readonly number[] = [1, 8, 64];

export const longestKey = 65_536;
export const longestName = 65_535;
export const longestContentType = 255;
export const mostEntries = 1 << 20;
export const largestRecordMetadata = 16 << 20;
export const largestHead = 64 << 20;
export const mostRecords = 2 ** 32 - 1;

const magic = "SHRDPACK";
/** Bytes of the footer that its checksum covers. */
const checkedFooterSize = 52;

/** A u64. Above 2⁵³ it is not exact, which is enough to see that it is larger than anything it is compared with. */
export function readU64(from: DataView, at: number): number {
  return from.getUint32(at + 4, true) * 2 ** 32 + from.getUint32(at, true);
}

export function writeU64(to: DataView, at: number, value: number): void {
  to.setUint32(at, value % 2 ** 32, true);
  to.setUint32(at + 4, Math.floor(value / 2 ** 32), true);
}

// --- records

export interface BlockStart {
  size: number;
  marker: number;
}

export function readBlockStart(data: Uint8Array, at = 0): BlockStart {
  const fields = viewOf(data);
  return { size: readU64(fields, at), marker: fields.getUint32(at + 8, true) };
}

/** The fixed head of a record. */
export interface RecordFields {
  recordSize: number;
  marker: number;
  version: number;
  metadataEncoding: number;
  alignment: number;
  flags: number;
  entryCount: number;
  kindsSize: number;
  keySize: number;
  metadataSize: number;
}

export function readRecordFields(data: Uint8Array): RecordFields {
  const fields = viewOf(data);
  return {
    recordSize: readU64(fields, 0),
    marker: fields.getUint32(8, true),
    version: fields.getUint8(12),
    metadataEncoding: fields.getUint8(13),
    alignment: fields.getUint8(14),
    flags: fields.getUint8(15),
    entryCount: fields.getUint32(16, true),
    kindsSize: fields.getUint32(20, true),
    keySize: fields.getUint32(24, true),
    metadataSize: fields.getUint32(28, true),
  };
}

export function writeRecordFields(to: DataView, record: RecordFields): void {
  writeU64(to, 0, record.recordSize);
  to.setUint32(8, record.marker, true);
  to.setUint8(12, record.version);
  to.setUint8(13, record.metadataEncoding);
  to.setUint8(14, record.alignment);
  to.setUint8(15, record.flags);
  to.setUint32(16, record.entryCount, true);
  to.setUint32(20, record.kindsSize, true);
  to.setUint32(24, record.keySize, true);
  to.setUint32(28, record.metadataSize, true);
}

/** Where the parts of a head are, from the start of its record. */
export function headParts(record: RecordFields): {
  kinds: number;
  key: number;
  metadata: number;
  checksum: number;
  end: number;
} {
  const kinds = recordHeadSize + rowSize * record.entryCount;
  const key = kinds + record.kindsSize;
  const metadata = key + record.keySize;
  const checksum = metadata + record.metadataSize;
  return { kinds, key, metadata, checksum, end: checksum + checksumSize };
}

/** What a record says about the bytes of an entry. */
export interface Row {
  storedSize: number;
  originalSize: number;
  crc32c: number;
  encoding: number;
}

export function readRow(head: DataView, number: number): Row {
  const at = recordHeadSize + rowSize * number;
  return {
    storedSize: readU64(head, at),
    originalSize: readU64(head, at + 8),
    crc32c: head.getUint32(at + 16, true),
    encoding: head.getUint8(at + 20),
  };
}

export function writeRow(head: DataView, number: number, row: Row): void {
  const at = recordHeadSize + rowSize * number;
  writeU64(head, at, row.storedSize);
  writeU64(head, at + 8, row.originalSize);
  head.setUint32(at + 16, row.crc32c, true);
  head.setUint8(at + 20, row.encoding);
}

/** Size of the two length fields before the name and the content type of an entry. */
export const kindLengthsSize = 4;

export function readKindLengths(kinds: DataView, at: number): { name: number; contentType: number } {
  return { name: kinds.getUint16(at, true), contentType: kinds.getUint16(at + 2, true) };
}

export function writeKindLengths(kinds: DataView, at: number, name: number, contentType: number): void {
  kinds.setUint16(at, name, true);
  kinds.setUint16(at + 2, contentType, true);
}

// --- index and footer

/** The last 64 bytes of a shard, without its version, reserved bytes, checksum and magic. */
export interface Footer {
  readonly indexOffset: number;
  readonly recordCount: number;
  readonly metadataSize: number;
  readonly totalSize: number;
  readonly offsetsCrc32c: number;
  readonly lookupCrc32c: number;
  readonly metadataCrc32c: number;
}

export interface StoredFooter extends Footer {
  version: number;
  crc32c: number;
  hasMagic: boolean;
  /** The bytes that the checksum covers. */
  checkedBytes: Uint8Array;
}

export function readFooter(data: Uint8Array): StoredFooter {
  const fields = viewOf(data);
  return {
    indexOffset: readU64(fields, 0),
    recordCount: readU64(fields, 8),
    metadataSize: readU64(fields, 16),
    totalSize: readU64(fields, 24),
    offsetsCrc32c: fields.getUint32(32, true),
    lookupCrc32c: fields.getUint32(36, true),
    metadataCrc32c: fields.getUint32(40, true),
    version: fields.getUint8(44),
    crc32c: fields.getUint32(checkedFooterSize, true),
    hasMagic: [...magic].every((letter, at) => data[56 + at] === letter.charCodeAt(0)),
    checkedBytes: data.subarray(0, checkedFooterSize),
  };
}

export function writeFooter(footer: Footer): Uint8Array {
  const data = new Uint8Array(footerSize);
  const fields = viewOf(data);
  writeU64(fields, 0, footer.indexOffset);
  writeU64(fields, 8, footer.recordCount);
  writeU64(fields, 16, footer.metadataSize);
  writeU64(fields, 24, footer.totalSize);
  fields.setUint32(32, footer.offsetsCrc32c, true);
  fields.setUint32(36, footer.lookupCrc32c, true);
  fields.setUint32(40, footer.metadataCrc32c, true);
  fields.setUint8(44, version);
  fields.setUint32(checkedFooterSize, crc32c(data.subarray(0, checkedFooterSize)), true);
  data.set(
    [...magic].map((letter) => letter.charCodeAt(0)),
    56,
  );
  return data;
}

/** Where the parts of an index are, from the start of the index, and its whole size with the footer. */
export function indexParts(
  recordCount: number,
  metadataSize: number,
): { offsets: number; hashes: number; numbers: number; metadata: number; footer: number; end: number } {
  const hashes = indexHeadSize + 8 * (recordCount + 1);
  const numbers = hashes + 8 * recordCount;
  const metadata = numbers + 4 * recordCount;
  const footer = metadata + metadataSize;
  return { offsets: indexHeadSize, hashes, numbers, metadata, footer, end: footer + footerSize };
}

/** The 32 bytes with which the index of this footer starts. */
export function indexHead(footer: Footer): Uint8Array {
  const data = new Uint8Array(indexHeadSize);
  const fields = viewOf(data);
  writeU64(fields, 0, footer.totalSize - footer.indexOffset);
  fields.setUint32(8, indexMarker, true);
  fields.setUint8(12, version);
  writeU64(fields, 16, footer.recordCount);
  writeU64(fields, 24, footer.metadataSize);
  return data;
}
