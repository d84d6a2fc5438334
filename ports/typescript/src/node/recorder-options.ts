// What a recorder is told: options, the facts of steps, and labels.

import { invalid } from "../core/errors.js";
import { canonicalBytes, type JsonObject, parseJsonObject } from "../core/json.js";
import { stepNs, type Timebase } from "../wshard/clocks.js";
import { parseFacts } from "../wshard/metadata.js";
import { checkId, done } from "../wshard/names.js";
import { type ChannelDef, RecordedChannel } from "./recorder-channels.js";

/** How an episode is recorded. */
export interface RecorderOptions {
  readonly id: string;
  readonly channels: readonly ChannelDef[];
  readonly envId?: string;
  /** The rate is unknown by default. */
  readonly timebase?: Partial<Timebase>;
  readonly metadata?: JsonObject;
  /** Write a run after this many steps (64), */
  readonly flushSteps?: number;
  /** or after this time (0.5 s), whichever comes first. */
  readonly flushSeconds?: number;
  /** When the disk must have what was written: never, once a second (the default), or after every run. */
  readonly fsync?: "never" | "interval" | "always";
  /** How many bytes may wait to be written before a step waits (24 MiB). */
  readonly bufferBytes?: number;
  /** How runs are stored. With zstd, the first run of a channel decides whether that saves enough. */
  readonly compression?: "none" | "zstd";
  /** Replaces a finished episode, which stays until the new one is complete. */
  readonly overwrite?: boolean;
  /** Throws away the journal of an earlier recording; without it, such a journal is an error. */
  readonly discardPartial?: boolean;
  /**
   * Continues in another file after this many steps. The recording becomes an episode in chunks: `<name>_chunk_0000.wshard`
   * and so on, and `<name>_manifest.wshard`, which names all finished chunks and opens as one episode at any time.
   */
  readonly maxStepsPerFile?: number;
}

/** What a step has besides its channels. The first step decides which of these every step has. */
export interface StepFacts {
  readonly reward?: number;
  readonly done?: boolean;
  readonly terminated?: boolean;
  readonly truncated?: boolean;
  readonly timestampNs?: bigint;
}

/** A labelled part of the recording. */
export interface Annotation {
  /** The first step; the next one by default. */
  readonly start?: number;
  /** The step after the last. */
  readonly end?: number;
  /** The label lane. */
  readonly label?: string;
  readonly source?: string;
  readonly confidence?: number;
}

/** Refuses options that make no sense. */
export function checkOptions(options: RecorderOptions): void {
  const { id, channels, flushSteps = 1, flushSeconds = 1, bufferBytes = 1, maxStepsPerFile = 1 } = options;
  checkId(id, "an episode");
  if (![flushSteps, flushSeconds, bufferBytes, maxStepsPerFile].every((one) => one > 0))
    throw invalid("flushSteps, flushSeconds, bufferBytes and maxStepsPerFile are above 0");
  const ids = new Set<string>();
  for (const def of channels) {
    RecordedChannel.of(def);
    if (ids.has(def.id)) throw invalid("a channel is declared twice", { entry: def.id });
    ids.add(def.id);
  }
}

/** What the start frame says about the episode. */
export function episodeFields({ id, envId = "", timebase = {}, metadata = {} }: RecorderOptions): JsonObject {
  const { type = "ticks", tickHz = null, epochNs = 0n } = timebase;
  const clock: JsonObject = { tick_hz: tickHz, type };
  if (tickHz !== null) clock.dt_ns = stepNs(tickHz);
  if (epochNs !== 0n) clock.epoch_ns = epochNs;
  const fields: JsonObject = { env_id: envId, episode_id: id, timebase: clock };
  if (Object.keys(metadata).length > 0) fields.metadata = metadata;
  parseFacts(fields, {}, 0n);
  // A copy: the caller may change its objects while the recording goes on.
  return parseJsonObject(canonicalBytes(fields));
}

/** The facts of a step without `done` where others say it. */
export function checkedFacts(facts: StepFacts): StepFacts {
  const { done: isDone, ...others } = facts;
  if (facts.terminated === undefined && facts.truncated === undefined) return facts;
  const union = Boolean(facts.terminated) || Boolean(facts.truncated);
  if (isDone !== undefined && isDone !== union)
    throw invalid("done is not the union of terminated and truncated", { entry: done });
  return others;
}

/** The labels that reach a step or beyond, without the part before it. */
export function labelsFrom<T extends { interval: { start: number; end: number } }>(
  labels: readonly T[],
  step: number,
): T[] {
  const reaching = labels.filter(({ interval }) => interval.end > step || interval.start >= step);
  return reaching.map((label) => ({
    ...label,
    interval: { ...label.interval, start: Math.max(label.interval.start, step) },
  }));
}

/** Refuses a time before the last one. */
export function checkTime(time: bigint, last: bigint | null, entry: string): void {
  if (typeof time !== "bigint") throw invalid("a time is not a bigint", { entry, found: String(time) });
  if (last !== null && time < last)
    throw invalid("time runs backwards", { entry, expected: `at least ${last}`, found: time });
}
