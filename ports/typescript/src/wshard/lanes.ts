// Which lane each block belongs to (spec/wshard.md, sections 2, 10 and 16).

import { located } from "../core/errors.js";
import { checkJsonSize, parseJsonObject } from "../core/json.js";
import { dtypeSizes, type Limits } from "../core/registry.js";
import type { Block, FindBlock } from "./blocks.js";
import { type Channel, channelOfRow, DenseChannel } from "./channels.js";
import { type Form, type Label, parseLabel, type Row } from "./metadata.js";
import {
  done,
  latentAction,
  latentCodebook,
  mayHaveOneMore,
  metaChannels,
  metaEdit,
  metaEpisode,
  metaIdentity,
  metaProvenance,
  metaSidecar,
  metaWshard,
  parseBlock,
  residualKey,
  reward,
  rewardExact,
  scalesSuffix,
  splitFirst,
  terminated,
  timeStamps,
  timeTicks,
  truncated,
} from "./names.js";
import { type Residual, residualOf } from "./residual.js";
import type { Edges } from "./residual-codes.js";
import { isIntegerType } from "./values.js";

/** A label lane, read when it is asked for. */
export interface LabelLane {
  readonly block: string;
  /** Reads and checks the intervals. */
  read(): Promise<Label>;
}

/** An entry that the format does not define. */
export interface Extra {
  readonly source: Block;
  readonly contentType: number;
}

/** The parts of an episode. */
export interface Lanes {
  readonly observations: Map<string, Channel>;
  readonly actions: Map<string, Channel>;
  /** By channel and model. */
  readonly omens: Map<string, Map<string, Channel>>;
  /** By channel, model (empty if the name has none) and type. */
  readonly uncerts: Map<string, Map<string, Map<string, Channel>>>;
  rewards: Channel | null;
  terminations: DenseChannel | null;
  truncations: DenseChannel | null;
  ticks: DenseChannel | null;
  timestamps: DenseChannel | null;
  /** By block without `residual/` and a trailing `/sign2nddiff`. */
  readonly residuals: Map<string, Residual>;
  readonly labels: Map<string, LabelLane>;
  readonly extras: Map<string, Extra>;
}

/** An episode without parts. */
export function emptyLanes(): Lanes {
  return {
    observations: new Map(),
    actions: new Map(),
    omens: new Map(),
    uncerts: new Map(),
    rewards: null,
    terminations: null,
    truncations: null,
    ticks: null,
    timestamps: null,
    residuals: new Map(),
    labels: new Map(),
    extras: new Map(),
  };
}

/** What the lanes of an episode are made of. */
export interface Blocks {
  /** All entries of the episode and its sidecars, by name. */
  readonly found: ReadonlyMap<string, Block & { readonly contentType: number }>;
  /** Rows of blocks that are there. */
  readonly rows: ReadonlyMap<string, Row>;
  /** Rows of blocks that are not there. */
  readonly unplaced: readonly Row[];
  readonly steps: number;
  readonly edges: Edges;
  readonly limits: Readonly<Limits>;
}

const knownMeta: ReadonlySet<string> = new Set([
  ...[metaWshard, metaEpisode, metaChannels, metaProvenance, metaIdentity, metaSidecar, metaEdit],
]);
const singles: ReadonlySet<string> = new Set([reward, done, terminated, truncated, timeTicks, timeStamps]);

/** Puts every block into the lane it belongs to. Nothing is read. */
export function routeBlocks(blocks: Blocks): Lanes {
  const { found, rows } = blocks;
  const lanes = emptyLanes();
  const find: FindBlock = (name) => found.get(name) ?? null;
  const used = new Set<string | null>();
  for (const row of rows.values()) {
    used.add(row.timeBlock);
    if (row.layout !== "dense") used.add(row.offsetsBlock).add(row.framesBlock);
  }
  for (const block of found.values()) {
    const { name } = block;
    if (knownMeta.has(name) || singles.has(name) || (name === rewardExact && rows.has(name))) continue;
    if (isScales(name) && found.has(name.slice(0, -scalesSuffix.length))) continue;
    // A block that is the clock or the offsets of a channel is not an extra, but it may be a channel, too.
    if (place(lanes, block, blocks, find) || used.has(name)) continue;
    lanes.extras.set(name, { source: block, contentType: block.contentType });
  }
  placeSingles(lanes, blocks, find);
  return lanes;
}

function isScales(name: string): boolean {
  return name.startsWith("residual/") && name.endsWith(scalesSuffix);
}

/** Whether a block found its lane; one whose place is taken, or that has an empty key, does not (W-NAM-2). */
function place(lanes: Lanes, block: Block, blocks: Blocks, find: FindBlock): boolean {
  const { name } = block;
  const row = blocks.rows.get(name) ?? null;
  const { lane, ...named } = parseBlock(name);
  const channel = () => (row === null ? inferred(block, blocks, find) : channelOfRow(row, block, blocks.steps, find));
  if (lane === "signal" || lane === "action") {
    const to = lane === "signal" ? lanes.observations : lanes.actions;
    return named.channel !== "" && add(to, row?.id ?? named.channel, channel);
  }
  if (lane === "omen") {
    const about = row?.channel || named.channel;
    const model = row?.model || named.model;
    return about !== "" && model !== "" && add(inner(lanes.omens, about), model, channel);
  }
  if (lane === "uncert") {
    const about = row?.channel || named.channel;
    const kind = row?.type || named.kind;
    const models = about !== "" && kind !== "" ? inner(lanes.uncerts, about) : null;
    return models !== null && add(inner(models, row?.model ?? named.model), kind, channel);
  }
  if (lane === "residual") {
    const residual = residualOf(block, row, find, blocks.steps, blocks.edges);
    return residual !== null && add(lanes.residuals, residualKey(name), () => residual);
  }
  if (lane === "label")
    return named.channel !== "" && add(lanes.labels, named.channel, () => labelLane(block, blocks.limits));
  return false;
}

function add<T>(to: Map<string, T>, key: string, make: () => T): boolean {
  if (to.has(key)) return false;
  to.set(key, make());
  return true;
}

/** The map at a key, made if it is not there. */
export function inner<T>(maps: Map<string, Map<string, T>>, key: string): Map<string, T> {
  let found = maps.get(key);
  if (found === undefined) {
    found = new Map();
    maps.set(key, found);
  }
  return found;
}

function labelLane(block: Block, { maxJsonBytes, maxJsonNodes }: Limits): LabelLane {
  const read = async () => {
    try {
      checkJsonSize(block.size, "a label", maxJsonBytes);
      const options = { what: "a label", rule: "W-LAB-1", maxJsonBytes, maxJsonNodes };
      return parseLabel(parseJsonObject(await block.read(), options));
    } catch (error) {
      throw located(error, block.path, block.name);
    }
  };
  return { block: block.name, read };
}

function placeSingles(lanes: Lanes, blocks: Blocks, find: FindBlock): void {
  const { found, rows, steps } = blocks;
  // An empty block means absent; a description without steps has empty blocks.
  const there = (...names: string[]) => {
    const name = names.find((one) => found.has(one) && (steps === 0 || find(one)?.size !== 0));
    return name === undefined ? null : find(name);
  };
  const flat = (block: Block | null, dtype: "f32" | "bool" | "i32" | "i64", rule: string, row: Row | null = null) =>
    block === null ? null : new DenseChannel(block, { dtype, shape: [], row }, steps, find, false, rule);
  const exact = rows.get(rewardExact);
  const exactBlock = exact === undefined ? null : there(rewardExact);
  if (exact !== undefined && exactBlock !== null) lanes.rewards = channelOfRow(exact, exactBlock, steps, find);
  else lanes.rewards = flat(there(reward), "f32", "W-END-1", plainReward(rows.get(reward)));
  lanes.terminations = flat(there(terminated, done), "bool", "W-END-1");
  lanes.truncations = flat(there(truncated), "bool", "W-END-1");
  lanes.ticks = flat(there(timeTicks), "i32", "W-TIM-2");
  lanes.timestamps = flat(there(timeStamps), "i64", "W-TIM-2");
}

/** `reward` is f32 [T] whatever its row says; the row may say what the numbers mean. */
function plainReward(row: Row | undefined): Row | null {
  if (row === undefined) return null;
  return {
    ...row,
    dtype: "f32",
    shape: [],
    length: null,
    layout: "dense",
    offsetsBlock: null,
    timeBlock: null,
    startNs: null,
  };
}

/** Section 10: the first description whose size fits exactly. */
function inferred(block: Block, blocks: Blocks, find: FindBlock): DenseChannel {
  const { steps } = blocks;
  for (const form of guesses(block, blocks)) {
    const step = form.shape.reduce((product, size) => product * size, dtypeSizes[form.dtype]);
    if (steps * step === block.size || (mayHaveOneMore(block.name) && (steps + 1) * step === block.size)) {
      return new DenseChannel(block, { ...form, row: null }, steps, find, true);
    }
  }
  // All bytes in one entry for each: an array without a time axis.
  return new DenseChannel(block, { dtype: "u8", shape: [], row: null }, block.size, find, true);
}

function* guesses(block: Block, blocks: Blocks): Generator<Form> {
  const [lane, rest] = splitFirst(block.name);
  const [channel] = splitFirst(rest);
  const columns = blocks.steps ? block.size / (4 * blocks.steps) : 0;
  const rows = Number.isInteger(columns) ? [[columns]] : [];
  if (lane === "action")
    for (const row of blocks.unplaced) if (row.id === rest) yield { dtype: row.dtype, shape: row.shape };
  if (lane === "omen" && channel === latentCodebook) for (const shape of [[], ...rows]) yield { dtype: "i32", shape };
  if (lane === "omen" && channel === latentAction) for (const shape of rows) yield { dtype: "f32", shape };
  const signal = blocks.rows.get(`signal/${channel}`);
  if ((lane === "omen" || lane === "uncert") && signal !== undefined) {
    const isFloat = lane === "uncert" && isIntegerType(signal.dtype);
    yield { dtype: isFloat ? "f32" : signal.dtype, shape: signal.shape };
  }
  for (const shape of [[], ...rows]) yield { dtype: "f32", shape };
}
