// Long episodes in several files: chunks, and a manifest that names them (spec/wshard.md, section 11).

import { broken, located, ShardError } from "../core/errors.js";
import { isObject, type Json, type JsonObject } from "../core/json.js";
import { readManifest } from "../core/manifest.js";
import { type OpenOptions, openShard, type ShardReader } from "../core/reader.js";
import { Episode, episodeOf, readDescriptions } from "./episode.js";
import { joinLanes } from "./joining.js";
import { isCount, isHash, told } from "./metadata.js";
import { metaManifest } from "./names.js";
import { fingerprint } from "./sidecars.js";

/** One row of a manifest. */
export interface ChunkRow {
  readonly uri: string;
  readonly sha256: string | null;
  readonly size: number | null;
  readonly fingerprint: string | null;
  readonly chunkIndex: number;
  readonly length: number;
  /** Both ends included; an empty chunk has its start twice. */
  readonly range: readonly [number, number];
}

/** What a manifest says about the chunks of an episode. */
export interface ChunkManifest {
  readonly episodeId: string;
  readonly metadata: JsonObject | null;
  readonly length: number;
  /** In the order of the chunks. */
  readonly chunks: readonly ChunkRow[];
}

/** Checks a manifest (W-CHK-1 to W-CHK-6). */
export function parseChunkManifest(fields: JsonObject): ChunkManifest {
  const isGiven = (holder: JsonObject, key: string) => holder[key] !== undefined && holder[key] !== null;
  const wrong = (what: string, found: Json | undefined) =>
    broken("bad_metadata", "W-CHK-1", `${what} of the manifest is missing or wrong`, {
      entry: metaManifest,
      found: told(found),
    });
  const text = (key: string) => isGiven(fields, key) && typeof fields[key] !== "string";
  if (typeof fields.episode_id !== "string") throw wrong("'episode_id'", fields.episode_id);
  if (text("env_id")) throw wrong("'env_id'", fields.env_id);
  if (!isCount(fields, "total_timesteps")) throw wrong("'total_timesteps'", fields.total_timesteps);
  if (isGiven(fields, "total_chunks") && !isCount(fields, "total_chunks"))
    throw wrong("'total_chunks'", fields.total_chunks);
  if (isGiven(fields, "metadata") && !isObject(fields.metadata)) throw wrong("'metadata'", fields.metadata);
  if (!Array.isArray(fields.chunks)) throw wrong("'chunks'", fields.chunks);
  const listed = fields.chunks.map((row) => {
    if (!isObject(row)) throw wrong("a row", row);
    if (typeof row.uri !== "string") throw wrong("'uri'", row.uri);
    for (const key of ["chunk_index", "length_T"]) if (!isCount(row, key)) throw wrong(`'${key}'`, row[key]);
    for (const key of ["size", "total_chunks"])
      if (isGiven(row, key) && !isCount(row, key)) throw wrong(`'${key}'`, row[key]);
    for (const key of ["sha256", "fingerprint"])
      if (isGiven(row, key) && !isHash(row[key])) throw wrong(`'${key}'`, row[key]);
    const range = row.timestep_range;
    const isRange = Array.isArray(range) && range.length === 2 && isCount(range, 0) && isCount(range, 1);
    if (isGiven(row, "timestep_range") && !isRange) throw wrong("'timestep_range'", range);
    return row;
  });
  for (const { uri } of listed) checkName(uri as string);
  return {
    episodeId: fields.episode_id,
    metadata: isObject(fields.metadata) ? fields.metadata : null,
    length: Number(fields.total_timesteps),
    chunks: checkContinuity(fields, listed),
  };
}

/** W-CHK-2 */
function checkName(uri: string): void {
  if (uri !== "" && uri !== "." && uri !== ".." && !/[/\\\0]/.test(uri)) return;
  throw broken("unsafe_path", "W-CHK-2", "a chunk is not the name of a file in the manifest's folder", {
    entry: metaManifest,
    found: told(uri),
  });
}

/** W-CHK-3 to W-CHK-6 */
function checkContinuity(fields: JsonObject, listed: JsonObject[]): ChunkRow[] {
  const wrong = (rule: string, problem: string, expected: number, found: Json) =>
    broken("chunk_discontinuity", rule, problem, { entry: metaManifest, expected, found: String(found) });
  const ordered = [...listed].sort((a, b) => Number(a.chunk_index) - Number(b.chunk_index));
  if (ordered.length === 0) throw wrong("W-CHK-6", "the manifest names no chunks", 1, 0);
  let total = 0;
  const rows = ordered.map((row, number) => {
    const index = Number(row.chunk_index);
    if (index < number) throw wrong("W-CHK-4", "a chunk is there twice", number, index);
    if (index > number) throw wrong("W-CHK-3", "a chunk is missing", number, index);
    const length = Number(row.length_T);
    const [start, end] = Array.isArray(row.timestep_range)
      ? row.timestep_range.map(Number)
      : [total, Math.max(total, total + length - 1)];
    if (start !== total) throw wrong("W-CHK-5", "a chunk does not start right after the one before it", total, start);
    // An empty chunk has no last step: its range is written as [start, start].
    if (end - start + 1 !== length && !(length === 0 && end === start)) {
      throw wrong("W-CHK-6", "a chunk has another length than its range", end - start + 1, length);
    }
    if (typeof row.total_chunks === "number" && row.total_chunks !== ordered.length) {
      throw wrong("W-CHK-6", "a chunk claims another number of chunks", ordered.length, row.total_chunks);
    }
    total += length;
    return {
      uri: row.uri as string,
      sha256: (row.sha256 as string | null) ?? null,
      size: row.size === undefined || row.size === null ? null : Number(row.size),
      fingerprint: (row.fingerprint as string | null) ?? null,
      chunkIndex: index,
      length,
      range: [start, end] as const,
    };
  });
  const claimed = fields.total_chunks ?? rows.length;
  if (claimed !== rows.length)
    throw wrong("W-CHK-6", "the manifest claims another number of chunks", rows.length, claimed);
  if (BigInt(fields.total_timesteps as number) !== BigInt(total)) {
    throw wrong("W-CHK-6", "the chunks have another length in all", total, fields.total_timesteps);
  }
  return rows;
}

/** The whole episode behind a manifest. */
export async function openChunks(reader: ShardReader, options: OpenOptions): Promise<Episode> {
  const manifest = parseChunkManifest((await readManifest(reader)).fields);
  const parts: Episode[] = [];
  try {
    for (const row of manifest.chunks) parts.push(await openChunk(reader, manifest, row, options));
    const lanes = await joinLanes(parts);
    const [first] = parts;
    const facts = {
      ...first,
      length: manifest.length,
      metadata: manifest.metadata ?? first.metadata,
      chunkIndex: null,
      totalChunks: null,
      timestepRange: null,
    };
    const files = [reader, ...parts.flatMap((part) => part.files)];
    return new Episode(facts, lanes, { files, edges: first.residualEdges });
  } catch (error) {
    for (const part of parts) await part.close();
    throw error;
  }
}

async function openChunk(
  reader: ShardReader,
  manifest: ChunkManifest,
  row: ChunkRow,
  options: OpenOptions,
): Promise<Episode> {
  const { source } = reader;
  if (source.sibling === undefined) {
    throw new ShardError("invalid_argument", "the chunks of a manifest can be opened beside a path or a URL only");
  }
  const chunk = await openShard(await openSibling(reader, row.uri), options);
  try {
    const size = chunk.header.totalFileSize;
    if (row.size !== null && row.size !== size) throw otherFile(`${row.size} bytes`, `${size} bytes`);
    const own = await fingerprint(chunk);
    if (row.fingerprint !== null && row.fingerprint !== own) throw otherFile(row.fingerprint, own);
    const episode = episodeOf([await readDescriptions(chunk)]);
    checkChunk(manifest, row, episode);
    return episode;
  } catch (error) {
    await chunk.close();
    throw located(error, chunk.path);
  }
}

async function openSibling(reader: ShardReader, uri: string) {
  try {
    return await (reader.source.sibling as NonNullable<typeof reader.source.sibling>)(uri);
  } catch (error) {
    if (!(error instanceof ShardError) || error.code !== "missing_file") throw error;
    throw broken("missing_file", "W-CHK-7", "a chunk is missing", { path: reader.path, found: uri, cause: error });
  }
}

function otherFile(expected: string, found: string): ShardError {
  return broken("reference_mismatch", "W-CHK-7", "the chunk is not the file that the manifest names", {
    expected,
    found,
  });
}

/** W-CHK-8: the chunk says of itself what the manifest says. */
function checkChunk(manifest: ChunkManifest, row: ChunkRow, chunk: Episode): void {
  const total = manifest.chunks.length;
  const facts: [string, Json, Json][] = [
    ["episode_id", manifest.episodeId, chunk.id],
    ["chunk_index", row.chunkIndex, chunk.chunkIndex],
    ["length_T", row.length, chunk.length],
    ["total_chunks", total, chunk.totalChunks || total],
  ];
  // [0, 0] of a chunk without steps reads as unset.
  if (chunk.length > 0) facts.push(["timestep_range", row.range.join(), chunk.timestepRange?.join() ?? null]);
  for (const [what, expected, found] of facts) {
    if (expected === found) continue;
    throw broken("chunk_discontinuity", "W-CHK-8", `the chunk says another ${what} than the manifest`, {
      expected: String(expected),
      found: String(found),
    });
  }
}
