// What the values of a selection are like.

import { forPieces, part, type Samples } from "./samples";

/** The summary of the finite values, NaN if there are none, and how many others there are. */
export interface Summary {
  readonly count: number;
  readonly missing: number;
  readonly plusInfinite: number;
  readonly minusInfinite: number;
  readonly min: number;
  readonly max: number;
  readonly mean: number;
  readonly std: number;
  readonly first: number;
  /** Whether all values are the same: such a dimension often is a broken sensor. */
  readonly constant: boolean;
}

export function summarize(samples: Samples): Summary {
  let [count, missing, plusInfinite, minusInfinite] = [0, 0, 0, 0];
  let min = Number.NaN;
  let max = Number.NaN;
  let first = Number.NaN;
  // Welford's way: a sum of squares would lose the spread of values that are far from 0. Values are scaled by the
  // first power of two that keeps the squares of the largest doubles finite.
  const small = 2 ** -520;
  let mean = 0;
  let squares = 0;
  let scaled = 1;
  forPieces(samples, (values) => {
    for (const value of values) {
      if (!Number.isFinite(value)) {
        if (Number.isNaN(value)) missing++;
        else if (value > 0) plusInfinite++;
        else minusInfinite++;
        continue;
      }
      if (count++ === 0) first = value;
      if (!(min <= value)) min = value;
      if (!(max >= value)) max = value;
      if (scaled === 1 && Math.abs(value) > 1e150) {
        mean *= small;
        squares *= small * small;
        scaled = small;
      }
      const difference = value * scaled - mean;
      mean += difference / count;
      squares += difference * (value * scaled - mean);
    }
  });
  const none = count === 0;
  return {
    count,
    missing,
    plusInfinite,
    minusInfinite,
    min,
    max,
    mean: none ? Number.NaN : mean / scaled,
    std: none ? Number.NaN : Math.sqrt(squares / count) / scaled,
    first,
    constant: count > 1 && min === max && missing + plusInfinite + minusInfinite === 0,
  };
}

/** Counts of the finite values in `bins` equal parts of the range from `min` to `max`. */
export interface Histogram {
  readonly min: number;
  readonly max: number;
  readonly counts: Uint32Array;
}

/** The histogram of the finite values between `min` and `max`. A range of no width has all of them in one bin. */
export function histogram(samples: Samples, bins: number, min: number, max: number): Histogram {
  const counts = new Uint32Array(bins);
  // Half of each, because the difference of the largest and the smallest double is infinite.
  const width = max / 2 - min / 2;
  forPieces(samples, (values) => {
    for (const value of values) {
      if (!(value >= min && value <= max)) continue;
      const bin = width > 0 ? Math.min(bins - 1, Math.floor(((value / 2 - min / 2) / width) * bins)) : 0;
      counts[bin] = (counts[bin] as number) + 1;
    }
  });
  return { min, max, counts };
}

/** Quantiles of the finite values, and of how many values they were taken. */
export interface Quantiles {
  readonly values: number[];
  readonly sampled: number;
}

/**
 * Quantiles, `shares` between 0 and 1. Of more than `most` values, evenly spread ones are taken: what shows the result
 * says so.
 */
export function quantiles(samples: Samples, shares: readonly number[], most = 200_000): Quantiles {
  const every = Math.max(1, Math.ceil(samples.length / most));
  const taken: Samples = { ...samples, stride: samples.stride * every, length: Math.ceil(samples.length / every) };
  const finite = new Float64Array(taken.length);
  let count = 0;
  forPieces({ ...taken, first: 0 }, (values) => {
    for (const value of values) if (Number.isFinite(value)) finite[count++] = value;
  });
  const sorted = finite.subarray(0, count).sort();
  const values = shares.map((share) => {
    if (count === 0) return Number.NaN;
    const place = share * (count - 1);
    const low = sorted[Math.floor(place)] as number;
    const high = sorted[Math.ceil(place)] as number;
    return low + (high - low) * (place - Math.floor(place));
  });
  return { values, sampled: taken.length };
}

/** A code of a codebook, and how often it is there. */
export interface CodeCount {
  readonly code: number;
  readonly count: number;
}

/** How often each code is in the steps from `from` to `to`, the most frequent first. Values that are no number are left out. */
export function codeCounts(samples: Samples, from: number, to: number): CodeCount[] {
  const counts = new Map<number, number>();
  forPieces(part(samples, from, to), (values) => {
    for (const value of values) if (!Number.isNaN(value)) counts.set(value, (counts.get(value) ?? 0) + 1);
  });
  return Array.from(counts, ([code, count]) => ({ code, count })).sort((a, b) => b.count - a.count || a.code - b.code);
}
