// Codes of a codebook over time. No DOM.

import type { CodeCount } from "../../plot-data/summary";
import type { EntryAt } from "../entry-at";

/** How many equally frequent codes would be as varied: the perplexity. */
export function effectiveCodes(counts: readonly CodeCount[]): number {
  const all = counts.reduce((sum, { count }) => sum + count, 0);
  return Math.exp(-counts.reduce((sum, { count }) => sum + (count / all) * Math.log(count / all), 0));
}

/** The entries that each column of pixels shows: the first, and the one after the last. */
export function entriesOfColumns(
  entryAt: EntryAt,
  length: number,
  from: number,
  to: number,
  width: number,
): [number, number][] {
  const columns: [number, number][] = [];
  const at = (x: number) => entryAt(from + (x / width) * (to - from));
  let first = Math.max(0, at(0));
  for (let column = 0; column < width; column++) {
    // An entry that a column begins with goes on into it.
    const end = Math.min(length, at(column + 1) + 1);
    const start = Math.max(0, at(column));
    columns.push(start < end ? [Math.min(first, start), end] : [0, 0]);
    first = Math.max(first, end);
  }
  return columns;
}
