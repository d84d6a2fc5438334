// The names of @wshard/core over this package, for Node. New code uses @shard-format/core/wshard.
export type { DType } from "../core/registry.js";
export * from "../node/compat/codecs.js";
export * from "../node/compat/names.js";
export { WShardReader } from "../node/compat/reader.js";
export { type StreamChannelDef, WShardStreamWriter, type WShardStreamWriterOptions } from "../node/compat/stream.js";
export { WShardWriter, type WShardWriterOptions } from "../node/compat/writer.js";
