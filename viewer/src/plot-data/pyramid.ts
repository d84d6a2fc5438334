// Minimum and maximum of buckets of samples, then of two buckets each, up to one for all of them.
// However many samples a plot has, the extremes of a column of pixels are found in a few dozen steps, and no spike is lost.

import { type Extent, MINUS, MISSING, PLUS, UNREAD } from "./extent";
import { forPieces, holds, type Numbers, part, type Samples, valueAt } from "./samples";

/** Samples in a bucket of the lowest level. */
export const BUCKET = 16;

type Floats = Float32Array | Float64Array;

interface Level {
  readonly min: Floats;
  readonly max: Floats;
  readonly flags: Uint8Array;
}

/** A pyramid over `length` samples. It may be filled in any order; what is not filled yet is flagged UNREAD. */
export class Pyramid {
  /** Samples in a bucket of the lowest level. */
  readonly bucket: number;
  readonly length: number;
  private readonly levels: Level[] = [];

  /** `exact32`: every finite value is exact as a 32-bit float, so half the memory is enough. */
  constructor(length: number, { bucket = BUCKET, exact32 = false } = {}) {
    this.length = length;
    this.bucket = bucket;
    for (let count = Math.ceil(length / bucket); count > 0; count = count === 1 ? 0 : Math.ceil(count / 2)) {
      const floats = () => (exact32 ? new Float32Array(count) : new Float64Array(count)).fill(Number.NaN);
      this.levels.push({ min: floats(), max: floats(), flags: new Uint8Array(count).fill(UNREAD) });
    }
  }

  /** An empty pyramid for a channel of such values. */
  static for(values: Numbers, length: number): Pyramid {
    const exact32 = values instanceof Float32Array || values.BYTES_PER_ELEMENT < 4;
    return new Pyramid(length, { exact32 });
  }

  /** The pyramid of all of the samples. */
  static of(samples: Samples): Pyramid {
    const pyramid = Pyramid.for(samples.values, samples.first + samples.length);
    pyramid.fill(samples);
    return pyramid;
  }

  /** The pyramid of an overview entry: extremes of `bucket` steps each, of one dimension. */
  static ofOverview(length: number, bucket: number, min: Samples, max: Samples): Pyramid {
    const pyramid = new Pyramid(length, { bucket });
    const level = pyramid.levels[0];
    if (level === undefined) return pyramid;
    for (let i = 0; i < level.flags.length; i++) {
      let [low, high] = [valueAt(min, i), valueAt(max, i)];
      let flags = 0;
      if (Number.isNaN(low) || Number.isNaN(high)) flags |= MISSING;
      if (low === -Infinity || high === -Infinity) flags |= MINUS;
      if (low === Infinity || high === Infinity) flags |= PLUS;
      // Of a bucket with an infinity the overview does not keep the finite extreme: the other one stands for it.
      if (!Number.isFinite(low)) low = Number.isFinite(high) ? high : Number.NaN;
      if (!Number.isFinite(high)) high = low;
      level.min[i] = low;
      level.max[i] = high;
      level.flags[i] = flags;
    }
    pyramid.raise(0, level.flags.length);
    return pyramid;
  }

  /** Add samples that have arrived. A bucket counts as read when the first of its samples is. */
  fill(samples: Samples): void {
    const level = this.levels[0];
    const known = part(samples, 0, this.length);
    if (level === undefined || known.length === 0) return;
    const { bucket } = this;
    forPieces(known, (values, first) => {
      for (let i = 0; i < values.length; ) {
        const at = Math.floor((first + i) / bucket);
        const end = Math.min(values.length, (at + 1) * bucket - first);
        let min = level.min[at] as number;
        let max = level.max[at] as number;
        let flags = (level.flags[at] as number) & ~UNREAD;
        for (; i < end; i++) {
          const value = values[i] as number;
          if (Number.isFinite(value)) {
            if (!(min <= value)) min = value;
            if (!(max >= value)) max = value;
          } else {
            flags |= Number.isNaN(value) ? MISSING : value > 0 ? PLUS : MINUS;
          }
        }
        level.min[at] = min;
        level.max[at] = max;
        level.flags[at] = flags;
      }
    });
    this.raise(Math.floor(known.first / bucket), Math.ceil((known.first + known.length) / bucket));
  }

  /** Bring the levels above up to date for buckets `from` to `to` of the lowest one. */
  private raise(from: number, to: number): void {
    for (let n = 1; n < this.levels.length; n++) {
      const below = this.levels[n - 1] as Level;
      const level = this.levels[n] as Level;
      from = Math.floor(from / 2);
      to = Math.ceil(to / 2);
      for (let i = from; i < to; i++) {
        const left = 2 * i;
        const right = Math.min(left + 1, below.flags.length - 1);
        const [a, b] = [below.min[left] as number, below.min[right] as number];
        const [c, d] = [below.max[left] as number, below.max[right] as number];
        level.min[i] = a <= b || Number.isNaN(b) ? a : b;
        level.max[i] = c >= d || Number.isNaN(d) ? c : d;
        level.flags[i] = (below.flags[left] as number) | (below.flags[right] as number);
      }
    }
  }

  /** Add the extremes of all buckets that touch the steps from `from` to `to`: those of neighbours in a bucket count, too. */
  reduce(from: number, to: number, into: Extent): void {
    let low = Math.floor(Math.max(0, from) / this.bucket);
    let high = Math.ceil(Math.min(this.length, to) / this.bucket);
    for (let n = 0; low < high; n++) {
      const level = this.levels[n] as Level;
      if (low & 1) take(level, low++, into);
      if (high & 1) take(level, --high, into);
      low >>>= 1;
      high >>>= 1;
    }
  }

  /** The bytes that the pyramid keeps. */
  get bytes(): number {
    return this.levels.reduce(
      (sum, { min, max, flags }) => sum + min.byteLength + max.byteLength + flags.byteLength,
      0,
    );
  }
}

function take({ min, max, flags }: Level, at: number, into: Extent): void {
  into.merge(min[at] as number, max[at] as number, flags[at] as number);
}

/** A line to draw: its pyramid, what is there of its samples, and the overview of the file, if there is one. */
export interface Line {
  readonly pyramid: Pyramid;
  readonly samples?: Samples | undefined;
  readonly overview?: Pyramid | undefined;
}

/**
 * Find the extremes of the steps from `from` to `to`. Without the samples at the ends of the range, whole buckets
 * count, so nothing is lost, and a spike may appear up to a bucket early or late.
 */
export function reduceRange(line: Line, from: number, to: number, into: Extent): void {
  const { pyramid, samples, overview } = line;
  if (from >= to) return;
  const before = Math.min(to, Math.ceil(from / pyramid.bucket) * pyramid.bucket);
  const after = Math.max(before, Math.floor(to / pyramid.bucket) * pyramid.bucket);
  if (samples !== undefined && holds(samples, from, before) && holds(samples, after, to)) {
    for (let step = from; step < before; step++) into.add(valueAt(samples, step));
    if (before < after) pyramid.reduce(before, after, into);
    for (let step = after; step < to; step++) into.add(valueAt(samples, step));
  } else {
    pyramid.reduce(from, to, into);
  }
  if (into.flags & UNREAD && overview !== undefined) {
    overview.reduce(from, to, into);
    into.flags &= ~UNREAD;
  }
}
