// Playing: the cursor moves with the clock of the episode.

import { effect } from "@preact/signals";
import type { EpisodeModel } from "../model/episode";
import type { View } from "../state/view";

/** Steps per second where the episode does not say. */
const usualRate = 30;

export const speeds: readonly number[] = [0.1, 0.25, 0.5, 1, 2, 4, 8, 16];

/** Moves the cursor while `view.isPlaying`. Returns what ends it. */
export function startPlaying(view: View, episode: () => EpisodeModel): () => void {
  let frame = 0;
  let last = 0;
  let position = 0;
  const stop = effect(() => {
    cancelAnimationFrame(frame);
    if (!view.isPlaying.value) return;
    last = performance.now();
    position = view.cursor.peek();
    if (position >= view.length.peek() - 1 && !view.isLooping.peek()) position = 0;
    const next = (now: number) => {
      const rate = episode().facts.rate ?? usualRate;
      // Somebody has moved the cursor meanwhile.
      if (Math.floor(position) !== Math.floor(view.cursor.peek())) position = view.cursor.peek();
      // A page in the background must not jump when it comes back.
      position += (Math.min(now - last, 250) / 1000) * rate * view.speed.peek();
      last = now;
      const loop = view.isLooping.peek() ? (view.selection.peek() ?? view.range.peek()) : null;
      const end = loop === null ? view.length.peek() - 1 : Math.min(loop.end, view.length.peek());
      if (position >= end) {
        if (loop === null) {
          view.seek(end);
          view.isPlaying.value = false;
          return;
        }
        position = Math.ceil(loop.start);
      }
      view.seek(Math.floor(position));
      frame = requestAnimationFrame(next);
    };
    frame = requestAnimationFrame(next);
  });
  return () => {
    cancelAnimationFrame(frame);
    stop();
  };
}
