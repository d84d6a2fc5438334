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

// Flags of the header. Each is a constant of its own, so that a bundle has only those that it uses.
export const littleEndianFlag = 0x0002;
export const bigEndianFlag = 0x0004;
export const schemaFlag = 0x0010;
export const checksumsFlag = 0x0020;
export const reservedHeadFlag = 0x0040;
export const contentTypesFlag = 0x0080;
export const knownHeaderFlags = 0x00f7;

// Flags of an entry.
export const compressedFlag = 0x0001;
export const zstdFlag = 0x0002;
export const lz4Flag = 0x0004;
export const filteredFlag = 0x0010;
export const knownEntryFlags = 0x0017;

/** How the bytes of an entry are stored. */
export type Codec = "none" | "zstd" | "lz4";

/** The codecs in the order of their numbers. */
export const codecs: readonly Codec[] = ["none", "zstd", "lz4"];

/**
 * An unsigned number of 64 bits. From 2⁵³ on it is rounded, but never to less than 2⁵³. Files are smaller than that, so
 * no comparison with a size or an offset inside a file goes wrong.
 */
function getUint64(view: DataView, at: number): number {
  return view.getUint32(at + 4, true) * 0x1_0000_0000 + view.getUint32(at, true);
}

function setUint64(view: DataView, at: number, value: number): void {
  view.setUint32(at, value % 0x1_0000_0000, true);
  view.setUint32(at + 4, Math.floor(value / 0x1_0000_0000), true);
}

/** The first 64 bytes of a file, without the magic and the reserved bytes. */
export interface Header {
  readonly version: number;
  readonly role: number;
  readonly flags: number;
  readonly alignment: number;
  readonly compressionDefault: number;
  readonly indexEntrySize: number;
  readonly entryCount: number;
  readonly stringTableOffset: number;
  readonly dataSectionOffset: number;
  /** 0 if there is no schema section. Not checked when a file is opened. */
  readonly schemaOffset: number;
  readonly totalFileSize: number;
}

export function unpackHeader(bytes: Uint8Array): Header {
  const view = viewOf(bytes);
  return {
    version: view.getUint8(0x04),
    role: view.getUint8(0x05),
    flags: view.getUint16(0x06, true),
    alignment: view.getUint8(0x08),
    compressionDefault: view.getUint8(0x09),
    indexEntrySize: view.getUint16(0x0a, true),
    entryCount: view.getUint32(0x0c, true),
    stringTableOffset: getUint64(view, 0x10),
    dataSectionOffset: getUint64(view, 0x18),
    schemaOffset: getUint64(view, 0x20),
    totalFileSize: getUint64(view, 0x28),
  };
}

/** The reserved bytes of a header. */
export function reservedBytes(header: Uint8Array): Uint8Array {
  return header.subarray(0x30, headerSize);
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
  view.setUint16(0x0a, header.indexEntrySize, true);
  view.setUint32(0x0c, header.entryCount, true);
  setUint64(view, 0x10, header.stringTableOffset);
  setUint64(view, 0x18, header.dataSectionOffset);
  setUint64(view, 0x20, header.schemaOffset);
  setUint64(view, 0x28, header.totalFileSize);
  return bytes;
}

/** A row of the index as it is stored, without the hash of the name. */
export interface IndexEntry {
  readonly nameOffset: number;
  readonly nameLength: number;
  readonly flags: number;
  readonly dataOffset: number;
  readonly diskSize: number;
  readonly origSize: number;
  readonly crc32c: number;
  readonly contentType: number;
  readonly tagBits: number;
}

export function unpackEntry(view: DataView, at: number): IndexEntry {
  return {
    nameOffset: view.getUint32(at + 0x08, true),
    nameLength: view.getUint16(at + 0x0c, true),
    flags: view.getUint16(at + 0x0e, true),
    dataOffset: getUint64(view, at + 0x10),
    diskSize: getUint64(view, at + 0x18),
    origSize: getUint64(view, at + 0x20),
    crc32c: view.getUint32(at + 0x28, true),
    contentType: view.getUint16(at + 0x2c, true),
    tagBits: view.getUint16(at + 0x2e, true),
  };
}

/** The stored hash of a name. */
export function unpackNameHash(view: DataView, at: number): bigint {
  return view.getBigUint64(at, true);
}

export function packEntry(view: DataView, at: number, entry: IndexEntry, nameHash: bigint): void {
  view.setBigUint64(at, nameHash, true);
  view.setUint32(at + 0x08, entry.nameOffset, true);
  view.setUint16(at + 0x0c, entry.nameLength, true);
  view.setUint16(at + 0x0e, entry.flags, true);
  setUint64(view, at + 0x10, entry.dataOffset);
  setUint64(view, at + 0x18, entry.diskSize);
  setUint64(view, at + 0x20, entry.origSize);
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
