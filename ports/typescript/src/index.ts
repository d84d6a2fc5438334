export { crc32c } from "./core/crc32c.js";
export { type ErrorDetails, ShardError } from "./core/errors.js";
export type { Filters } from "./core/filters.js";
export { computeIdentity, Identity, type IdentityVersion, verifyIdentity } from "./core/identity.js";
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
export {
  BlobSource,
  BytesSource,
  type HttpOptions,
  HttpSource,
  type IReadable,
  type Source,
  type SourceLike,
  type SourceStats,
} from "./core/source.js";
export { findWarnings, verifyShard } from "./core/verify.js";
export { xxh64 } from "./core/xxh64.js";
export type { Zstd, ZstdProvider } from "./core/zstd.js";
