// Episodes: facts when they are opened, arrays when they are asked for (spec/wshard.md, section 16).

import { checkSizes } from "../core/content.js";
import { toTypedArray } from "../core/dtypes.js";
import { broken, ShardError } from "../core/errors.js";
import type { JsonObject } from "../core/json.js";
import type { ShardReader } from "../core/reader.js";
import { dtypeSizes, Role } from "../core/registry.js";
import type { ReadOptions } from "../core/source.js";
import type { Block } from "./blocks.js";
import type { Channel, DenseChannel } from "./channels.js";
import { regularTimes, type Timebase } from "./clocks.js";
import { type Blocks, type Extra, type LabelLane, type Lanes, routeBlocks } from "./lanes.js";
import { type EpisodeFacts, parseFacts, parseOlderRows, parseRows, type Row } from "./metadata.js";
import { mayHaveOneMore, metaChannels, metaEpisode, metaProvenance, metaSidecar, metaWshard } from "./names.js";
import type { Residual } from "./residual.js";
import type { Edges } from "./residual-codes.js";

const mostUnbacked = 1n << 20n;

/** An episode. Its facts are here; channels read their values when they are asked. */
export class Episode {
  readonly id: string;
  readonly envId: string;
  /** T, the number of steps. */
  readonly length: number;
  readonly timebase: Timebase;
  readonly metadata: JsonObject;
  /** Which part of a longer episode this file is. */
  readonly chunkIndex: number | null;
  readonly totalChunks: number | null;
  /** The first and the last step of this part in the whole episode. */
  readonly timestepRange: readonly [number, number] | null;
  /** What residuals have at the first and the last step. */
  readonly residualEdges: Edges;

  readonly observations: ReadonlyMap<string, Channel>;
  readonly actions: ReadonlyMap<string, Channel>;
  /** Predictions by channel and model. */
  readonly omens: ReadonlyMap<string, ReadonlyMap<string, Channel>>;
  /** Uncertainties by channel, model and type; the model is "" if the name has none. */
  readonly uncerts: ReadonlyMap<string, ReadonlyMap<string, ReadonlyMap<string, Channel>>>;
  readonly rewards: Channel | null;
  readonly terminations: DenseChannel | null;
  readonly truncations: DenseChannel | null;
  readonly residuals: ReadonlyMap<string, Residual>;
  readonly labels: ReadonlyMap<string, LabelLane>;
  /** Entries that the format does not define. */
  readonly extras: ReadonlyMap<string, Extra>;

  /** `time/ticks` and `time/timestamps_ns`, if they are stored. */
  readonly clocks: { readonly ticks: DenseChannel | null; readonly timestamps: DenseChannel | null };
  /** Sidecars that were left out because they break a rule, and why. */
  readonly problems: readonly ShardError[];
  /** The files of the episode; the first is the episode itself or its manifest. None if it is a recording. */
  readonly files: readonly ShardReader[];

  /** Use `openEpisode`. */
  constructor(facts: Omit<EpisodeFacts, "length"> & { length: number }, lanes: Lanes, from: EpisodeOrigin) {
    this.id = facts.id;
    this.envId = facts.envId;
    this.length = facts.length;
    this.timebase = facts.timebase;
    this.metadata = facts.metadata;
    this.chunkIndex = facts.chunkIndex;
    this.totalChunks = facts.totalChunks;
    this.timestepRange = facts.timestepRange;
    this.residualEdges = from.edges;
    this.observations = lanes.observations;
    this.actions = lanes.actions;
    this.omens = lanes.omens;
    this.uncerts = lanes.uncerts;
    this.rewards = lanes.rewards;
    this.terminations = lanes.terminations;
    this.truncations = lanes.truncations;
    this.residuals = lanes.residuals;
    this.labels = lanes.labels;
    this.extras = lanes.extras;
    this.clocks = { ticks: lanes.ticks, timestamps: lanes.timestamps };
    this.files = from.files;
    this.problems = from.problems ?? [];
  }

  /** The tick of each step: stored, or 0 to T − 1. */
  async ticks(): Promise<Int32Array> {
    const { ticks } = this.clocks;
    if (ticks !== null) return toTypedArray("i32", await ticks.bytes()) as Int32Array;
    return Int32Array.from({ length: this.length }, (_, step) => step);
  }

  /** The time of each step in nanoseconds; null if the episode has neither timestamps nor a rate. */
  async timesNs(start = 0, end = this.length): Promise<BigInt64Array | null> {
    const { timestamps } = this.clocks;
    if (timestamps !== null) return toTypedArray("i64", await timestamps.bytes(start, end));
    const { tickHz, epochNs } = this.timebase;
    return tickHz === null ? null : regularTimes(epochNs, tickHz, end - start, start);
  }

  /** `meta/provenance`; null if the file has none. */
  async provenance(): Promise<JsonObject | null> {
    const file = this.files[0];
    return file?.has(metaProvenance) ? file.readJson(metaProvenance, "W-PRV-1") : null;
  }

  /** Closes the files. */
  async close(): Promise<void> {
    await Promise.all(this.files.map((file) => file.close()));
  }
}

/** Where an episode came from. */
export interface EpisodeOrigin {
  readonly files: readonly ShardReader[];
  readonly edges: Edges;
  readonly problems?: readonly ShardError[];
}

/** The descriptions of one file. */
export interface Opened {
  readonly reader: ShardReader;
  readonly facts: EpisodeFacts;
  readonly rows: ReadonlyMap<string, Row>;
  readonly edges: Edges;
}

/** Reads and checks what describes an episode (W-ROL, W-JSN, W-EPI, W-CHN, W-TIM-1). */
export async function readDescriptions(reader: ShardReader, isSidecar = false): Promise<Opened> {
  const { role } = reader.header;
  if (role !== Role.wshard)
    throw broken("bad_profile", "W-ROL-1", "not an episode", { expected: "role 5", found: role });
  if (!isSidecar && reader.has(metaSidecar)) {
    throw broken("bad_profile", "W-ROL-2", "this is a sidecar, which belongs to an episode", { entry: metaSidecar });
  }
  if (!reader.has(metaEpisode))
    throw broken("bad_profile", "W-ROL-2", "the episode is not described", { entry: metaEpisode });
  const wshard = reader.has(metaWshard) ? await reader.readJson(metaWshard, "W-JSN-1") : {};
  const episode = await reader.readJson(metaEpisode, "W-JSN-1");
  const facts = parseFacts(episode, wshard);
  if (!isSidecar) checkBacked(reader, facts.length);
  const channels = reader.has(metaChannels) ? await reader.readJson(metaChannels, "W-JSN-1") : {};
  const rows = parseRows(channels);
  const isMissing = (block: string) => reader.has(block) && !rows.has(block);
  const older = [
    ...parseOlderRows(wshard.omen_channels, "block", isMissing),
    ...parseOlderRows(episode.action_spaces, "name", isMissing),
  ];
  for (const row of older) if (!rows.has(row.block) && isFitting(row, reader, facts.length)) rows.set(row.block, row);
  const edges = wshard.residual_edges === "overlap" ? "overlap" : "pad";
  return { reader, facts, rows, edges };
}

/** Whether a description that older writers keep elsewhere fits its block (section 10). */
function isFitting(row: Row, reader: ShardReader, steps: bigint): boolean {
  const size = BigInt(entryBlock(reader, row.block).size);
  const step = row.shape.reduce((product, one) => product * BigInt(one), BigInt(dtypeSizes[row.dtype]));
  return size === steps * step || (mayHaveOneMore(row.block) && size === (steps + 1n) * step);
}

/** W-EPI-5: nobody makes up steps that no entry has bytes for. */
function checkBacked(reader: ShardReader, length: bigint): void {
  if (length <= mostUnbacked) return;
  const { index, header, limits } = reader;
  for (let number = 0; number < reader.names.length; number++) {
    const row = index.row(number);
    if (row.origSize < length) continue;
    try {
      checkSizes(row, header, limits);
      return;
    } catch (error) {
      if (!(error instanceof ShardError)) throw error; // its size is a mere claim too
    }
  }
  const expected = `at most ${mostUnbacked}, or an entry with a byte for each step`;
  throw broken("size_mismatch", "W-EPI-5", "the episode claims more steps than its file has bytes for", {
    entry: metaEpisode,
    expected,
    found: length,
  });
}

/** The episode of a file and of the sidecars that add lanes to it. */
export function episodeOf(
  parts: readonly Opened[],
  changes: { metadata?: JsonObject; problems?: ShardError[]; files?: ShardReader[] } = {},
): Episode {
  const [base] = parts;
  const facts = { ...base.facts, length: Number(base.facts.length), metadata: changes.metadata ?? base.facts.metadata };
  const files = changes.files ?? parts.map((part) => part.reader);
  return new Episode(facts, routeBlocks(blocksOf(parts)), {
    files,
    edges: base.edges,
    ...(changes.problems ? { problems: changes.problems } : {}),
  });
}

function blocksOf(parts: readonly Opened[]): Blocks {
  const [base] = parts;
  const found = new Map<string, Block & { contentType: number }>();
  const rows = new Map<string, Row>();
  const unplaced: Row[] = [];
  for (const { reader, rows: own } of parts) {
    const isSidecar = reader !== base.reader;
    for (const name of reader.names)
      if (!isSidecar || !name.startsWith("meta/")) found.set(name, entryBlock(reader, name));
    for (const row of own.values()) {
      if (reader.has(row.block)) rows.set(row.block, row);
      else unplaced.push(row);
    }
  }
  const { facts, edges, reader } = base;
  return { found, rows, unplaced, steps: Number(facts.length), edges, limits: reader.limits };
}

/** An entry of a file as a block. A whole one is checked against its checksum. */
export function entryBlock(reader: ShardReader, name: string): Block & { contentType: number } {
  const row = reader.index.row(reader.index.find(name) as number);
  const size = Number(row.origSize);
  return {
    name,
    path: reader.path,
    size,
    contentType: row.contentType,
    read: (start = 0, end = size, options?: ReadOptions) =>
      start === 0 && end === size ? reader.read(name, options) : reader.readRange(name, start, end, options),
  };
}
