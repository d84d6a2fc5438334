// Shards of datasets on disk, with everything of @shard-format/core/shardpack.
export { createShardSet, type SetWriterOptions, ShardSetWriter } from "../node/shard-set-writer.js";
export {
  createShardPack,
  openShardPack,
  openShardSet,
  recoverShardPack,
  streamShardPack,
} from "../node/shardpack.js";
export * from "./index.js";
