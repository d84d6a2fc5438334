// What panels read. A worker answers; typed arrays are transferred, so a panel owns what it gets and may change it.

import type { ReadonlySignal } from "@preact/signals";
import type { JsonObject, TypedArray } from "@shard-format/core";
import type { Reduced } from "../plot-data/columns";
import type { Interval } from "./facts";
import type { FileReads } from "./files";

/**
 * A part of the shared axis. Its unit is the step: entry i of a channel that follows the steps is at i, the observation
 * after the last action at T, and an entry of a channel with its own clock where its time falls between two steps.
 */
export interface Range {
  readonly start: number;
  readonly end: number;
}

export interface ReadOptions {
  /** Ends the read, which then rejects with an `AbortError`. */
  readonly signal?: AbortSignal;
}

/** What a plot of a range draws. */
export interface Columns {
  readonly range: Range;
  /** One for each dimension that was asked for: columns, or the samples themselves where they are few. */
  readonly lines: readonly Reduced[];
  /** Samples per column; 1 where the lines are samples. */
  readonly factor: number;
  /** Which part of the channel was read so far, 0 to 1. Ask again when `arrived` counts up. */
  readonly read: number;
  /** How far off positions may be, in steps, if the times of a very long channel are estimates; 0 if they are known. */
  readonly timesOff: number;
}

/** The values of some entries. */
export type Window =
  /** In C order: entries × dimensions. i64 and u64 are BigInt arrays; f16 and bf16 were widened. */
  | { readonly kind: "dense"; readonly start: number; readonly values: TypedArray }
  | { readonly kind: "ragged"; readonly start: number; readonly items: readonly TypedArray[] }
  | { readonly kind: "text"; readonly start: number; readonly texts: readonly string[] }
  /** The packets that the entries need, from a keyframe on, in the order in which they are decoded. */
  | {
      readonly kind: "video";
      readonly start: number;
      readonly packets: readonly Packet[];
      readonly extradata: Uint8Array;
    };

export interface Packet {
  readonly data: Uint8Array;
  readonly number: number;
  readonly step: number;
  readonly isKeyframe: boolean;
  readonly isHidden: boolean;
}

/** What is stored about a channel as a whole, from its overview or its pyramid, per dimension. */
export interface Extent {
  readonly min: number;
  readonly max: number;
}

/** A small image of a camera, as a JPEG or PNG file, and the entry that it shows. */
export interface PosterImage {
  readonly step: number;
  readonly bytes: Uint8Array;
}

export interface Reads extends FileReads {
  /** Columns of some dimensions of a dense channel, of a prediction, an uncertainty or a residual. */
  columns(key: string, dims: readonly number[], range: Range, width: number, options?: ReadOptions): Promise<Columns>;
  /** Counts up when more of a channel was read. Hooks (model/hooks.ts) ask again then. */
  arrived(key: string): ReadonlySignal<number>;
  /** Exact values of the entries from `start` up to `end`. */
  window(key: string, start: number, end: number, options?: ReadOptions): Promise<Window>;
  /** The entry that holds at a position of the axis (the last one that is not after it), or −1 before the first. */
  entryAt(key: string, position: number, options?: ReadOptions): Promise<number>;
  /** Positions of the entries from `start` up to `end` on the axis. */
  positions(key: string, start: number, end: number, options?: ReadOptions): Promise<Float64Array>;
  /** Times of steps in nanoseconds since the epoch of the episode; null if it has no clock. */
  times(start: number, end: number, options?: ReadOptions): Promise<BigInt64Array | null>;
  /** The finite extent of each dimension as far as the channel was read. */
  extent(key: string, dims: readonly number[], options?: ReadOptions): Promise<readonly Extent[]>;
  /** Small images of a camera, for as long as a picture is read; none where no file beside the episode has them. */
  posters(key: string, options?: ReadOptions): Promise<readonly PosterImage[]>;
  /** The intervals of a label lane, on the axis of steps. */
  intervals(key: string, options?: ReadOptions): Promise<readonly Interval[]>;
  /** Scales of a `delta_q` residual (window × dimensions) and the steps that share one; null for others. */
  scales(
    key: string,
    options?: ReadOptions,
  ): Promise<{ readonly scales: Float32Array; readonly window: number } | null>;
  provenance(): Promise<JsonObject | null>;
  /** The identity that the file states (`meta/identity`); null if it states none. It is not computed again. */
  identity(): Promise<string | null>;
  /** What `wshard doctor --json` said about the file; null if it was not run. */
  findings(): Promise<JsonObject | null>;
  /** Bytes and requests of the sources so far. */
  traffic(): Promise<{ readonly bytes: number; readonly requests: number }>;
}
