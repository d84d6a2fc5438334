// The two directions in which vectors differ most: a picture of embeddings.

import { copyTo, type Numbers } from "./samples";

/** Vectors as points in a plane. */
export interface Projection {
  /** Two numbers a vector; NaN for vectors that have a value which is not finite. */
  readonly points: Float32Array;
  /** The share of the variance that each direction has. */
  readonly shares: readonly [number, number];
  /** How many vectors the directions were computed from. */
  readonly sampled: number;
}

/** Values that the directions are computed from, at most: more would take seconds and change nothing that is visible. */
const MOST_VALUES = 2_000_000;
const ROUNDS = 60;

/** Project rows of `width` values to two dimensions. The same rows always give the same picture. */
export function project(values: Numbers, width: number): Projection {
  const count = width > 0 ? Math.floor(values.length / width) : 0;
  const points = new Float32Array(2 * count).fill(Number.NaN);
  const every = Math.max(1, Math.ceil((count * width) / MOST_VALUES));
  const row = new Float64Array(width);
  const read = (index: number) => {
    copyTo(row, { values, offset: index * width, stride: 1, first: 0, length: width });
    return row.every((value) => Number.isFinite(value));
  };

  const rows: Float64Array[] = [];
  const mean = new Float64Array(width);
  for (let index = 0; index < count; index += every) {
    if (!read(index)) continue;
    rows.push(row.slice());
    for (let i = 0; i < width; i++)
      mean[i] = (mean[i] as number) + ((row[i] as number) - (mean[i] as number)) / rows.length;
  }
  let largest = 0;
  for (const vector of rows) {
    for (let i = 0; i < width; i++) {
      vector[i] = (vector[i] as number) - (mean[i] as number);
      largest = Math.max(largest, Math.abs(vector[i] as number));
    }
  }
  // Divided by the largest value, nothing overflows when it is squared.
  const scale = largest > 0 && Number.isFinite(largest) ? 1 / largest : 1;
  for (const vector of rows) for (let i = 0; i < width; i++) vector[i] = (vector[i] as number) * scale;

  let total = 0;
  for (const vector of rows) total += dot(vector, vector);
  const axes: Float64Array[] = [];
  const shares: number[] = [];
  for (let n = 0; n < 2; n++) {
    const { axis, variance } = strongest(rows, width, axes);
    axes.push(axis);
    shares.push(total > 0 ? variance / total : 0);
  }

  const [first, second] = axes as [Float64Array, Float64Array];
  for (let index = 0; index < count; index++) {
    if (!read(index)) continue;
    let [x, y] = [0, 0];
    for (let i = 0; i < width; i++) {
      const value = (row[i] as number) - (mean[i] as number);
      x += value * (first[i] as number);
      y += value * (second[i] as number);
    }
    points[2 * index] = x;
    points[2 * index + 1] = y;
  }
  return { points, shares: [shares[0] as number, shares[1] as number], sampled: rows.length };
}

/** The direction of the largest variance that is perpendicular to those found before, by power iteration. */
function strongest(rows: readonly Float64Array[], width: number, found: readonly Float64Array[]) {
  let axis = new Float64Array(width);
  // Any direction will do to begin with, as long as it is the same one each time and no likely axis of the data.
  for (let i = 0; i < width; i++) axis[i] = 1 + Math.sin(12.9898 * (i + 1) * (found.length + 1)) / 2;
  let variance = 0;
  for (let round = 0; round < ROUNDS; round++) {
    for (const other of found) remove(axis, other);
    if (!normalize(axis)) break;
    const next = new Float64Array(width);
    variance = 0;
    for (const vector of rows) {
      const along = dot(vector, axis);
      variance += along * along;
      for (let i = 0; i < width; i++) next[i] = (next[i] as number) + along * (vector[i] as number);
    }
    if (variance === 0) break;
    for (const other of found) remove(next, other);
    if (!normalize(next)) break;
    const turned = 1 - Math.abs(dot(next, axis));
    axis = next;
    if (turned < 1e-12) break;
  }
  // The largest part of an axis points to the right or up: its sign would be arbitrary.
  let large = 0;
  for (const value of axis) if (Math.abs(value) > Math.abs(large) + 1e-12) large = value;
  if (large < 0) for (let i = 0; i < width; i++) axis[i] = -(axis[i] as number);
  return { axis, variance };
}

function dot(a: Float64Array, b: Float64Array): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += (a[i] as number) * (b[i] as number);
  return sum;
}

function remove(vector: Float64Array, axis: Float64Array): void {
  const along = dot(vector, axis);
  for (let i = 0; i < vector.length; i++) vector[i] = (vector[i] as number) - along * (axis[i] as number);
}

/** Make the length of a vector 1. False if it has none. */
function normalize(vector: Float64Array): boolean {
  const length = Math.sqrt(dot(vector, vector));
  if (!(length > 1e-150)) return false;
  for (let i = 0; i < vector.length; i++) vector[i] = (vector[i] as number) / length;
  return true;
}
