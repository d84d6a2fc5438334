import { type OpenOptions, openShard as openSource, type ShardReader } from "./core/reader.js";
import type { SourceLike } from "./core/source.js";
import { ShardWriter, type WriterOptions } from "./core/writer.js";
import { FileSource } from "./node/file.js";
import { FileSink, type FileSinkOptions } from "./node/file-sink.js";
import { loadZstd } from "./node/zstd.js";

export * from "./index.js";
export { FileSource } from "./node/file.js";
export { FileSink, type FileSinkOptions } from "./node/file-sink.js";
export { loadZstd } from "./node/zstd.js";

/** Opens a file. A string is a path, unless it starts with http: or https:. Close the reader. */
export async function openShard(source: SourceLike, options: OpenOptions = {}): Promise<ShardReader> {
  const from = typeof source === "string" && !/^https?:/i.test(source) ? new FileSource(source) : source;
  return openSource(from, { zstd: loadZstd, ...options });
}

/** Starts a file. It appears under its name when `finish` is done; until then, and after an error, what was there stays. */
export function createShard(path: string, options: WriterOptions & FileSinkOptions = {}): ShardWriter {
  return new ShardWriter(new FileSink(path, options), { zstd: loadZstd, ...options });
}
