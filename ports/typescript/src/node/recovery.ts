// Recordings that were not finished.

import { invalid, type ShardError } from "../core/errors.js";
import { openRecording } from "../wshard/recording.js";
import { exists } from "./chunk-finisher.js";
import { saveEpisode } from "./episodes.js";
import { FileSource } from "./file.js";
import { loadZstd } from "./zstd.js";

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
  if (out === journal)
    throw invalid("the name of the journal does not end with .partial: say where the episode goes", { path: journal });
  if (await exists(out)) throw invalid("a file exists where the episode would go", { path: out });
  const recording = await openRecording(new FileSource(journal), { zstd: loadZstd });
  try {
    if (recording.continues && out === journal.replace(/\.partial$/, "")) {
      const expected = "another name for this part, or 'wshard recover', which joins all parts";
      throw invalid("the recording continues in other files", { path: journal, expected });
    }
    await saveEpisode(recording.episode, out);
    const { isFinished, error, cut, episode } = recording;
    return { steps: episode.length, isFinished, error, cut };
  } finally {
    await recording.close();
  }
}
