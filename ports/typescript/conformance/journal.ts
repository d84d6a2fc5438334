import { encodeEpisode, openEpisode, openRecording } from "../src/wshard/node.js";
import { tellEpisode } from "./episode.js";
import type { Kind } from "./kind.js";

/** What it has, in the letters of tests/conformance/ports.py. */
export const journalFeatures = "OQ";

export const journal: Kind = {
  async read(file) {
    const recording = await openRecording(file);
    try {
      const saved = await openEpisode(await encodeEpisode(recording.episode));
      const { error } = recording;
      return {
        cut: Object.fromEntries([...recording.cut].map(([block, count]) => [block, String(count)])),
        episode: await tellEpisode(saved),
        finished: recording.isFinished,
        read_bytes: String(recording.readBytes),
        ...(error === null ? {} : { error: error.code, rule: error.rule }),
      };
    } finally {
      await recording.close();
    }
  },
};
