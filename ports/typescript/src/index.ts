export { crc32c } from "./core/crc32c.js";
export { type ErrorDetails, ShardError } from "./core/errors.js";
export {
  canonicalBytes,
  canonicalJson,
  isInteger,
  type Json,
  type JsonObject,
  parseJson,
  parseJsonObject,
} from "./core/json.js";
export {
  ContentType,
  type DType,
  defaultLimits,
  type ErrorCode,
  type Limits,
  Role,
  type WarningCode,
} from "./core/registry.js";
export { xxh64 } from "./core/xxh64.js";
