// What is known about an episode and its channels without reading an array. All of it is plain: workers send it as it is.

import type { DType, JsonObject } from "@shard-format/core";

/** Where a channel belongs. `extra` are entries that the format does not define. */
export type Lane =
  | "signal"
  | "action"
  | "reward"
  | "terminated"
  | "truncated"
  | "omen"
  | "uncert"
  | "residual"
  | "label"
  | "extra";

/** How the entries of a channel are stored. `label` is a list of intervals, `bytes` an entry without a description. */
export type Layout = "dense" | "ragged" | "text" | "video" | "label" | "bytes" | "unknown";

export interface ChannelFacts {
  /** Names the channel in links and in reads: the name of its block, which no other channel of the episode has. */
  readonly key: string;
  readonly lane: Lane;
  /** What the channel is called; of a prediction, an uncertainty or a residual: what it is about. */
  readonly id: string;
  /** Whose prediction, uncertainty or residual this is; empty if unknown. */
  readonly model: string;
  /** The type of an uncertainty (`std`, `variance`, …) or of a residual (`sign2nddiff`, `delta_q`); empty for others. */
  readonly type: string;
  readonly layout: Layout;
  readonly dtype: DType;
  /** The shape of one step, or of one item of a ragged channel. */
  readonly shape: readonly number[];
  /** The product of `shape`. */
  readonly dimensions: number;
  /** Entries along the first axis: T, T + 1 or what a channel with its own clock has. */
  readonly length: number;
  readonly unit: string;
  /** Entries per second, if the description says so. */
  readonly rate: number | null;
  /** H, if each step holds values about the next H steps. */
  readonly horizon: number | null;
  /** Whether the channel has its own clock. Entry i is at step i otherwise. */
  readonly hasOwnClock: boolean;
  /** The type of the packets of a video, such as `video/h264`. */
  readonly contentType: string;
  /** `none`, `zstd`, `lz4`, with the filters: `zstd (shuffle)`. */
  readonly codec: string;
  readonly storedBytes: number;
  readonly bytes: number;
  /** Whether dtype and shape are a guess. */
  readonly isInferred: boolean;
  /** How the values were changed before they were stored; null if they were not. */
  readonly lossy: JsonObject | null;
  /** The sidecar that holds it; empty if the episode itself does. */
  readonly sidecar: string;
  /** The whole row of `meta/channels`. */
  readonly row: JsonObject;
  /** Why it cannot be read, in the words of the reader; null if it can. */
  readonly problem: string | null;
}

/** An entry of one of the files of an episode. */
export interface EntryFacts {
  readonly name: string;
  readonly file: string;
  readonly codec: string;
  readonly contentType: number;
  readonly offset: number;
  readonly storedBytes: number;
  readonly bytes: number;
  readonly crc32c: number | null;
}

export interface Interval {
  /** On the axis of steps; the end is not part of it. */
  readonly start: number;
  readonly end: number;
  readonly text: string;
  readonly source: string;
  readonly confidence: number | null;
}

export interface FileFacts {
  readonly name: string;
  readonly size: number;
}

export interface EpisodeFacts {
  /** Which of the opened files, and which record of a pack, this is: the table's row. */
  readonly row: number;
  readonly id: string;
  readonly envId: string;
  /** T, the number of steps. */
  readonly length: number;
  /** Steps per second; null if unknown. */
  readonly rate: number | null;
  /** Time of the first step in nanoseconds, as a decimal number. */
  readonly epochNs: string;
  /** Whether the times of the steps are stored, so that they need not be regular. */
  readonly hasTimestamps: boolean;
  readonly metadata: JsonObject;
  readonly task: string;
  readonly files: readonly FileFacts[];
  readonly chunks: number;
  /** A recording that has not ended: `.partial`. */
  readonly isUnfinished: boolean;
  /** Its journal, if its recorder is gone; empty otherwise. */
  readonly recover: string;
  readonly channels: readonly ChannelFacts[];
  /** Parts that were left out, and why: sidecars that do not fit. */
  readonly problems: readonly string[];
}
