// The episode that a journal holds, up to where it is complete (spec/journal.md, section 8).

import { toTypedArray } from "../core/dtypes.js";
import { broken, type ShardError } from "../core/errors.js";
import type { JsonObject } from "../core/json.js";
import { HttpSource, type Source, type SourceLike, toSource } from "../core/source.js";
import type { ZstdProvider } from "../core/zstd.js";
import { type Block, memoryBlock } from "./blocks.js";
import { channelOfRow, DenseChannel } from "./channels.js";
import { stepTime } from "./clocks.js";
import { Episode } from "./episode.js";
import { bytesOfOffset, isFlat, Journal, type RecordedRuns } from "./journal.js";
import { emptyLanes, type Lanes } from "./lanes.js";
import { type Interval, type Label, parseFacts } from "./metadata.js";
import { done, reward, rewardExact, splitFirst, terminated, timeStamps, timeTicks, truncated } from "./names.js";
import { rawBytes } from "./values.js";

const i32Limit = 2 ** 31;

/** A recording that may not be finished, as far as it was read. */
export class Recording {
  /** The recording so far. `refresh` makes a new one. */
  episode: Episode;
  readonly #journal: Journal;
  #cut: ReadonlyMap<string, number>;

  /** Use `openRecording`. */
  constructor(journal: Journal, opened: { episode: Episode; cut: ReadonlyMap<string, number> }) {
    this.#journal = journal;
    this.episode = opened.episode;
    this.#cut = opened.cut;
  }

  /** Whether the recorder has ended the recording, so that nothing more will follow. */
  get isFinished(): boolean {
    return this.#journal.hasEnded && !this.#journal.continues;
  }

  /** Whether it goes on in the journal of the next chunk. */
  get continues(): boolean {
    return this.#journal.continues;
  }

  /** Why reading stopped before the end of the journal; null if it did not. */
  get error(): ShardError | null {
    return this.#journal.error;
  }

  /** Bytes of the frames that count. */
  get readBytes(): number {
    return this.#journal.position;
  }

  /** By block, the entries in counted frames that are not in the episode, because other channels end earlier. */
  get cut(): ReadonlyMap<string, number> {
    return this.#cut;
  }

  /** Reads what was recorded since; returns whether there was anything. Channels taken out before keep their length. */
  async refresh(): Promise<boolean> {
    if ((await this.#journal.read()) === 0) return false;
    ({ episode: this.episode, cut: this.#cut } = await episodeOf(this.#journal));
    return true;
  }

  async close(): Promise<void> {
    await this.#journal.source.close();
  }
}

/** Opens the journal of a recording, `….wshard.partial`; the recorder may go on meanwhile. */
export async function openRecording(source: SourceLike, options: { zstd?: ZstdProvider } = {}): Promise<Recording> {
  const from: Source = toSource(source);
  if (from instanceof HttpSource) from.mayGrow = true;
  try {
    const journal = new Journal(from, options.zstd);
    await journal.read();
    if (journal.episode === null)
      throw journal.error ?? broken("invalid_argument", "J-1", "nothing was recorded yet", { path: from.path });
    return new Recording(journal, await episodeOf(journal));
  } catch (error) {
    await from.close();
    throw error;
  }
}

async function episodeOf(journal: Journal): Promise<{ episode: Episode; cut: ReadonlyMap<string, number> }> {
  const counted = journal.channels.filter((channel) => !channel.isLeftOut);
  const steps = stepsOf(journal, counted);
  const kept = keptEntries(journal, counted, steps);
  const fields = journal.episode as JsonObject;
  const facts = parseFacts(fields, {}, BigInt(steps));
  const metadata: JsonObject = { ...facts.metadata, ...journal.metadata };
  if (Object.keys(journal.dropped).length > 0) metadata.dropped = { ...journal.dropped };
  const lanes = await lanesOf(journal, counted, kept, steps);
  const base = { ...facts, length: steps, metadata, timebase: { ...facts.timebase } };
  if (lanes.timestamps !== null) base.timebase = { ...base.timebase, type: "timestamps_ns" };
  const numbered = journal.chunk !== null || journal.continues ? { ...base, ...numberOf(journal, base, lanes) } : base;
  return { episode: new Episode(numbered, lanes, { files: [], edges: "pad" }), cut: cutEntries(counted, kept) };
}

/** The steps that every channel has (J-3). */
function stepsOf(journal: Journal, counted: readonly RecordedRuns[]): number {
  const counts = counted.filter((channel) => channel.followsSteps).map((channel) => channel.entries);
  const shortest = counts.reduce(
    (least, count) => Math.min(least, count),
    counts.length > 0 ? Number.POSITIVE_INFINITY : 0,
  );
  return journal.length === null || journal.length > shortest ? shortest : Number(journal.length);
}

/** How many entries of each block count (J-3). */
function keptEntries(journal: Journal, counted: readonly RecordedRuns[], steps: number): Map<string, number> {
  const kept = new Map<string, number>();
  for (const channel of counted) {
    if (channel.owner !== null) continue;
    const oneMore = journal.length !== null && channel.block.startsWith("signal/") ? 1 : 0;
    kept.set(channel.block, channel.followsSteps ? Math.min(channel.entries, steps + oneMore) : channel.entries);
  }
  for (const { row, block } of counted) {
    if (row.timeBlock === null) continue;
    const both = Math.min(kept.get(block) ?? 0, kept.get(row.timeBlock) ?? 0);
    kept.set(block, both);
    kept.set(row.timeBlock, both);
  }
  return kept;
}

function cutEntries(counted: readonly RecordedRuns[], kept: ReadonlyMap<string, number>): Map<string, number> {
  const cut = new Map<string, number>();
  for (const channel of counted) {
    if (channel.owner !== null) continue;
    // Items after the last offset count as one entry (J-6).
    const isOpen = channel.offsets !== null && BigInt(channel.held) > channel.offsets.lastOffset;
    const count = channel.entries - (kept.get(channel.block) ?? 0) + (isOpen ? 1 : 0);
    if (count > 0) cut.set(channel.block, count);
  }
  return cut;
}

async function lanesOf(
  journal: Journal,
  counted: readonly RecordedRuns[],
  kept: ReadonlyMap<string, number>,
  steps: number,
): Promise<Lanes> {
  const blocks = new Map<string, Block>();
  for (const channel of counted) {
    if (channel.owner !== null) continue;
    let count = kept.get(channel.block) ?? 0;
    if (channel.offsets !== null) {
      const { offsets } = channel;
      const isEmpty = offsets.held === 0;
      const positions = isEmpty
        ? memoryBlock(offsets.block, rawBytes(new BigInt64Array(1)))
        : journal.block(offsets, (count + 1) * bytesOfOffset);
      blocks.set(offsets.block, positions);
      // Only the last offset that counts says how many items do.
      count = Number(toTypedArray("i64", await positions.read(count * bytesOfOffset, (count + 1) * bytesOfOffset))[0]);
    }
    blocks.set(channel.block, journal.block(channel, count * channel.stepBytes));
  }
  const find = (name: string) => blocks.get(name) ?? null;
  const lanes = emptyLanes();
  for (const channel of counted) {
    const { block } = channel;
    if (channel.owner !== null || (block.startsWith("time/") && !isFlat(block))) continue;
    const source = blocks.get(block) as Block;
    const row = { ...channel.row, length: BigInt(kept.get(block) ?? 0) };
    const [lane] = splitFirst(block);
    if (lane === "signal") lanes.observations.set(row.id, channelOfRow(row, source, steps, find));
    else if (lane === "action") lanes.actions.set(row.id, channelOfRow(row, source, steps, find));
    else if (block === reward || block === rewardExact) lanes.rewards = channelOfRow(row, source, steps, find);
    else
      placeFlat(lanes, block, new DenseChannel(source, { dtype: row.dtype, shape: row.shape, row: null }, steps, find));
  }
  for (const [name, label] of journal.labels)
    lanes.labels.set(name, { block: `label/${name}`, read: async () => ownLabel(journal, label, steps) });
  return lanes;
}

function placeFlat(lanes: Lanes, block: string, channel: DenseChannel): void {
  if (block === terminated || block === done) lanes.terminations = channel;
  else if (block === truncated) lanes.truncations = channel;
  else if (block === timeStamps) lanes.timestamps = channel;
}

/** Which part of the recording this is (J-8). */
function numberOf(journal: Journal, base: Pick<Episode, "length" | "timebase">, lanes: Lanes) {
  const first = journal.chunk?.firstStep ?? 0;
  const { length } = base;
  if (first > 0 && first + length <= i32Limit) {
    const ticks = rawBytes(Int32Array.from({ length }, (_, step) => first + step));
    lanes.ticks = new DenseChannel(
      memoryBlock(timeTicks, ticks),
      { dtype: "i32", shape: [], row: null },
      length,
      () => null,
      false,
      "W-TIM-2",
    );
  }
  const { timebase } = base;
  const isLater = lanes.timestamps === null && timebase.tickHz !== null;
  const epochNs = timebase.epochNs + (isLater ? stepTime(first, timebase.tickHz as number) : 0n);
  return {
    chunkIndex: journal.chunk?.index ?? 0,
    timestepRange: [first, Math.max(first, first + length - 1)] as const,
    timebase: { ...timebase, epochNs },
  };
}

/** Intervals as this part of the recording counts them. */
function ownLabel(journal: Journal, label: Label, steps: number): Label {
  if (label.unit !== "steps" || (journal.chunk === null && !journal.continues)) return label;
  const first = BigInt(journal.chunk?.firstStep ?? 0);
  const last = BigInt(steps);
  const intervals: Interval[] = [];
  for (const one of label.intervals) {
    const [start, end] = [one.start - first, one.end - first];
    if (journal.continues && start >= last) continue; // the next journal has it
    intervals.push({ ...one, start, end: journal.continues && end > last ? last : end });
  }
  return { ...label, intervals };
}
