// What a residual says, and whether the signal says so too.

import { secondDifferenceSigns } from "@shard-format/core/wshard";
import type { Numbers } from "../../plot-data/samples";

/** Signs of some steps in columns of pixels: the share of +1 among them, NaN where there is none. */
export function shares(
  signs: ArrayLike<number>,
  dimensions: number,
  dimension: number,
  columnOf: (step: number) => number,
  columns: number,
): Float32Array {
  const plus = new Uint32Array(columns);
  const all = new Uint32Array(columns);
  const steps = dimensions === 0 ? 0 : signs.length / dimensions;
  for (let step = 0; step < steps; step++) {
    const sign = signs[step * dimensions + dimension] as number;
    const column = Math.floor(columnOf(step));
    if (sign === 0 || column < 0 || column >= columns) continue;
    all[column] = (all[column] as number) + 1;
    if (sign > 0) plus[column] = (plus[column] as number) + 1;
  }
  return Float32Array.from(all, (count, at) => (count === 0 ? Number.NaN : (plus[at] as number) / count));
}

/** A comparison of a residual with what the signal gives. */
export interface Agreement {
  readonly compared: number;
  readonly agreeing: number;
  /** 1 for each value that does not agree, as the values of the residual stand. */
  readonly differs: Uint8Array;
}

/** The values that a residual is of: the signal, or signal − prediction. Arrays of different length are compared as far as both go. */
export function subject(signal: Numbers, omen?: Numbers): Float64Array {
  const length = omen === undefined ? signal.length : Math.min(signal.length, omen.length);
  const values = new Float64Array(length);
  for (let i = 0; i < length; i++) values[i] = Number(signal[i]) - (omen === undefined ? 0 : Number(omen[i]));
  return values;
}

/**
 * Whether stored signs are those of `values`, which begin at step `first` of the episode. The signs begin at step `from`;
 * a step whose neighbours are not there is not compared, and neither is one that stores no sign (0).
 */
export function compareSigns(
  signs: Int8Array,
  from: number,
  values: Float64Array,
  first: number,
  dimensions: number,
): Agreement {
  const computed = secondDifferenceSigns(values, dimensions);
  const differs = new Uint8Array(signs.length);
  let [compared, agreeing] = [0, 0];
  const steps = values.length / dimensions;
  for (let i = 0; i < signs.length; i++) {
    const at = from - first + Math.floor(i / dimensions);
    if (signs[i] === 0 || at < 1 || at > steps - 2) continue;
    compared++;
    // One bit cannot tell a dip from a line: both are "not a peak".
    const isSame = (computed[at * dimensions + (i % dimensions)] as number) > 0 === (signs[i] as number) > 0;
    if (isSame) agreeing++;
    else differs[i] = 1;
  }
  return { compared, agreeing, differs };
}

/** Whether code × scale is within half a scale of `values`, the differences themselves. Both begin at step `from`. */
export function compareCodes(
  codes: Int8Array,
  from: number,
  values: Float64Array,
  scales: Float32Array,
  window: number,
  dimensions: number,
): Agreement {
  const differs = new Uint8Array(codes.length);
  let [compared, agreeing] = [0, 0];
  for (let i = 0; i < codes.length && i < values.length; i++) {
    const scale = scaleAt(scales, window, dimensions, from + Math.floor(i / dimensions), i % dimensions);
    const value = values[i] as number;
    if (!Number.isFinite(scale) || !Number.isFinite(value)) continue;
    compared++;
    // Rounding of the last bit is not an error.
    const isNear = Math.abs((codes[i] as number) * scale - value) <= Math.abs(scale) / 2 + 1e-9 * Math.abs(value);
    if (isNear) agreeing++;
    else differs[i] = 1;
  }
  return { compared, agreeing, differs };
}

/** The scale of a step and dimension; NaN where there is none. */
export function scaleAt(
  scales: Float32Array,
  window: number,
  dimensions: number,
  step: number,
  dimension: number,
): number {
  return scales[Math.floor(step / window) * dimensions + dimension] ?? Number.NaN;
}
