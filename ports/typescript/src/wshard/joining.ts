// Episodes that follow one another in time, as one. Arrays are still read when they are asked for.

import { toTypedArray } from "../core/dtypes.js";
import { broken } from "../core/errors.js";
import { canonicalJson, type Json } from "../core/json.js";
import { type Block, chainedBlock, type FindBlock, lazyBlock } from "./blocks.js";
import { type Channel, channelOfRow, DenseChannel, RaggedChannel, TextChannel } from "./channels.js";
import type { Episode } from "./episode.js";
import { emptyLanes, inner, type LabelLane, type Lanes } from "./lanes.js";
import type { Interval, Label, Row } from "./metadata.js";
import { Residual } from "./residual.js";
import { joinQuantised, joinSigns } from "./residual-codes.js";
import { rawBytes } from "./values.js";
import { VideoChannel } from "./video.js";

/** The lanes of all parts of an episode. */
export async function joinLanes(parts: readonly Episode[]): Promise<Lanes> {
  const joined = emptyLanes();
  const lengths = parts.map((part) => part.length);
  const channels = async (lanes: readonly ReadonlyMap<string, Channel>[], to: Map<string, Channel>) => {
    for (const key of sameKeys(lanes)) to.set(key, await joinChannel(at(lanes, key), lengths));
  };
  await channels(
    parts.map((part) => part.observations),
    joined.observations,
  );
  await channels(
    parts.map((part) => part.actions),
    joined.actions,
  );
  const omens = parts.map((part) => part.omens);
  for (const channel of sameKeys(omens)) await channels(at(omens, channel), inner(joined.omens, channel));
  const uncerts = parts.map((part) => part.uncerts);
  for (const channel of sameKeys(uncerts)) {
    const models = at(uncerts, channel);
    for (const model of sameKeys(models))
      await channels(at(models, model), inner(inner(joined.uncerts, channel), model));
  }
  joined.rewards = await joinSingle(
    parts.map((part) => part.rewards),
    lengths,
    joinRewards,
  );
  const flat = (get: (part: Episode) => DenseChannel | null) =>
    joinSingle(parts.map(get), lengths, joinChannel) as Promise<DenseChannel | null>;
  joined.terminations = await flat((part) => part.terminations);
  joined.truncations = await flat((part) => part.truncations);
  joined.timestamps = await flat((part) => part.clocks.timestamps);
  // Ticks that some parts do not store are made up.
  if (parts.every((part) => part.clocks.ticks !== null)) joined.ticks = await flat((part) => part.clocks.ticks);
  const residuals = parts.map((part) => part.residuals);
  for (const key of sameKeys(residuals)) joined.residuals.set(key, joinResidual(at(residuals, key), lengths));
  for (const name of new Set(parts.flatMap((part) => [...part.labels.keys()])))
    joined.labels.set(name, joinLabels(name, parts));
  for (const part of parts)
    for (const [name, extra] of part.extras) if (!joined.extras.has(name)) joined.extras.set(name, extra);
  return joined;
}

/** The keys that all parts have; an error if they do not have the same. */
function sameKeys(maps: readonly ReadonlyMap<string, unknown>[]): string[] {
  const [first] = maps;
  for (const [number, map] of maps.entries()) {
    for (const key of new Set([...first.keys(), ...map.keys()])) {
      if (!first.has(key) || !map.has(key))
        throw discontinuity(key, `part ${number} does not have the blocks of the first`);
    }
  }
  return [...first.keys()];
}

function at<T>(maps: readonly ReadonlyMap<string, T>[], key: string): T[] {
  return maps.map((map) => map.get(key) as T);
}

function discontinuity(entry: string, problem: string, expected?: Json, found?: Json) {
  return broken("chunk_discontinuity", "W-CHK-8", problem, { entry, expected: told(expected), found: told(found) });
}

function told(value: Json | undefined): string | undefined {
  return value === undefined ? undefined : String(value);
}

// --- channels

type Join<T> = (parts: readonly T[], lengths: readonly number[]) => Promise<T> | T;

async function joinSingle<T extends Channel>(
  parts: readonly (T | null)[],
  lengths: readonly number[],
  join: Join<T>,
): Promise<T | null> {
  const known = parts.filter((part) => part !== null);
  if (known.length === 0) return null;
  const isWithout = (part: T | null, number: number) => part === null && lengths[number] > 0;
  if (parts.some(isWithout)) throw discontinuity(known[0].block, "a part lacks a lane that others have");
  return join(
    known,
    lengths.filter((_, number) => parts[number] !== null),
  );
}

async function joinChannel<T extends Channel>(parts: readonly T[], lengths: readonly number[]): Promise<T> {
  const [first] = parts;
  if (parts.length === 1) return first;
  const hasSteps = first.hasOwnClock || first.length === lengths[0] || first.length === lengths[0] + 1;
  // Without a time for each step every part has all of it.
  if (!hasSteps && (first.inferred || first.row?.length)) return first;
  for (const part of parts)
    if (formOf(part) !== formOf(first))
      throw discontinuity(first.block, "a part has the channel in another form", formOf(first), formOf(part));
  const counts = parts.map((part, number) => countOf(part, lengths[number], number === parts.length - 1));
  const blocks = new Map<string, Block>();
  const find: FindBlock = (name) => blocks.get(name) ?? null;
  const total = counts.reduce((sum, count) => sum + count, 0);
  const { row } = first;
  const steps = lengths.reduce((sum, length) => sum + length, 0);
  if (row?.timeBlock) {
    const clocks = parts.map((part) => part.clockBlock() as Block);
    blocks.set(
      row.timeBlock,
      chainedBlock(
        row.timeBlock,
        clocks,
        clocks.map((clock) => clock.size),
      ),
    );
  }
  const source = await joinContent(parts, counts, blocks);
  if (row === null) return new DenseChannel(source, first, steps, find, first.inferred) as Channel as T;
  return channelOfRow(joinedRow(row, total, first), source, steps, find) as T;
}

function joinedRow(row: Row, length: number, first: Channel): Row {
  const isVideo = first instanceof VideoChannel;
  return { ...row, length: BigInt(length), ...(isVideo ? { framesBlock: `frames/${first.block}` } : {}) };
}

/** What the parts of a channel have in common. */
function formOf(channel: Channel): string {
  const { row } = channel;
  const clock = [row?.timeBlock != null, row?.startNs != null, row?.startNs != null ? row.samplingRateHz : null];
  const codec = channel instanceof VideoChannel ? [row?.contentType, row?.extradata] : [];
  return [channel.layout, channel.dtype, `[${channel.shape}]`, ...clock, ...codec].join(" ");
}

/** How many entries of a part count: the next part starts with the observation after its last action. */
function countOf(part: Channel, length: number, isLast: boolean): number {
  if (part.hasOwnClock || part.length === length) return part.length;
  if (part.length === length + 1) return isLast ? part.length : length;
  throw discontinuity(part.block, "a part has another number of entries than steps", length, part.length);
}

async function joinContent(
  parts: readonly Channel[],
  counts: readonly number[],
  blocks: Map<string, Block>,
): Promise<Block> {
  const [first] = parts;
  const sources = parts.map((part) => part.source);
  if (first instanceof VideoChannel) {
    joinFrames(parts as VideoChannel[], counts, blocks);
    return chainedBlock(
      first.block,
      sources,
      sources.map((source) => source.size),
    );
  }
  if (first instanceof RaggedChannel || first instanceof TextChannel) {
    return joinItems(parts as (RaggedChannel | TextChannel)[], counts, blocks);
  }
  return chainedBlock(
    first.block,
    sources,
    counts.map((count) => count * first.stepBytes),
  );
}

async function joinItems(
  parts: readonly (RaggedChannel | TextChannel)[],
  counts: readonly number[],
  blocks: Map<string, Block>,
): Promise<Block> {
  const [first] = parts;
  const sizes: number[] = [];
  for (const [number, part] of parts.entries()) {
    const isCut = counts[number] < part.length;
    sizes.push(isCut ? (await part.offsets(0, counts[number]))[counts[number]] * part.stepBytes : part.source.size);
  }
  const total = counts.reduce((sum, count) => sum + count, 0);
  const name = first.row?.offsetsBlock as string;
  blocks.set(
    name,
    lazyBlock(name, 8 * (total + 1), async () => {
      const offsets = new BigInt64Array(total + 1);
      let entry = 0;
      for (const [number, part] of parts.entries()) {
        const own = await part.offsets(0, counts[number]);
        const start = offsets[entry];
        for (const offset of own.subarray(1)) offsets[++entry] = start + BigInt(offset);
      }
      return rawBytes(offsets);
    }),
  );
  return chainedBlock(
    first.block,
    parts.map((part) => part.source),
    sizes,
  );
}

function joinFrames(parts: readonly VideoChannel[], counts: readonly number[], blocks: Map<string, Block>): void {
  const [first] = parts;
  const packets = parts.reduce((sum, part) => sum + part.indexBlocks().offsets.size / 8 - 1, 0);
  const load = async () => {
    const offsets = new BigInt64Array(packets + 1);
    const frames = new BigInt64Array(2 * packets);
    let packet = 0;
    let step = 0n;
    for (const [number, part] of parts.entries()) {
      const index = await part.index();
      const start = offsets[packet];
      for (let own = 0; own < index.steps.length; own++, packet++) {
        // The next part begins with the step that is left out.
        const isHidden = index.hidden[own] || index.steps[own] >= BigInt(counts[number]);
        offsets[packet + 1] = start + BigInt(index.offsets[own + 1]);
        frames[2 * packet] = index.steps[own] + step;
        frames[2 * packet + 1] = BigInt((index.keyframes[own] ? 1 : 0) | (isHidden ? 2 : 0));
      }
      step += BigInt(counts[number]);
    }
    return { offsets: rawBytes(offsets), frames: rawBytes(frames) };
  };
  let loaded: ReturnType<typeof load> | null = null;
  const once = () => {
    loaded ??= load();
    return loaded;
  };
  const name = first.row?.offsetsBlock as string;
  blocks.set(
    name,
    lazyBlock(name, 8 * (packets + 1), async () => (await once()).offsets),
  );
  const framesName = `frames/${first.block}`;
  blocks.set(
    framesName,
    lazyBlock(framesName, 16 * packets, async () => (await once()).frames),
  );
}

/** Rewards of one type: parts in which f32 holds them exactly are stored so, whatever the others need. */
function joinRewards(parts: readonly Channel[], lengths: readonly number[]): Promise<Channel> {
  const wide = parts.find((part) => part.dtype === "f64");
  if (wide === undefined) return joinChannel(parts, lengths);
  const widened = parts.map((part) => {
    if (!(part instanceof DenseChannel) || part.dtype !== "f32") return part;
    const load = async () => rawBytes(Float64Array.from(toTypedArray("f32", await part.bytes()) as Float32Array));
    const source = lazyBlock(wide.block, 8 * part.length, load);
    return new DenseChannel(source, { dtype: "f64", shape: [], row: wide.row }, part.length, () => null);
  });
  return joinChannel<Channel>(widened, lengths);
}

// --- residuals and labels

function joinResidual(parts: readonly Residual[], lengths: readonly number[]): Residual {
  const [first] = parts;
  const total = lengths.reduce((sum, length) => sum + length, 0);
  for (const part of parts) part.check();
  const filled = parts.filter((_, number) => lengths[number] > 0);
  const { dimensions, block } = filled[0] ?? first;
  if (first.type === "sign2nddiff") {
    const load = async () =>
      joinSigns(await Promise.all(parts.map(async (part) => ({ packed: await part.bytes(), steps: part.length }))));
    const source = lazyBlock(block, Math.ceil(total / 8) * dimensions, load);
    return new Residual(first, source, first.row, null, total, first.edges);
  }
  const load = async () => {
    const quantised = parts.map(async (part) => ({
      codes: await part.data(),
      scales: (await part.scales()) as Float32Array,
      window: part.window,
      steps: part.length,
    }));
    return joinQuantised(await Promise.all(quantised), dimensions);
  };
  // The window follows from the parts alone, so that the size of the scales is known before they are read.
  const nothing = filled.map((part) => ({
    codes: new Int8Array(0),
    scales: new Float32Array(0),
    window: part.window,
    steps: part.length,
  }));
  const { window } = joinQuantised(nothing, 0);
  let loaded: ReturnType<typeof load> | null = null;
  const once = () => {
    loaded ??= load();
    return loaded;
  };
  const codes = lazyBlock(block, total * dimensions, async () => rawBytes((await once()).codes));
  const scales = lazyBlock(`${block}/scales`, 4 * dimensions * Math.ceil(total / window), async () =>
    rawBytes((await once()).scales),
  );
  return new Residual(first, codes, { ...(first.row as Row), window }, scales, total, first.edges);
}

/** Labels that count steps are shifted; intervals that were cut at a border become one. */
function joinLabels(name: string, parts: readonly Episode[]): LabelLane {
  const block = `label/${name}`;
  const read = async (): Promise<Label> => {
    const joined = new JoinedIntervals();
    let whole: Label | null = null;
    let start = 0n;
    for (const part of parts) {
      const label = await part.labels.get(name)?.read();
      if (label !== undefined) {
        whole ??= label;
        if (whole.unit !== label.unit)
          throw discontinuity(block, "a part counts a label in another unit", whole.unit, label.unit);
        const border = label.unit === "steps" ? start : part.length ? ((await part.timesNs(0, 1))?.[0] ?? null) : null;
        joined.append(label.intervals, label.unit === "steps" ? start : 0n, border);
      }
      start += BigInt(part.length);
    }
    return { ...(whole as Label), intervals: joined.intervals };
  };
  return { block, read };
}

class JoinedIntervals {
  readonly intervals: Interval[] = [];
  /** Places of intervals by where they end, or ended: to search all of them takes too long. */
  readonly #ending = new Map<bigint, number[]>();

  append(added: readonly Interval[], shift: bigint, border: bigint | null): void {
    // The first interval of each kind that ends at the border, whose other half may follow.
    const cut = new Map<string, number>();
    for (const place of (border === null ? undefined : this.#ending.get(border)) ?? []) {
      const one = this.intervals[place];
      if (one.end === border && !cut.has(aboutOf(one))) cut.set(aboutOf(one), place);
    }
    for (const one of added) {
      const [start, end] = [one.start + shift, one.end + shift];
      const known = start === border && start < end ? cut.get(aboutOf(one)) : undefined;
      const place = known ?? this.intervals.length;
      this.intervals[place] = known === undefined ? { ...one, start, end } : { ...this.intervals[known], end };
      const places = this.#ending.get(end);
      if (places === undefined) this.#ending.set(end, [place]);
      else places.push(place);
    }
  }
}

function aboutOf({ text, source, confidence, extra }: Interval): string {
  return canonicalJson([text, source, confidence, extra]);
}
