// Which entry of a channel holds at the cursor.

import { useEffect, useState } from "preact/hooks";
import type { EpisodeModel } from "../model/episode";
import type { ChannelFacts } from "../model/facts";
import { secondsClock, stepAt } from "../plot-data/clocks";

/** Finds the entry that holds at a position of the axis: −1 before the first one. */
export type EntryAt = (position: number) => number;

/** `null` until the times of a channel with its own clock have been read, so that scrubbing reads nothing. */
export function useEntriesAt(episode: EpisodeModel, channels: readonly ChannelFacts[]): readonly (EntryAt | null)[] {
  const keys = channels.map((channel) => channel.key).join("\n");
  const [found, setFound] = useState<{ keys: string; entries: readonly (EntryAt | null)[] }>({ keys: "", entries: [] });
  useEffect(() => {
    const ending = new AbortController();
    const entries: (EntryAt | null)[] = channels.map((channel) => (channel.hasOwnClock ? null : steps(channel.length)));
    setFound({ keys, entries });
    for (const [i, channel] of channels.entries()) {
      if (!channel.hasOwnClock) continue;
      episode.reads.positions(channel.key, 0, channel.length, { signal: ending.signal }).then(
        (positions) => {
          if (ending.signal.aborted) return;
          const clock = secondsClock(positions);
          entries[i] = (position) => stepAt(clock, position);
          setFound({ keys, entries: [...entries] });
        },
        () => undefined, // reading the entries themselves says what is wrong
      );
    }
    return () => ending.abort();
  }, [episode, keys]);
  return found.keys === keys ? found.entries : channels.map(() => null);
}

function steps(length: number): EntryAt {
  return (position) => Math.max(-1, Math.min(Math.floor(position), length - 1));
}
