// Spans of text on the time axis, whether they are labels or a text channel whose entries repeat.

import type { Interval } from "../../model/facts";

/** The entries of a text channel as spans: neighbours that say the same are one. The last one ends at `end`. */
export function spansOf(texts: readonly string[], positions: ArrayLike<number>, end: number): Interval[] {
  const spans: Interval[] = [];
  for (let i = 0; i < texts.length; ) {
    const text = texts[i] as string;
    let next = i + 1;
    while (next < texts.length && texts[next] === text) next++;
    const start = positions[i] as number;
    const stop = next < texts.length ? (positions[next] as number) : Math.max(start, end);
    if (text !== "") spans.push({ start, end: stop, text, source: "", confidence: null });
    i = next;
  }
  return spans;
}

/** Rows for spans, so that those which overlap stand below each other; and how many rows there are. */
export function rowsOf(spans: readonly Interval[]): { rows: Int32Array; count: number } {
  const order = Array.from(spans.keys()).sort(
    (a, b) => (spans[a] as Interval).start - (spans[b] as Interval).start || a - b,
  );
  const rows = new Int32Array(spans.length);
  const ends: number[] = [];
  for (const at of order) {
    const { start, end } = spans[at] as Interval;
    let row = ends.findIndex((last) => last <= start);
    // Rows beyond these would be too low to read: all further spans share the last one.
    if (row < 0) row = ends.length < 64 ? ends.push(-Infinity) - 1 : 63;
    ends[row] = Math.max(ends[row] as number, end);
    rows[at] = row;
  }
  return { rows, count: ends.length };
}

/** The spans at a position. A span without length counts at its start. */
export function spansAt(spans: readonly Interval[], position: number): Interval[] {
  return spans.filter(
    ({ start, end }) => start <= position && (position < end || (start === end && position === start)),
  );
}

/** The spans in which all words of a search occur, in the text or in the source. */
export function search(spans: readonly Interval[], wanted: string): Interval[] {
  const parts = wanted.toLocaleLowerCase().split(/\s+/).filter(Boolean);
  if (parts.length === 0) return [...spans];
  return spans.filter(({ text, source }) => {
    const all = `${text}\n${source}`.toLocaleLowerCase();
    return parts.every((part) => all.includes(part));
  });
}

/** Which colour each text has, in the order in which the texts come: the first eight of them differ. */
export function coloursOf(spans: readonly Interval[]): ReadonlyMap<string, number> {
  const colours = new Map<string, number>();
  for (const { text } of spans) if (!colours.has(text)) colours.set(text, colours.size % 8);
  return colours;
}
