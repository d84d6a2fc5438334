// Episodes on disk.

import { readdir, stat } from "node:fs/promises";
import { compareUtf8 } from "../core/bytes.js";
import { invalid, type ShardError } from "../core/errors.js";
import { ioError, type SourceLike } from "../core/source.js";
import type { ZstdProvider } from "../core/zstd.js";
import type { Episode } from "../wshard/episode.js";
import type { EpisodeInput } from "../wshard/input.js";
import { type EpisodeOptions, openEpisode as openSource } from "../wshard/opening.js";
import { writeOverviews } from "../wshard/overview-writing.js";
import {
  type OverviewOptions,
  type Overviews,
  openOverviews as openBeside,
  overviewSuffix,
} from "../wshard/overviews.js";
import { openRecording as openJournal, type Recording } from "../wshard/recording.js";
import { type SaveOptions, writeEpisode } from "../wshard/writing.js";
import { FileSource } from "./file.js";
import { FileSink, type FileSinkOptions } from "./file-sink.js";
import { whileLocked } from "./locking.js";
import { loadZstd } from "./zstd.js";

const mostAttempts = 3;

/**
 * Opens an episode. A string is a path, unless it starts with http: or https:; the sidecars of a path, in the folder
 * `<path>.lanes`, are opened with it. Close the episode.
 */
export async function openEpisode(source: SourceLike, options: EpisodeOptions = {}): Promise<Episode> {
  const withZstd = { zstd: loadZstd, ...options };
  if (!isPath(source)) return openSource(source, withZstd);
  let { opened, error } = await tryToOpen(source, withZstd);
  // A writer that was just replacing the files can make what was read contradictory: look again (W-SID-7).
  for (let attempt = 0; attempt < mostAttempts && (opened?.problems.length ?? 1) > 0; attempt++) {
    const before = await stateOf(source);
    await opened?.close();
    ({ opened, error } = await tryToOpen(source, withZstd));
    if (before === (await stateOf(source))) break;
  }
  if (opened === undefined) throw error;
  return opened;
}

/** Opens the journal of a recording, which may go on meanwhile. A string is a path, as for `openEpisode`. */
export async function openRecording(source: SourceLike, options: { zstd?: ZstdProvider } = {}): Promise<Recording> {
  const from = isPath(source) ? new FileSource(source) : source;
  return openJournal(from, { zstd: loadZstd, ...options });
}

/** Opens the overviews beside an open episode; null if there are none. A string as `file` is a path, unless it is a URL. */
export async function openOverviews(episode: Episode, options: OverviewOptions = {}): Promise<Overviews | null> {
  const { file } = options;
  const source = isPath(file as SourceLike) ? { file: new FileSource(file as string) } : {};
  return openBeside(episode, { zstd: loadZstd, ...options, ...source });
}

/**
 * Writes the overview file of an episode on disk, `<path>.overview`: overviews of its long channels, without posters. The
 * episode does not change. Writes nothing and returns false if no channel is that long.
 */
export async function saveOverviews(path: string, options: FileSinkOptions = {}): Promise<boolean> {
  const episode = await openEpisode(path);
  try {
    return await writeOverviews(new FileSink(path + overviewSuffix, options), episode);
  } finally {
    await episode.close();
  }
}

function isPath(source: SourceLike): source is string {
  return typeof source === "string" && !/^https?:/i.test(source);
}

async function tryToOpen(
  path: string,
  options: EpisodeOptions,
): Promise<{ opened?: Episode; error?: ShardError | Error }> {
  try {
    const sidecars = options.sidecars ?? (await sidecarsOf(path)).map((file) => new FileSource(file));
    return { opened: await openSource(new FileSource(path), { ...options, sidecars }) };
  } catch (error) {
    return { error: error as Error };
  }
}

/** The sidecars of an episode, in the order in which they are read. */
export async function sidecarsOf(path: string): Promise<string[]> {
  try {
    const names = await readdir(`${path}.lanes`);
    return names
      .filter((name) => name.endsWith(".wshard"))
      .sort(compareUtf8)
      .map((name) => `${path}.lanes/${name}`);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOENT" || code === "ENOTDIR" || code === "ENAMETOOLONG") return [];
    throw ioError("cannot list the sidecars", error, `${path}.lanes`);
  }
}

/** What changes when a writer replaces an episode or its sidecars. */
async function stateOf(path: string): Promise<string> {
  const files = [path, ...(await sidecarsOf(path))];
  const states = files.map(async (file) => {
    const found = await stat(file, { bigint: true }).catch(() => null);
    return found === null ? "" : `${file} ${found.ino} ${found.size} ${found.mtimeNs}`;
  });
  return (await Promise.all(states)).join("\n");
}

/**
 * Writes an episode. It appears under its name when it is complete; until then, and after an error, what was there stays.
 * An episode with sidecars, which belong to what it holds, is not replaced.
 */
export async function saveEpisode(
  episode: EpisodeInput | Episode,
  path: string,
  options: SaveOptions & FileSinkOptions = {},
): Promise<void> {
  await whileLocked(path, async () => {
    await checkNoSidecars(path);
    await writeEpisode(new FileSink(path, options), episode, { zstd: loadZstd, ...options });
  });
}

/** Refuses to replace an episode that has sidecars. */
export async function checkNoSidecars(path: string): Promise<void> {
  const [sidecar] = await sidecarsOf(path);
  if (sidecar === undefined) return;
  const problem = "the episode has sidecars, which belong to what it holds now: remove them, or write to another path";
  throw invalid(problem, { path, found: sidecar });
}
