import { type OpenOptions, openShard as openSource, type ShardReader } from "./core/reader.js";
import type { SourceLike } from "./core/source.js";
import { FileSource } from "./node/file.js";
import { loadZstd } from "./node/zstd.js";

export * from "./index.js";
export { FileSource } from "./node/file.js";
export { loadZstd } from "./node/zstd.js";

/** Opens a file. A string is a path, unless it starts with http: or https:. Close the reader. */
export async function openShard(source: SourceLike, options: OpenOptions = {}): Promise<ShardReader> {
  const from = typeof source === "string" && !/^https?:/i.test(source) ? new FileSource(source) : source;
  return openSource(from, { zstd: loadZstd, ...options });
}
