// A view of lines: two values for each column of pixels, or the samples themselves where they are few.
// All lines of a plot get the same columns, so channels with different clocks share one x axis.

import type { Clock } from "./clocks";
import { Extent, MINUS, PLUS } from "./extent";
import { type Line, reduceRange } from "./pyramid";
import { holds, valueAt } from "./samples";

/** Fewer samples than this a column are drawn as they are. */
const SAMPLES_A_COLUMN = 2;

/** The range of the x axis that a plot shows, and the columns of pixels it has. */
export interface View {
  readonly from: number;
  readonly to: number;
  readonly width: number;
}

/** A line in a view. Without a finite value, `min` and `max` are NaN. */
export interface Reduced {
  /** Whether each place is a sample of its own; otherwise it is a column. */
  readonly original: boolean;
  /** Where the samples or the middles of the columns are. */
  readonly x: Float64Array;
  readonly min: Float64Array;
  readonly max: Float64Array;
  /** MISSING, PLUS, MINUS, UNREAD of each place. */
  readonly flags: Uint8Array;
  /** How many samples the view covers, and whether the place has any. */
  readonly samples: number;
  readonly counts: Uint32Array;
}

/** What of a line is in a view. */
export function columns(line: Line, clock: Clock, view: View): Reduced {
  const length = Math.min(clock.length, line.pyramid.length);
  const from = Math.min(length, clock.index(view.from));
  const to = Math.max(from, Math.min(length, after(clock, view.to)));
  // One more sample on either side, so that lines leave the plot instead of ending in it.
  const [first, end] = [Math.max(0, from - 1), Math.min(length, to + 1)];
  const few = to - from < SAMPLES_A_COLUMN * view.width;
  if (few && line.samples !== undefined && holds(line.samples, first, end))
    return original(line, clock, first, end, to - from);

  const { width } = view;
  const reduced = places(width, false, to - from);
  const extent = new Extent();
  const step = (view.to - view.from) / width;
  for (let column = 0, low = from; column < width; column++) {
    const x = column === width - 1 ? view.to : view.from + (column + 1) * step;
    const high = column === width - 1 ? to : Math.max(low, Math.min(to, clock.index(x)));
    reduced.x[column] = view.from + (column + 0.5) * step;
    extent.reset();
    reduceRange(line, low, high, extent);
    reduced.min[column] = extent.min;
    reduced.max[column] = extent.max;
    reduced.flags[column] = extent.flags;
    reduced.counts[column] = high - low;
    low = high;
  }
  return reduced;
}

function original({ samples }: Line, clock: Clock, first: number, end: number, count: number): Reduced {
  const reduced = places(end - first, true, count);
  const extent = new Extent();
  for (let i = 0; i < end - first; i++) {
    extent.reset();
    if (samples !== undefined) extent.add(valueAt(samples, first + i));
    reduced.x[i] = clock.at(first + i);
    reduced.min[i] = extent.min;
    reduced.max[i] = extent.max;
    reduced.flags[i] = extent.flags;
    reduced.counts[i] = 1;
  }
  return reduced;
}

function places(count: number, original: boolean, samples: number): Reduced {
  return {
    original,
    x: new Float64Array(count),
    min: new Float64Array(count),
    max: new Float64Array(count),
    flags: new Uint8Array(count),
    samples,
    counts: new Uint32Array(count),
  };
}

/** The first step after a position. */
function after(clock: Clock, x: number): number {
  let step = clock.index(x);
  if (step < clock.length && clock.at(step) <= x) {
    let high = clock.length;
    while (high - step > 1) {
      const middle = (step + high) >>> 1;
      if (clock.at(middle) > x) high = middle;
      else step = middle;
    }
    step++;
  }
  return step;
}

/** Where a line is infinite: marks at the upper and the lower edge of the plot. */
export function infinities({ x, flags }: Reduced): { plus: number[]; minus: number[] } {
  const where = (flag: number) => Array.from(x.filter((_, i) => (flags[i] as number) & flag));
  return { plus: where(PLUS), minus: where(MINUS) };
}

/** The finite extremes of lines in a view, for the y axis; undefined if there is no finite value. */
export function valueRange(lines: readonly Reduced[]): [number, number] | undefined {
  const extent = new Extent();
  for (const { min, max } of lines)
    for (let i = 0; i < min.length; i++) extent.merge(min[i] as number, max[i] as number, 0);
  return Number.isNaN(extent.min) ? undefined : [extent.min, extent.max];
}
