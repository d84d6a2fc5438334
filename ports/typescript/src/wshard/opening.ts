// Opening an episode, whatever files it has.

import { located } from "../core/errors.js";
import { type OpenOptions, openShard } from "../core/reader.js";
import { Role } from "../core/registry.js";
import type { SourceLike } from "../core/source.js";
import { openChunks } from "./chunks.js";
import { type Episode, episodeOf, readDescriptions } from "./episode.js";
import { attachSidecars } from "./sidecars.js";

/** How an episode is opened. */
export interface EpisodeOptions extends OpenOptions {
  /** Files with lanes or edits that were added to this episode later, in the order of their names. */
  readonly sidecars?: readonly SourceLike[];
}

/** Opens an episode: a file with its sidecars, or all chunks that a manifest names. Arrays are not read. */
export async function openEpisode(source: SourceLike, options: EpisodeOptions = {}): Promise<Episode> {
  const reader = await openShard(source, options);
  try {
    if (reader.header.role === Role.manifest) return await openChunks(reader, options);
    const opened = await readDescriptions(reader);
    if ((options.sidecars ?? []).length === 0) return episodeOf([opened]);
    return await attachSidecars(opened, options.sidecars ?? [], options);
  } catch (error) {
    await reader.close();
    throw located(error, reader.path);
  }
}
