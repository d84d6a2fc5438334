// The lines of one channel: a pyramid for each dimension, filled piece by piece while somebody looks.

import type { ReadOptions, TypedArray } from "@shard-format/core";
import type { Columns, Extent, Range } from "../model/reads";
import type { Clock } from "../plot-data/clocks";
import { columns, type Reduced } from "../plot-data/columns";
import { Extent as Extremes } from "../plot-data/extent";
import { Pyramid } from "../plot-data/pyramid";
import { type Numbers, samplesOf } from "../plot-data/samples";

/** Values of the steps from `start` up to `end`. */
export type ReadValues = (start: number, end: number, options?: ReadOptions) => Promise<TypedArray>;

/** A view of fewer bytes than this is read as it is, so that every sample is exact. */
const exactBytes = 512 << 10;
/** The same for a view in which the buckets of the pyramid would be seen. */
const mostExact = 8 << 20;
/** The first piece is small, so that something is soon there; each is twice as large as the one before. */
const firstPiece = 256 << 10;
const largestPiece = 4 << 20;
/** Memory for the pyramids of one channel: those of all that a plot shows must fit into the cache together. */
export const mostPyramid = 6 << 20;
/** Bytes of a bucket in a pyramid, upper levels included: two values and flags, twice. */
const bucketBytes = 2 * (2 * 8 + 1);
/** A pyramid with fewer buckets than this would look coarse in a wide plot. */
const leastBuckets = 1 << 14;

export interface LinesOptions {
  readonly width: number;
  readonly stepBytes: number;
  readonly clock: Clock;
  readonly read: ReadValues;
  /** Whether each value is exact as a 32-bit float. */
  readonly exact32: boolean;
  /** Pyramids of the overview of the channel, by dimension; null if it has none. */
  readonly overview: readonly Pyramid[] | null;
  readonly arrived: () => void;
  /** Waits until the next piece may be read. */
  readonly turn: (bytes: number) => Promise<() => void>;
}

/** Pieces of a channel that were read, as steps: sorted, and never next to each other. */
export class Spans {
  readonly #spans: [number, number][] = [];

  get total(): number {
    return this.#spans.reduce((sum, [start, end]) => sum + end - start, 0);
  }

  add(start: number, end: number): void {
    const apart = this.#spans.filter(([from, to]) => to < start || from > end);
    const touching = this.#spans.filter(([from, to]) => to >= start && from <= end);
    const span: [number, number] = [
      Math.min(start, ...touching.map(([from]) => from)),
      Math.max(end, ...touching.map(([, to]) => to)),
    ];
    this.#spans.splice(0, this.#spans.length, ...[...apart, span].sort(([a], [b]) => a - b));
  }

  /** The first gap in a range; null if there is none. */
  gap(start: number, end: number): [number, number] | null {
    let from = start;
    for (const [low, high] of this.#spans) {
      if (low > from) break;
      from = Math.max(from, high);
    }
    if (from >= end) return null;
    const next = this.#spans.find(([low]) => low > from)?.[0] ?? end;
    return [from, Math.min(next, end)];
  }
}

export class Lines {
  readonly #options: LinesOptions;
  readonly #pyramids = new Map<number, Pyramid>();
  readonly #bucket: number;
  #done = new Spans();
  #isFilling = false;
  #piece = firstPiece;
  /** What the newest question wants, in steps; null if there was none since the last piece. */
  #wanted: [number, number] | null = null;
  #problem: unknown = null;

  constructor(options: LinesOptions) {
    this.#options = options;
    const { clock, width } = options;
    let bucket = 1;
    while (bucket < 16 && clock.length / bucket > leastBuckets) bucket *= 2;
    const dims = Math.min(width, 64);
    while ((clock.length / bucket) * dims * bucketBytes > mostPyramid) bucket *= 2;
    this.#bucket = bucket;
  }

  get bytes(): number {
    let sum = 0;
    for (const pyramid of this.#pyramids.values()) sum += pyramid.bytes;
    return sum;
  }

  async columns(dims: readonly number[], range: Range, width: number, options: ReadOptions): Promise<Columns> {
    const { clock, overview } = this.#options;
    this.#prepare(dims);
    const view = { from: range.start, to: range.end, width };
    const from = Math.max(0, clock.index(range.start) - 1);
    const to = Math.min(clock.length, clock.index(range.end) + 2);
    const samples = await this.#exact(from, to, width, options);
    // The overview shows enough as long as it has about as many buckets as the plot has columns.
    const isFine = overview === null || (to - from) / Math.max(1, overview[0]?.bucket ?? 1) < width / 2;
    if (samples === null && isFine) await this.#fill(from, to);
    const lines = dims.map((dim): Reduced => {
      const pyramid = this.#pyramids.get(dim) as Pyramid;
      const line = { pyramid, overview: overview?.[dim] };
      if (samples === null) return columns(line, clock, view);
      const { values, first } = samples;
      return columns(
        { ...line, samples: samplesOf(values, { width: this.#options.width, dimension: dim, first }) },
        clock,
        view,
      );
    });
    const [line] = lines;
    const factor = line === undefined || line.original ? 1 : Math.max(1, Math.round(line.samples / width));
    const read = samples !== null || !isFine || clock.length === 0 ? 1 : this.#done.total / clock.length;
    return { range, lines, factor, read, timesOff: clock.off ?? 0 };
  }

  async extent(dims: readonly number[]): Promise<Extent[]> {
    const { clock, overview } = this.#options;
    this.#prepare(dims);
    if (overview === null) await this.#fill(0, clock.length);
    return dims.map((dim) => {
      const found = new Extremes();
      (overview?.[dim] ?? this.#pyramids.get(dim))?.reduce(0, clock.length, found);
      return { min: found.min, max: found.max };
    });
  }

  /** New dimensions have to be read from the beginning. */
  #prepare(dims: readonly number[]): void {
    const { clock, width, exact32 } = this.#options;
    // All of them, if they are few: they are read together anyway.
    const wanted = width <= 64 ? Array.from({ length: width }, (_, dim) => dim) : dims;
    const added = wanted.filter((dim) => !this.#pyramids.has(dim));
    if (added.length === 0) return;
    for (const dim of added) this.#pyramids.set(dim, new Pyramid(clock.length, { bucket: this.#bucket, exact32 }));
    this.#done = new Spans();
  }

  /** All samples of a view that is short enough; null for others. */
  async #exact(
    from: number,
    to: number,
    columns: number,
    options: ReadOptions,
  ): Promise<{ values: Numbers; first: number } | null> {
    const { stepBytes, read } = this.#options;
    const bytes = (to - from) * stepBytes;
    const most = Math.min(mostExact, Math.max(exactBytes, 2 * columns * this.#bucket * stepBytes));
    if (bytes > most || to <= from) return null;
    if (bytes > exactBytes && this.#done.gap(from, to) !== null) return null;
    const done = await this.#options.turn(bytes);
    try {
      const values = await read(from, to, options);
      this.#keep(values, from, to);
      return { values, first: from };
    } finally {
      done();
    }
  }

  /** Fills the pyramids with the values of some steps. */
  #keep(values: Numbers, from: number, to: number): void {
    const { clock, width } = this.#options;
    const bucket = this.#bucket;
    const start = Math.ceil(from / bucket) * bucket;
    const end = to === clock.length ? to : Math.floor(to / bucket) * bucket;
    if (start >= end || this.#done.gap(start, end) === null) return;
    const part = values.subarray((start - from) * width, (end - from) * width) as Numbers;
    for (const [dim, pyramid] of this.#pyramids) {
      pyramid.fill(samplesOf(part, { width, dimension: dim, first: start }));
    }
    this.#done.add(start, end);
  }

  /** Reads on while somebody asks; waits for the first piece only. */
  async #fill(from: number, to: number): Promise<void> {
    if (this.#problem !== null) {
      const problem = this.#problem;
      this.#problem = null; // the next question tries again
      throw problem;
    }
    this.#wanted = [from, to];
    if (this.#done.gap(from, to) === null) return;
    const isFirst = this.#done.total === 0;
    if (!this.#isFilling) {
      this.#isFilling = true;
      const first = this.#next(isFirst);
      void this.#fillOn(first);
      if (isFirst) await first;
    } else if (isFirst) {
      await this.#firstPiece;
    }
  }

  #firstPiece: Promise<boolean> = Promise.resolve(true);

  async #fillOn(first: Promise<boolean>): Promise<void> {
    this.#firstPiece = first;
    try {
      for (let isMore = await first; isMore; isMore = await this.#next(false)) {
        this.#options.arrived();
        // Somebody who still looks asks again before the next piece is there.
        await new Promise((done) => setTimeout(done, 30));
      }
    } catch (error) {
      this.#problem = error;
    }
    this.#isFilling = false;
    this.#options.arrived();
  }

  /** Reads the next piece; whether there is another one that somebody wants. */
  async #next(isFirst: boolean): Promise<boolean> {
    const wanted = this.#wanted;
    if (wanted === null) return false;
    const gap = this.#done.gap(...wanted) ?? this.#done.gap(0, this.#options.clock.length);
    if (gap === null) return false;
    if (!isFirst) this.#wanted = null;
    const { stepBytes, read, turn } = this.#options;
    const size = Math.max(1, Math.floor(this.#piece / Math.max(1, stepBytes)));
    const whole = Math.max(1, Math.floor(size / this.#bucket)) * this.#bucket;
    const start = Math.floor(gap[0] / this.#bucket) * this.#bucket;
    const end = Math.min(gap[1], start + whole);
    const done = await turn((end - start) * stepBytes);
    try {
      this.#keep(await read(start, end), start, end);
    } finally {
      done();
    }
    this.#piece = Math.min(largestPiece, 2 * this.#piece);
    return this.#done.gap(0, this.#options.clock.length) !== null;
  }
}
