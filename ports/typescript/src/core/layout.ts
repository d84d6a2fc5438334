// Where the fields of a header and of an index entry are. No other module has these offsets.

import { viewOf } from "./bytes.js";

export const magic = Uint8Array.of(0x53, 0x48, 0x52, 0x44); // SHRD
export const version = 2;
export const headerSize = 64;
export const indexEntrySize = 48;
/** What a reserved head has for the name of each entry. */
export const roomForName = 64;
export const identityEntry = "meta/identity";
export const manifestEntry = "meta/manifest";
export const episodeEntry = "meta/episode";

/** Flags of the header. */
export const headerFlags = {
  littleEndian: 0x0002,
  bigEndian: 0x0004,
  schema: 0x0010,
  checksums: 0x0020,
  reservedHead: 0x0040,
  contentTypes: 0x0080,
  known: 0x00f7,
} as const;

/** Flags of an entry. */
export const entryFlags = { compressed: 0x0001, zstd: 0x0002, lz4: 0x0004, filtered: 0x0010, known: 0x0017 } as const;

/** How the bytes of an entry are stored. */
export type Codec = "none" | "zstd" | "lz4";

/** The codecs in the order of their numbers. */
export const codecs: readonly Codec[] = ["none", "zstd", "lz4"];

/** The first 64 bytes of a file. Fields of 64 bits are bigints until they are checked. */
export interface RawHeader {
  version: number;
  role: number;
  flags: number;
  alignment: number;
  compressionDefault: number;
  indexEntrySize: number;
  entryCount: number;
  stringTableOffset: bigint;
  dataSectionOffset: bigint;
  schemaOffset: bigint;
  totalFileSize: bigint;
}

export function unpackHeader(bytes: Uint8Array): RawHeader {
  const view = viewOf(bytes);
  return {
    version: view.getUint8(0x04),
    role: view.getUint8(0x05),
    flags: view.getUint16(0x06, true),
    alignment: view.getUint8(0x08),
    compressionDefault: view.getUint8(0x09),
    indexEntrySize: view.getUint16(0x0a, true),
    entryCount: view.getUint32(0x0c, true),
    stringTableOffset: view.getBigUint64(0x10, true),
    dataSectionOffset: view.getBigUint64(0x18, true),
    schemaOffset: view.getBigUint64(0x20, true),
    totalFileSize: view.getBigUint64(0x28, true),
  };
}

/** The reserved bytes of a header. */
export function reservedBytes(header: Uint8Array): Uint8Array {
  return header.subarray(0x30, headerSize);
}

/** A header whose fields were checked: all offsets are inside the file. */
export interface Header {
  readonly version: number;
  readonly role: number;
  readonly flags: number;
  readonly alignment: number;
  readonly compressionDefault: number;
  readonly entryCount: number;
  readonly stringTableOffset: number;
  readonly dataSectionOffset: number;
  /** Not checked when a file is opened. A number above 2⁵³ is not exact. */
  readonly schemaOffset: bigint;
  readonly totalFileSize: number;
}

export function packHeader(header: Header): Uint8Array {
  const bytes = new Uint8Array(headerSize);
  const view = viewOf(bytes);
  bytes.set(magic);
  view.setUint8(0x04, header.version);
  view.setUint8(0x05, header.role);
  view.setUint16(0x06, header.flags, true);
  view.setUint8(0x08, header.alignment);
  view.setUint8(0x09, header.compressionDefault);
  view.setUint16(0x0a, indexEntrySize, true);
  view.setUint32(0x0c, header.entryCount, true);
  view.setBigUint64(0x10, BigInt(header.stringTableOffset), true);
  view.setBigUint64(0x18, BigInt(header.dataSectionOffset), true);
  view.setBigUint64(0x20, header.schemaOffset, true);
  view.setBigUint64(0x28, BigInt(header.totalFileSize), true);
  return bytes;
}

/** A row of the index as it is stored. */
export interface IndexEntry {
  nameHash: bigint;
  nameOffset: number;
  nameLength: number;
  flags: number;
  dataOffset: bigint;
  diskSize: bigint;
  origSize: bigint;
  crc32c: number;
  contentType: number;
  tagBits: number;
}

export function unpackEntry(view: DataView, at: number): IndexEntry {
  return {
    nameHash: view.getBigUint64(at, true),
    nameOffset: view.getUint32(at + 0x08, true),
    nameLength: view.getUint16(at + 0x0c, true),
    flags: view.getUint16(at + 0x0e, true),
    dataOffset: view.getBigUint64(at + 0x10, true),
    diskSize: view.getBigUint64(at + 0x18, true),
    origSize: view.getBigUint64(at + 0x20, true),
    crc32c: view.getUint32(at + 0x28, true),
    contentType: view.getUint16(at + 0x2c, true),
    tagBits: view.getUint16(at + 0x2e, true),
  };
}

export function packEntry(view: DataView, at: number, entry: IndexEntry): void {
  view.setBigUint64(at, entry.nameHash, true);
  view.setUint32(at + 0x08, entry.nameOffset, true);
  view.setUint16(at + 0x0c, entry.nameLength, true);
  view.setUint16(at + 0x0e, entry.flags, true);
  view.setBigUint64(at + 0x10, entry.dataOffset, true);
  view.setBigUint64(at + 0x18, entry.diskSize, true);
  view.setBigUint64(at + 0x20, entry.origSize, true);
  view.setUint32(at + 0x28, entry.crc32c, true);
  view.setUint16(at + 0x2c, entry.contentType, true);
  view.setUint16(at + 0x2e, entry.tagBits, true);
}

/** Rounds an offset up to a multiple of the alignment; 0 does not round. No bit operations: they have 32 bits. */
export function alignUp(offset: number, alignment: number): number {
  return alignment === 0 ? offset : Math.ceil(offset / alignment) * alignment;
}

export function isAlignment(value: number): boolean {
  return value === 0 || value === 16 || value === 32 || value === 64;
}
