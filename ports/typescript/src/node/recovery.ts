// Recordings that were not finished.

import { invalid, ShardError } from "../core/errors.js";
import type { Episode } from "../wshard/episode.js";
import { ChunkFinisher, exists, RecordingNames } from "./chunk-finisher.js";
import { openEpisode, openRecording, saveEpisode } from "./episodes.js";

/** What came back of a recording. */
export interface Recovery {
  readonly steps: number;
  /** Whether the recorder had ended it. */
  readonly isFinished: boolean;
  /** Why reading stopped before the end of the journal; null if it did not. */
  readonly error: ShardError | null;
  /** By block, entries that were cut because other channels end earlier. */
  readonly cut: ReadonlyMap<string, number>;
}

/**
 * Saves what a journal holds as an episode; the journal stays as it is.
 *
 * @param journal the file `….wshard.partial`
 * @param out the episode; by default the name of the journal without `.partial`
 */
export async function recoverRecording(journal: string, out = journal.replace(/\.partial$/, "")): Promise<Recovery> {
  if (out === journal) {
    throw invalid("the name of the journal does not end with .partial: say where the episode goes", { path: journal });
  }
  const { recovery } = await save(journal, out);
  return recovery;
}

/**
 * Recovers a recording in several files: makes chunks of the journals that are left, beside those that are finished, and
 * a manifest that names all of them. The journals stay as they are.
 *
 * @param path any journal of the recording, or the name for which it was started
 * @returns what came back of the whole; `path` is the manifest
 */
export async function recoverChunks(path: string): Promise<Recovery & { readonly path: string }> {
  const names = RecordingNames.ofJournal(path);
  const found = { isFinished: false, error: null as ShardError | null, cut: new Map<string, number>() };
  let chunks: ChunkFinisher | null = null;
  for (let index = 0; ; index++) {
    const [chunk, journal] = [names.chunk(index), names.journal(index)];
    let part: ChunkPart;
    if (await exists(chunk)) part = await readChunk(chunk);
    else if (await exists(journal)) {
      let saved: Awaited<ReturnType<typeof save>>;
      try {
        saved = await save(journal, chunk);
      } catch (error) {
        // The recorder was killed while it started this file, of which nothing can be read.
        if (index === 0 || !(error instanceof ShardError) || error.rule === undefined) throw error;
        Object.assign(found, { isFinished: false, error: found.error ?? error });
        continue;
      }
      Object.assign(found, saved.recovery);
      part = saved.facts;
    } else break;
    chunks ??= new ChunkFinisher(names, part, {});
    if (part.timestepRange !== null && part.timestepRange[0] !== chunks.steps) {
      throw invalid("steps are missing before this part of the recording", {
        path: chunk,
        expected: chunks.steps,
        found: part.timestepRange[0],
      });
    }
    await chunks.add(chunk, part);
  }
  if (chunks === null) throw invalid("there is no such recording", { path });
  await chunks.writeManifest();
  return { ...found, steps: chunks.steps, path: names.manifest };
}

type ChunkPart = Pick<Episode, "id" | "envId" | "length" | "metadata" | "timestepRange">;

async function readChunk(path: string): Promise<ChunkPart> {
  const episode = await openEpisode(path);
  await episode.close();
  return episode;
}

async function save(journal: string, out: string): Promise<{ recovery: Recovery; facts: ChunkPart }> {
  if (await exists(out)) throw invalid("a file exists where the episode would go", { path: out });
  const recording = await openRecording(journal);
  try {
    const { isFinished, error, cut, episode, continues } = recording;
    const isChunk = episode.chunkIndex !== null;
    if (isChunk && !/_chunk_[0-9]{4,}\.wshard$/.test(out)) {
      throw invalid("the recording has several files", {
        path: journal,
        expected: "recoverChunks",
        found: continues ? "more follow" : "others",
      });
    }
    await saveEpisode(episode, out);
    return { recovery: { steps: episode.length, isFinished, error, cut }, facts: episode };
  } finally {
    await recording.close();
  }
}
