// Constants, names of blocks and plain encodings under the names of @wshard/core.

import { encodeUtf8, viewOf } from "../../core/bytes.js";
import { crc32c } from "../../core/crc32c.js";
import { ShardError } from "../../core/errors.js";
import type { JsonObject } from "../../core/json.js";
import {
  checksumsFlag,
  codecs,
  compressedFlag,
  contentTypesFlag,
  headerSize,
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

export const SHARD_MAGIC: Buffer = Buffer.from("SHRD", "ascii");
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

/** `meta/wshard` */
export interface WShardMeta {
  format: string;
  version: string;
  residual_edges: "pad" | "overlap";
  residual_encoding?: string;
}

export interface TimebaseMeta {
  type: string;
  tick_hz?: number | null;
  dt_ns?: number | bigint;
  epoch_ns?: number | bigint;
}

/** `meta/episode`. A writer keeps `source` and `action_space` in the metadata. */
export interface EpisodeMeta {
  episode_id: string;
  length_T: number;
  timebase: TimebaseMeta;
  env_id?: string;
  source?: string;
  action_space?: "discrete" | "continuous";
  chunk_index?: number;
  total_chunks?: number;
  timestep_range?: [number, number];
  metadata?: JsonObject;
}

/** A row of `meta/channels`. */
export interface ChannelDef {
  id: string;
  dtype: DType;
  shape: number[];
  modality?: string;
  unit?: string;
  description?: string;
  semantics?: string;
  content_type?: string;
  sampling_rate_hz?: number;
}

export interface ChannelsMeta {
  channels: ChannelDef[];
}

export interface ModelDef {
  id: string;
  name: string;
  type?: string;
  version?: string;
  latent_dim?: number;
  codebook_size?: number;
  action_type?: "continuous" | "discrete" | "vq";
}

/** `meta/models` */
export interface ModelsMeta {
  models: ModelDef[];
}

/** The header of a file. Sizes and offsets are `bigint`. */
export interface ShardHeader {
  magic: Buffer;
  version: number;
  role: number;
  flags: number;
  alignment: number;
  compressionDefault: number;
  entryCount: number;
  stringTableOffset: bigint;
  dataSectionOffset: bigint;
  schemaOffset: bigint;
  totalFileSize: bigint;
}

/** An entry of the index. Sizes and offsets are `bigint`. */
export interface IndexEntry {
  nameHash: bigint;
  nameOffset: number;
  nameLen: number;
  flags: number;
  dataOffset: bigint;
  diskSize: bigint;
  origSize: bigint;
  checksum: number;
  contentType: number;
  /** Empty after `parseIndexEntry`: names are in a table of their own. */
  name: string;
}

// --- headers

export function dtypeSize(dtype: DType): number {
  return dtypeSizes[dtype];
}

/** The header of an episode without entries. */
export function createShardHeader(): ShardHeader {
  const size = BigInt(headerSize);
  return {
    magic: SHARD_MAGIC,
    version: SHARD_VERSION_2,
    role: WSHARD_ROLE,
    flags: littleEndianFlag | checksumsFlag | contentTypesFlag,
    alignment: DEFAULT_ALIGNMENT,
    compressionDefault: COMPRESS_NONE,
    entryCount: 0,
    stringTableOffset: size,
    dataSectionOffset: size,
    schemaOffset: 0n,
    totalFileSize: size,
  };
}

export function serializeHeader(header: ShardHeader): Buffer {
  const { stringTableOffset, dataSectionOffset, schemaOffset, totalFileSize } = header;
  const places = [stringTableOffset, dataSectionOffset, schemaOffset, totalFileSize].map(Number);
  return Buffer.from(
    packHeader({
      ...header,
      indexEntrySize,
      stringTableOffset: places[0],
      dataSectionOffset: places[1],
      schemaOffset: places[2],
      totalFileSize: places[3],
    }),
  );
}

/** The fields of the first 64 bytes of a file; `WShardReader` checks more than the magic bytes. */
export function parseHeader(bytes: Uint8Array): ShardHeader {
  if (bytes.length < headerSize || !SHARD_MAGIC.equals(bytes.subarray(0, SHARD_MAGIC.length))) {
    throw new ShardError("bad_magic", "not a Shard file", {
      rule: "S-HDR-2",
      expected: `${headerSize} bytes, SHRD first`,
    });
  }
  const { indexEntrySize: _, ...header } = unpackHeader(bytes);
  return {
    ...header,
    magic: SHARD_MAGIC,
    stringTableOffset: BigInt(header.stringTableOffset),
    dataSectionOffset: BigInt(header.dataSectionOffset),
    schemaOffset: BigInt(header.schemaOffset),
    totalFileSize: BigInt(header.totalFileSize),
  };
}

export function serializeIndexEntry(entry: IndexEntry): Buffer {
  const bytes = new Uint8Array(indexEntrySize);
  const { dataOffset, diskSize, origSize } = entry;
  const [offset, disk, original] = [dataOffset, diskSize, origSize].map(Number);
  const row = { ...entry, nameLength: entry.nameLen, crc32c: entry.checksum, tagBits: 0 };
  packEntry(viewOf(bytes), 0, { ...row, dataOffset: offset, diskSize: disk, origSize: original }, entry.nameHash);
  return Buffer.from(bytes);
}

export function parseIndexEntry(bytes: Uint8Array): IndexEntry {
  const view = viewOf(bytes);
  const { nameOffset, nameLength, flags, dataOffset, diskSize, origSize, crc32c, contentType } = unpackEntry(view, 0);
  return {
    nameHash: unpackNameHash(view, 0),
    nameOffset,
    nameLen: nameLength,
    flags,
    dataOffset: BigInt(dataOffset),
    diskSize: BigInt(diskSize),
    origSize: BigInt(origSize),
    checksum: crc32c,
    contentType,
    name: "",
  };
}

export function isCompressed(entry: { flags: number }): boolean {
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

/** A name below a namespace, which it may begin with already. */
export function normalizePath(namespace: string, name: string): string {
  return name.startsWith(`${namespace}/`) ? name : `${namespace}/${name}`;
}

export function signalBlock(channel: string): string {
  return normalizePath(NS_SIGNAL, channel);
}

export function actionBlock(channel: string): string {
  return normalizePath(NS_ACTION, channel);
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
    depth: ContentType.tensorV1,
    language: ContentType.text,
    proprioception: ContentType.tensorV1,
    audio: ContentType.audio,
    video: ContentType.video,
    pointcloud: ContentType.tensorV1,
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
