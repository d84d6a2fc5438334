// Constants, names of blocks and plain encodings under the names of @wshard/core.

import { encodeUtf8, viewOf } from "../../core/bytes.js";
import { crc32c } from "../../core/crc32c.js";
import {
  checksumsFlag,
  codecs,
  compressedFlag,
  contentTypesFlag,
  type Header,
  headerSize,
  type IndexEntry,
  indexEntrySize,
  littleEndianFlag,
  packEntry,
  packHeader,
  unpackEntry,
  unpackHeader,
  unpackNameHash,
} from "../../core/layout.js";
import { ContentType, type DType, dtypeSizes, Role } from "../../core/registry.js";
import { xxh64 } from "../../core/xxh64.js";
import { rawBytes } from "../../wshard/values.js";

export const SHARD_MAGIC = "SHRD";
export const SHARD_VERSION_2 = 2;
export const WSHARD_ROLE: number = Role.wshard;
export const SHARD_HEADER_SIZE = headerSize;
export const SHARD_INDEX_ENTRY_SIZE = indexEntrySize;
/** The alignment of files of @wshard/core. Our writer aligns to 64, as the canonical form asks. */
export const DEFAULT_ALIGNMENT = 32;
export const COMPRESS_NONE = 0;
export const COMPRESS_ZSTD = 1;
export const COMPRESS_LZ4 = 2;
export const BLOCK_FLAG_COMPRESSED: number = compressedFlag;
export const NS_META = "meta";
export const NS_TIME = "time";
export const NS_ACTION = "action";
export const NS_SIGNAL = "signal";
export const NS_OMEN = "omen";
export const NS_UNCERT = "uncert";
export const NS_RESIDUAL = "residual";
export const NS_AUX = "aux";
export const NS_DEBUG = "debug";
export const BLOCK_REWARD = "reward";
export const BLOCK_DONE = "done";
export const BLOCK_META_WSHARD = "meta/wshard";
export const BLOCK_META_EPISODE = "meta/episode";
export const BLOCK_META_CHANNELS = "meta/channels";
export const BLOCK_META_MODELS = "meta/models";
export const BLOCK_META_MANIFEST = "meta/manifest";
export const BLOCK_TIME_TICKS = "time/ticks";
export const BLOCK_TIME_TIMESTAMPS_NS = "time/timestamps_ns";
export const RESIDUAL_ENCODING_RAW = "raw";
export const RESIDUAL_ENCODING_COWRIE_BITMASK = "cowrie_bitmask";
export const MODALITY_RGB = "rgb";
export const MODALITY_DEPTH = "depth";
export const MODALITY_LANGUAGE = "language";
export const MODALITY_PROPRIOCEPTION = "proprioception";
export const MODALITY_AUDIO = "audio";
export const MODALITY_VIDEO = "video";
export const MODALITY_POINTCLOUD = "pointcloud";
export const LATENT_ACTION_CHANNEL = "latent_action";
export const LATENT_CODEBOOK_CHANNEL = "latent_action_codebook";

export type CompressionType = "none" | "zstd" | "lz4";
export type CompressionLevel = "fastest" | "default" | "best";
export type Modality = "rgb" | "depth" | "language" | "proprioception" | "audio" | "video" | "pointcloud";
export type ShardHeader = Header;
export type ShardIndexEntry = IndexEntry & { readonly nameHash: bigint };

// --- headers

export function dtypeSize(dtype: DType): number {
  return dtypeSizes[dtype];
}

/** The header of an episode without entries. */
export function createShardHeader(fields: Partial<Header> = {}): Header {
  const flags = littleEndianFlag | checksumsFlag | contentTypesFlag;
  const size = headerSize;
  const offsets = { stringTableOffset: size, dataSectionOffset: size, schemaOffset: 0, totalFileSize: size };
  const facts = { version: SHARD_VERSION_2, role: WSHARD_ROLE, flags, alignment: DEFAULT_ALIGNMENT };
  return { ...facts, compressionDefault: COMPRESS_NONE, indexEntrySize, entryCount: 0, ...offsets, ...fields };
}

export function serializeHeader(header: Header): Buffer {
  return Buffer.from(packHeader(header));
}

/** The fields of the first 64 bytes of a file, unchecked; `openShard` checks them. */
export function parseHeader(bytes: Uint8Array): Header {
  return unpackHeader(bytes);
}

export function serializeIndexEntry(entry: ShardIndexEntry): Buffer {
  const bytes = new Uint8Array(indexEntrySize);
  packEntry(viewOf(bytes), 0, entry, entry.nameHash);
  return Buffer.from(bytes);
}

export function parseIndexEntry(bytes: Uint8Array): ShardIndexEntry {
  const view = viewOf(bytes);
  return { ...unpackEntry(view, 0), nameHash: unpackNameHash(view, 0) };
}

export function isCompressed(entry: Pick<IndexEntry, "flags">): boolean {
  return (entry.flags & compressedFlag) !== 0;
}

export function compressionByte(type: CompressionType): number {
  return codecs.indexOf(type);
}

export function compressionFromByte(byte: number): CompressionType {
  return codecs[byte] ?? "none";
}

// --- names

export function blockPath(...parts: string[]): string {
  return parts.join("/");
}

/** A name without slashes at its ends and without empty parts. */
export function normalizePath(path: string): string {
  return path.split("/").filter(Boolean).join("/");
}

export function signalBlock(channel: string): string {
  return `signal/${channel}`;
}

export function actionBlock(channel: string): string {
  return `action/${channel}`;
}

export function omenBlock(channel: string, model: string): string {
  return `omen/${channel}/${model}`;
}

export function uncertBlock(channel: string, model: string, type: string): string {
  return `uncert/${channel}/${model}/${type}`;
}

export function residualSign2ndDiffBlock(channel: string): string {
  return `residual/${channel}/sign2nddiff`;
}

export function latentActionBlock(model: string): string {
  return omenBlock(LATENT_ACTION_CHANNEL, model);
}

export function latentCodebookBlock(model: string): string {
  return omenBlock(LATENT_CODEBOOK_CHANNEL, model);
}

export function multiModalSignalBlock(group: string, modality: string): string {
  return `signal/${group}/${modality}`;
}

/** The content type of the container that fits a modality. */
export function modalityContentType(modality: string): number {
  const types: Record<string, number> = {
    rgb: ContentType.image,
    depth: ContentType.image,
    language: ContentType.text,
    audio: ContentType.audio,
    video: ContentType.video,
  };
  return types[modality] ?? ContentType.unknown;
}

// --- hashes and values

export function crc32C(data: Uint8Array): number {
  return crc32c(data);
}

/** The same as crc32C, in spite of its name. */
export const crc32IEEE: typeof crc32C = crc32C;

/** XXH64 of a name, which the index stores. */
export function simpleHash64(name: string): bigint {
  return xxh64(encodeUtf8(name) ?? new Uint8Array(0));
}

function toBuffer(values: ArrayBufferView): Buffer {
  return Buffer.from(rawBytes(values));
}

export function encodeFloat32(values: ArrayLike<number>): Buffer {
  return toBuffer(Float32Array.from(values));
}

export function encodeFloat32_2D(rows: readonly ArrayLike<number>[]): Buffer {
  return toBuffer(Float32Array.from(rows.flatMap((row) => Array.from(row))));
}

export function encodeInt32(values: ArrayLike<number>): Buffer {
  return toBuffer(Int32Array.from(values));
}

export function encodeInt64(values: ArrayLike<bigint>): Buffer {
  return toBuffer(BigInt64Array.from(values));
}

export function encodeBool(values: ArrayLike<boolean>): Buffer {
  return toBuffer(Uint8Array.from(values, Number));
}

function decoded<T>(data: Uint8Array, size: number, read: (view: DataView, at: number) => T): T[] {
  const view = viewOf(data);
  return Array.from({ length: Math.floor(data.length / size) }, (_, number) => read(view, number * size));
}

export function decodeFloat32(data: Uint8Array): number[] {
  return decoded(data, 4, (view, at) => view.getFloat32(at, true));
}

export function decodeFloat32_2D(data: Uint8Array, columns: number): number[][] {
  return inRows(decodeFloat32(data), columns);
}

export function decodeInt32(data: Uint8Array): number[] {
  return decoded(data, 4, (view, at) => view.getInt32(at, true));
}

export function decodeInt64(data: Uint8Array): bigint[] {
  return decoded(data, 8, (view, at) => view.getBigInt64(at, true));
}

export function decodeBool(data: Uint8Array): boolean[] {
  return Array.from(data, (byte) => byte !== 0);
}

/** Numbers in rows of so many columns. */
export function inRows(values: readonly number[], columns: number): number[][] {
  const rows: number[][] = [];
  for (let at = 0; columns > 0 && at + columns <= values.length; at += columns)
    rows.push(values.slice(at, at + columns));
  return rows;
}
