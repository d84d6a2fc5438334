// Shards of datasets in files.

import { createReadStream } from "node:fs";
import { invalid } from "../core/errors.js";
import type { SourceLike } from "../core/source.js";
import { openShardPack as openSource, type ShardPackReader } from "../shardpack/reader.js";
import type { PackRecord } from "../shardpack/record.js";
import { type Recovery, recoverShardPack as recoverSource } from "../shardpack/recover.js";
import { openShardSet as openSetSource, type ShardSet } from "../shardpack/set.js";
import type { PackOptions } from "../shardpack/shard-bytes.js";
import { type StreamOptions, streamRecords } from "../shardpack/stream.js";
import { type PackWriterOptions, ShardPackWriter } from "../shardpack/writer.js";
import { FileSource } from "./file.js";
import { FileSink, type FileSinkOptions } from "./file-sink.js";
import { loadZstd } from "./zstd.js";

/** A path, unless it starts with http: or https:. */
function fromPath(given: SourceLike): SourceLike {
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

/** Starts a shard. It appears under its name when `finish` is done; until then, and after an error, what was there stays. */
export function createShardPack(path: string, options: PackWriterOptions & FileSinkOptions = {}): ShardPackWriter {
  return new ShardPackWriter(new FileSink(path, options), withDefaults(options));
}

/** Writes a new shard with every undamaged record of a damaged one. */
export async function recoverShardPack(
  given: SourceLike,
  path: string,
  options: PackOptions & PackWriterOptions & FileSinkOptions = {},
): Promise<Recovery> {
  return await recoverSource(fromPath(given), new FileSink(path, options), { zstd: loadZstd, ...options });
}

/** The options of a writer, with the zstd and the time of this process. */
export function withDefaults<T extends PackWriterOptions>(options: T): T & { created: string | Date } {
  return { zstd: loadZstd, ...options, created: options.created ?? creationDate() };
}

/** The time that reproducible builds set, or the current time. */
function creationDate(): Date {
  const epoch = process.env["SOURCE_DATE_EPOCH"];
  if (!epoch) return new Date();
  if (!/^[0-9]{1,12}$/.test(epoch)) throw invalid("SOURCE_DATE_EPOCH is not a number of seconds", { found: epoch });
  return new Date(1000 * Number(epoch));
}
