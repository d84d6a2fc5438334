// Values over time as cells of colour. No DOM.

import { type ColourMap, colourIndex, colourTable } from "../../plot-data/colours";
import type { Reduced } from "../../plot-data/columns";
import { MINUS, PLUS } from "../../plot-data/extent";

export interface Span {
  readonly min: number;
  readonly max: number;
}

/** What a cell shows that stands for several samples. */
export const kinds = ["both", "largest", "least"] as const;
export type Kind = (typeof kinds)[number];

/** A row of cells: for each of the columns, which colour (0 to 255) its values have; −1 for none. */
export type Row = Int16Array;

/** For each column of pixels of a line, the place of the line that holds there; −1 before the first. */
export function placesIn(line: Reduced, from: number, to: number, width: number): Int32Array {
  const places = new Int32Array(width).fill(-1);
  if (!line.original) {
    for (let column = 0; column < width; column++) {
      places[column] = Math.min(line.x.length - 1, Math.floor((column * line.x.length) / width));
    }
    return places;
  }
  // A sample holds until the next one; the last one as long as the one before.
  const { x } = line;
  const last = x.length - 1;
  const end =
    last < 0 ? -Infinity : (x[last] as number) + (last > 0 ? (x[last] as number) - (x[last - 1] as number) : 1);
  for (let column = 0, place = -1; column < width; column++) {
    const at = from + ((column + 0.5) / width) * (to - from);
    while (place < last && (x[place + 1] as number) <= at) place++;
    places[column] = at < end ? place : -1;
  }
  return places;
}

/** The extremes of a place as numbers that have a colour: infinities count, a place without any value is NaN. */
function extremes(line: Reduced, place: number): Span {
  const flags = line.flags[place] as number;
  const finite = { min: line.min[place] as number, max: line.max[place] as number };
  const min = flags & MINUS ? -Infinity : Number.isNaN(finite.min) && flags & PLUS ? Infinity : finite.min;
  const max = flags & PLUS ? Infinity : Number.isNaN(finite.max) && flags & MINUS ? -Infinity : finite.max;
  return { min, max };
}

/**
 * The upper and the lower half of a row of cells. With `both`, the upper half shows the largest value and the lower
 * half the least, so that a spike in either direction is seen.
 */
export function rowOf(line: Reduced, places: Int32Array, span: Span, map: ColourMap, kind: Kind): [Row, Row] {
  const rows: [Row, Row] = [new Int16Array(places.length), new Int16Array(places.length)];
  for (let column = 0; column < places.length; column++) {
    const place = places[column] as number;
    const { min, max } = place < 0 ? { min: Number.NaN, max: Number.NaN } : extremes(line, place);
    rows[0][column] = colourIndex(kind === "least" ? min : max, { map, ...span });
    rows[1][column] = colourIndex(kind === "largest" ? max : min, { map, ...span });
  }
  return rows;
}

/**
 * Where rows are too low to show two halves, and where several dimensions share a row: of all values, the one that is
 * farthest from the middle of the colours.
 */
export function outermost(rows: readonly Row[]): Row {
  const found = new Int16Array(rows[0]?.length ?? 0).fill(-1);
  for (const row of rows) {
    for (let column = 0; column < found.length; column++) {
      const [now, next] = [found[column] as number, row[column] as number];
      if (next >= 0 && (now < 0 || Math.abs(next - 127.5) > Math.abs(now - 127.5))) found[column] = next;
    }
  }
  return found;
}

/** Rows as pixels. */
export function paintRows(rows: readonly Row[], map: ColourMap, pixels: Uint8ClampedArray): void {
  const table = colourTable(map);
  let at = 0;
  for (const row of rows) {
    for (const index of row) {
      if (index >= 0) {
        pixels[at] = table[3 * index] as number;
        pixels[at + 1] = table[3 * index + 1] as number;
        pixels[at + 2] = table[3 * index + 2] as number;
        pixels[at + 3] = 255;
      }
      at += 4;
    }
  }
}
