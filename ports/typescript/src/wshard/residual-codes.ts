/**
 * Residuals as numbers: how a signal bends, or how far a prediction was off (spec/wshard.md, section 9).
 *
 * TypedArray are 64-bit floats in C order, `dimensions` of them for each step.
 */

import { halfToEven } from "../core/dtypes.js";
import { ShardError } from "../core/errors.js";

/** What the first and the last step get, which have one neighbour only. */
export type Edges = "pad" | "overlap";

/** The window of `delta_q` that a row need not state. */
export const defaultWindow = 256;
const largestCode = 127;
const largestF32 = 3.4028234663852886e38;

/** The sign of 2·x[t] − x[t−1] − x[t+1] of each dimension: +1 at a peak, −1 in a dip, 0 on a line and for NaN. */
export function secondDifferenceSigns(x: Float64Array, dimensions = 1, edges: Edges = "pad"): Int8Array {
  const signs = new Int8Array(x.length);
  const last = x.length - dimensions;
  for (let at = dimensions; at < last; at++) {
    const bend = 2 * x[at] - x[at - dimensions] - x[at + dimensions];
    signs[at] = bend > 0 ? 1 : bend < 0 ? -1 : 0;
  }
  if (edges === "overlap" && x.length >= 3 * dimensions) {
    signs.copyWithin(0, dimensions, 2 * dimensions);
    signs.copyWithin(last, last - dimensions, last);
  }
  return signs;
}

/** Bytes of one dimension. */
export function packedSize(steps: number): number {
  return Math.ceil(steps / 8);
}

/** One bit for each step, 1 where the sign is above 0, least significant bit first; one dimension after another. */
export function packSigns(signs: Int8Array, dimensions = 1): Uint8Array {
  const steps = dimensions ? signs.length / dimensions : 0;
  const size = packedSize(steps);
  const packed = new Uint8Array(size * dimensions);
  for (let at = 0, step = 0; step < steps; step++) {
    for (let dimension = 0; dimension < dimensions; dimension++, at++) {
      if (signs[at] > 0) packed[dimension * size + (step >> 3)] |= 1 << (step & 7);
    }
  }
  return packed;
}

/** The signs [steps, dimensions] of packed bits: +1 and −1, and 0 at the edges if they were padded. */
export function unpackSigns(packed: Uint8Array, steps: number, edges: Edges = "pad"): Int8Array {
  const size = packedSize(steps);
  const dimensions = size ? packed.length / size : 0;
  const signs = new Int8Array(steps * dimensions);
  for (let at = 0, step = 0; step < steps; step++) {
    const isEdge = edges === "pad" && (step === 0 || step === steps - 1);
    for (let dimension = 0; dimension < dimensions; dimension++, at++) {
      if (isEdge) continue;
      signs[at] = (packed[dimension * size + (step >> 3)] >> (step & 7)) & 1 ? 1 : -1;
    }
  }
  return signs;
}

/** Differences as 8-bit codes with one scale for each window of steps and each dimension. */
export interface Quantised {
  readonly codes: Int8Array;
  readonly scales: Float32Array;
}

/** Quantises differences; the reconstruction is within half a scale. */
export function quantise(differences: Float64Array, dimensions = 1, window = defaultWindow): Quantised {
  const steps = dimensions ? differences.length / dimensions : 0;
  const scales = new Float32Array(Math.ceil(steps / window) * dimensions);
  const codes = new Int8Array(differences.length);
  for (let start = 0, row = 0; start < steps; start += window, row++) {
    const first = start * dimensions;
    const end = Math.min(steps, start + window) * dimensions;
    for (let dimension = 0; dimension < dimensions; dimension++) {
      let peak = 0;
      for (let at = first + dimension; at < end; at += dimensions) {
        const size = Math.abs(differences[at]);
        if (!(size <= largestCode * largestF32)) throw notQuantisable(differences[at]);
        peak = Math.max(peak, size);
      }
      const scale = scaleOf(peak);
      scales[row * dimensions + dimension] = scale;
      for (let at = first + dimension; at < end; at += dimensions) codes[at] = halfToEven(differences[at] / scale);
    }
  }
  return { codes, scales };
}

/** The smallest scale we use for differences up to `peak`: nearest f32, or the next one above. */
function scaleOf(peak: number): number {
  if (peak === 0) return 1;
  const scale = new Float32Array([peak / largestCode]);
  if (scale[0] * largestCode < peak) new Uint32Array(scale.buffer)[0]++;
  return scale[0];
}

function notQuantisable(value: number): ShardError {
  return new ShardError("invalid_argument", "a difference cannot be quantised", {
    expected: "a number up to 127 times the largest f32",
    found: String(value),
  });
}

/** The differences that codes and scales stand for. */
export function dequantise(quantised: Quantised, dimensions = 1, window = defaultWindow): Float64Array {
  const { codes, scales } = quantised;
  const differences = new Float64Array(codes.length);
  for (let at = 0; at < codes.length; at++) {
    const row = Math.floor(at / dimensions / window);
    differences[at] = codes[at] * scales[row * dimensions + (at % dimensions)];
  }
  return differences;
}

// --- joining chunks

/** The packed bits of parts that follow one another in time. */
export function joinSigns(parts: readonly { packed: Uint8Array; steps: number }[]): Uint8Array {
  const filled = parts.filter((part) => part.steps > 0);
  const steps = filled.reduce((sum, part) => sum + part.steps, 0);
  const first = filled[0];
  if (first === undefined) return new Uint8Array(0);
  const dimensions = first.packed.length / packedSize(first.steps);
  const size = packedSize(steps);
  const joined = new Uint8Array(size * dimensions);
  let start = 0;
  for (const part of filled) {
    const own = packedSize(part.steps);
    for (let dimension = 0; dimension < dimensions; dimension++) {
      for (let step = 0; step < part.steps; step++) {
        const bit = (part.packed[dimension * own + (step >> 3)] >> (step & 7)) & 1;
        const to = start + step;
        joined[dimension * size + (to >> 3)] |= bit << (to & 7);
      }
    }
    start += part.steps;
  }
  return joined;
}

/** Quantised differences of one part of an episode. */
export interface QuantisedPart extends Quantised {
  readonly window: number;
  readonly steps: number;
}

/** Quantised differences of parts that follow one another in time; all windows but the last must be whole. */
export function joinQuantised(parts: readonly QuantisedPart[], dimensions: number): Quantised & { window: number } {
  const filled = parts.filter((part) => part.steps > 0);
  const whole = filled.slice(0, -1).map((part) => part.steps);
  const window = [...filled.map((part) => part.window), ...whole].reduce(greatestDivisor, 0) || defaultWindow;
  const codes = new Int8Array(filled.reduce((sum, part) => sum + part.codes.length, 0));
  const steps = filled.reduce((sum, part) => sum + part.steps, 0);
  const scales = new Float32Array(Math.ceil(steps / window) * dimensions);
  let code = 0;
  let row = 0;
  for (const part of filled) {
    codes.set(part.codes, code);
    code += part.codes.length;
    for (let start = 0; start < part.steps; start += window, row++) {
      const from = Math.floor(start / part.window) * dimensions;
      scales.set(part.scales.subarray(from, from + dimensions), row * dimensions);
    }
  }
  return { codes, scales, window };
}

function greatestDivisor(a: number, b: number): number {
  while (b) [a, b] = [b, a % b];
  return a;
}
