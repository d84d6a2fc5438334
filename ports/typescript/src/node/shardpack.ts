// Shards of datasets in files.

import { createReadStream } from "node:fs";
import type { SourceLike } from "../core/source.js";
import { openShardPack as openSource, type ShardPackReader } from "../shardpack/reader.js";
import type { PackRecord } from "../shardpack/record.js";
import { openShardSet as openSetSource, type ShardSet } from "../shardpack/set.js";
import type { PackOptions } from "../shardpack/shard-bytes.js";
import { type StreamOptions, streamRecords } from "../shardpack/stream.js";
import { FileSource } from "./file.js";
import { loadZstd } from "./zstd.js";

/** A path, unless it starts with http: or https:. */
export function fromPath(given: SourceLike): SourceLike {
  return typeof given === "string" && !/^https?:/i.test(given) ? new FileSource(given) : given;
}

/** Opens a shard of a dataset. A string is a path, unless it starts with http: or https:. Close the reader. */
export async function openShardPack(given: SourceLike, options: PackOptions = {}): Promise<ShardPackReader> {
  return await openSource(fromPath(given), { zstd: loadZstd, ...options });
}

/** The records of a shard in a file, from start to end, without its index. */
export function streamShardPack(path: string, options: StreamOptions = {}): AsyncGenerator<PackRecord> {
  const stream = createReadStream(path, { highWaterMark: 1 << 20 });
  return streamRecords(stream, { zstd: loadZstd, name: path, ...options });
}

/** Opens a set file. A string is a path, unless it starts with http: or https:. Close the set. */
export async function openShardSet(given: SourceLike, options: PackOptions = {}): Promise<ShardSet> {
  return await openSetSource(fromPath(given), { zstd: loadZstd, ...options });
}
