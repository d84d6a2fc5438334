export { sha256 } from "./core/bytes.js";
export { CachedSource } from "./core/cached-source.js";
export { crc32c } from "./core/crc32c.js";
export { type ArrayOf, fromTypedArray, type TypedArray, toDType, toTypedArray } from "./core/dtypes.js";
export { type ErrorDetails, ShardError } from "./core/errors.js";
export type { Filters } from "./core/filters.js";
export { FolderSource } from "./core/folder-source.js";
export { computeIdentity, Identity, type IdentityVersion } from "./core/identity.js";
export {
  canonicalBytes,
  canonicalJson,
  isInteger,
  type Json,
  type JsonObject,
  parseJson,
  parseJsonObject,
} from "./core/json.js";
export type { Codec, Header } from "./core/layout.js";
export { checkUri, type Manifest, type ManifestRow, readManifest } from "./core/manifest.js";
export { type Entry, type OpenOptions, openShard, type ShardReader } from "./core/reader.js";
export {
  ContentType,
  type DType,
  defaultLimits,
  type ErrorCode,
  type Limits,
  Role,
  type WarningCode,
} from "./core/registry.js";
export { schemaId } from "./core/schema.js";
export type { SeekFrame } from "./core/seekable.js";
export { packSignature, parseSignature, type Signature, signShard, verifySignature } from "./core/signature.js";
export { BytesSink, type Sink, StreamSink } from "./core/sink.js";
export {
  BlobSource,
  BytesSource,
  type HttpOptions,
  HttpSource,
  type IReadable,
  type ReadOptions,
  type Source,
  type SourceLike,
  type SourceStats,
} from "./core/source.js";
export { type ExpectedIdentity, findWarnings, verifyIdentity, verifyShard } from "./core/verify.js";
export { type EntryOptions, ShardWriter, type WriterOptions } from "./core/writer.js";
export { xxh64 } from "./core/xxh64.js";
export type { Zstd, ZstdProvider } from "./core/zstd.js";
