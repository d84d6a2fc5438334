// Sharded datasets: spec/shardpack.md.
export { contentTypeOf } from "./content-types.js";
export type { EncodingName, MetadataEncodingName } from "./encodings.js";
export type { Footer } from "./layout.js";
export type { MessagePackExtension, MessagePackMap, MessagePackValue } from "./messagepack.js";
export { openShardPack, ShardPackReader } from "./reader.js";
export { PackEntry, PackRecord } from "./record.js";
export type { EncodingOptions, Entries, RecordOptions } from "./record-encoder.js";
export { type LostPart, type Recovery, recoverShardPack } from "./recover.js";
export { openShardSet, ShardSet } from "./set.js";
export type { PackOptions } from "./shard-bytes.js";
export { type ByteStream, type StreamOptions, streamRecords } from "./stream.js";
export { type PackWriterOptions, ShardPackWriter } from "./writer.js";
