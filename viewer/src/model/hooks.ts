// Reads as hooks: they ask again when their inputs change, cancel reads that are no longer needed, and return the
// last answer until the next one is there.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { EpisodeModel } from "./episode";
import type { Columns, Range, ReadOptions, Window } from "./reads";

export interface Answer<T> {
  /** The newest answer; undefined before the first. */
  readonly value: T | undefined;
  /** Why there is no newer one. */
  readonly error: Error | undefined;
}

const nothing = { value: undefined, error: undefined };

/**
 * Asks when `inputs` change. An `ask` that returns null asks nothing. It asks before the page is painted: the answer of a
 * plot that moves is there for the next frame.
 */
export function useAnswer<T>(ask: (options: ReadOptions) => Promise<T> | null, inputs: readonly unknown[]): Answer<T> {
  const [answer, setAnswer] = useState<Answer<T>>(nothing);
  useLayoutEffect(() => {
    const ending = new AbortController();
    ask({ signal: ending.signal })?.then(
      (value) => {
        if (!ending.signal.aborted) setAnswer({ value, error: undefined });
      },
      (error: unknown) => {
        if (ending.signal.aborted) return;
        setAnswer((last) => ({ ...last, error: error instanceof Error ? error : new Error(String(error)) }));
      },
    );
    return () => ending.abort();
  }, inputs);
  return answer;
}

/**
 * A count that is told at most four times a second. What counts as long as something is read would otherwise end each
 * question before its answer.
 */
export function useSlowly(count: number): number {
  const [told, tell] = useState(count);
  const last = useRef(0);
  useLayoutEffect(() => {
    if (count === told) return;
    const timer = setTimeout(
      () => {
        last.current = performance.now();
        tell(count);
      },
      Math.max(0, last.current + 250 - performance.now()),
    );
    return () => clearTimeout(timer);
  }, [count, told]);
  return told;
}

/** Columns of some dimensions; asks again when more of the channel has arrived. */
export function useColumns(
  { reads }: EpisodeModel,
  key: string,
  dims: readonly number[],
  range: Range,
  width: number,
): Answer<Columns> {
  const arrived = useSlowly(reads.arrived(key).value);
  const columns = Math.max(1, Math.round(width));
  return useAnswer(
    (options) => (dims.length === 0 ? null : reads.columns(key, dims, range, columns, options)),
    [reads, key, dims.join(), range.start, range.end, columns, arrived],
  );
}

/** Exact values of the entries from `start` up to `end`. */
export function useWindow({ reads }: EpisodeModel, key: string, start: number, end: number): Answer<Window> {
  return useAnswer(
    (options) => (start < end ? reads.window(key, start, end, options) : null),
    [reads, key, start, end],
  );
}

/** The entry of a channel that holds at a position, −1 before the first; undefined until it is known. */
export function useEntryAt({ reads }: EpisodeModel, key: string, position: number): number | undefined {
  return useAnswer((options) => reads.entryAt(key, position, options), [reads, key, position]).value;
}
