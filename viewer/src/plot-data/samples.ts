// One dimension of a channel as plots see it: numbers at a stride in a typed array.

/** The arrays that channels are read into. */
export type Numbers =
  | Float64Array
  | Float32Array
  | Int32Array
  | Int16Array
  | Int8Array
  | Uint32Array
  | Uint16Array
  | Uint8Array
  | BigInt64Array
  | BigUint64Array;

/** The values of one dimension for the steps `first` to `first + length`. */
export interface Samples {
  readonly values: Numbers;
  /** Where in `values` the first step is, and how far it is to the next. */
  readonly offset: number;
  readonly stride: number;
  readonly first: number;
  readonly length: number;
}

/** Dimension `dimension` of steps of `width` values each; the first one is step `first` of the channel. */
export function samplesOf(values: Numbers, { width = 1, dimension = 0, first = 0 } = {}): Samples {
  return { values, offset: dimension, stride: width, first, length: Math.floor(values.length / width) };
}

/** The value of a step; NaN where the samples have none. */
export function valueAt(samples: Samples, step: number): number {
  const index = step - samples.first;
  if (index < 0 || index >= samples.length) return Number.NaN;
  return Number(samples.values[samples.offset + index * samples.stride]);
}

/** Whether the samples hold every step of a range. */
export function holds(samples: Samples, from: number, to: number): boolean {
  return from >= samples.first && to <= samples.first + samples.length;
}

/** The samples of the steps from `from` to `to`, as far as there are any. Nothing is copied. */
export function part(samples: Samples, from: number, to: number): Samples {
  const first = Math.max(from, samples.first);
  const length = Math.max(0, Math.min(to, samples.first + samples.length) - first);
  return { ...samples, offset: samples.offset + (first - samples.first) * samples.stride, first, length };
}

/** Copy samples as doubles: loops over one kind of array stay fast however many kinds the page has met. */
export function copyTo(out: Float64Array, samples: Samples): Float64Array {
  const { values, offset, stride, length } = samples;
  if (values instanceof BigInt64Array || values instanceof BigUint64Array) {
    for (let i = 0, at = offset; i < length; i++, at += stride) out[i] = Number(values[at]);
  } else if (stride === 1) {
    out.set(values.subarray(offset, offset + length));
  } else {
    for (let i = 0, at = offset; i < length; i++, at += stride) out[i] = values[at] as number;
  }
  return out;
}

/** Call `visit` with every piece of the samples as doubles, and the step of its first value. */
export function forPieces(samples: Samples, visit: (values: Float64Array, first: number) => void): void {
  const room = new Float64Array(Math.min(samples.length, 8192));
  const end = samples.first + samples.length;
  for (let first = samples.first; first < end; first += room.length) {
    const piece = part(samples, first, Math.min(end, first + room.length));
    visit(copyTo(room, piece).subarray(0, piece.length), first);
  }
}
