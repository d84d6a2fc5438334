// From an episode to the entries of its canonical file (spec/wshard.md, section 15).

import { compareUtf8, equalBytes } from "../core/bytes.js";
import { broken, invalid, located, ShardError } from "../core/errors.js";
import { canonicalBytes, type JsonObject } from "../core/json.js";
import { ContentType, type DType, dtypeSizes } from "../core/registry.js";
import { type Block, memoryBlock } from "./blocks.js";
import { stepNs, type Timebase } from "./clocks.js";
import {
  checkProvenance,
  type Label,
  labelFields,
  parseFacts,
  parseLabel,
  parseRow,
  provenanceDefaults,
  rowFields,
  rowId,
} from "./metadata.js";
import {
  checkId,
  differences,
  done,
  fileGroup,
  joinKeys,
  mayHaveOneMore,
  metaChannels,
  metaEpisode,
  metaIdentity,
  metaProvenance,
  metaWshard,
  parseBlock,
  reward,
  rewardExact,
  rowGroup,
  scalesSuffix,
  signs,
  terminated,
  timeStamps,
  timeTicks,
  truncated,
} from "./names.js";
import { packedSize } from "./residual-codes.js";
import { rawBytes, toFloats } from "./values.js";

/** A channel as its file will have it. */
export interface PlannedChannel {
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly length: number;
  readonly layout: "dense" | "ragged" | "text" | "video";
  readonly content: Block;
  /** Of ragged, text and video channels. */
  readonly offsets?: Block | undefined;
  /** Of video channels that need it. */
  readonly frames?: Block | undefined;
  /** The timestamps of its own clock, as stored. */
  readonly times?: Uint8Array | undefined;
  /** Fields of its row besides those that follow from the rest. */
  readonly fields: JsonObject;
  /** Whether it may have any length: it came from a file that has it so. */
  readonly anyLength?: boolean;
}

/** A residual as its file will have it. */
export interface PlannedResidual {
  readonly channel: string;
  readonly model: string;
  readonly type: "sign2nddiff" | "delta_q";
  readonly content: Uint8Array;
  /** Of `delta_q`. */
  readonly scales: Uint8Array | null;
  readonly window: number;
  /** The shape of one step of the signal. */
  readonly shape: readonly number[];
}

/** An episode as its file will have it. Every channel is ready to be copied. */
export interface PlannedEpisode {
  readonly id: string;
  readonly envId: string;
  readonly length: number;
  readonly timebase: Timebase;
  readonly metadata: JsonObject;
  readonly chunkIndex: number | null;
  readonly totalChunks: number | null;
  readonly timestepRange: readonly [number, number] | null;
  readonly residualEdges: "pad" | "overlap";
  readonly observations: ReadonlyMap<string, PlannedChannel>;
  readonly actions: ReadonlyMap<string, PlannedChannel>;
  readonly omens: ReadonlyMap<string, ReadonlyMap<string, PlannedChannel>>;
  readonly uncerts: ReadonlyMap<string, ReadonlyMap<string, ReadonlyMap<string, PlannedChannel>>>;
  /** Dense, of shape []. */
  readonly rewards: PlannedChannel | null;
  /** One byte 0 or 1 for each step. */
  readonly terminations: Uint8Array | null;
  readonly truncations: Uint8Array | null;
  /** As stored; 0 to T − 1 if null. */
  readonly ticks: Uint8Array | null;
  readonly timestamps: Uint8Array | null;
  readonly residuals: readonly PlannedResidual[];
  readonly labels: ReadonlyMap<string, Label>;
  readonly extras: ReadonlyMap<string, { content: Block; contentType: number }>;
  readonly provenance: JsonObject | null;
}

/** One entry of the file to be. */
export interface PlannedEntry {
  readonly name: string;
  readonly content: Block;
  readonly contentType: number;
}

const i32Limit = 2 ** 31;

/** The entries of the canonical file of an episode, in order, without `meta/identity`. */
export async function planEntries(episode: PlannedEpisode): Promise<PlannedEntry[]> {
  const plan = new Plan(episode);
  await plan.addAll();
  return plan.inOrder();
}

class Plan {
  readonly #episode: PlannedEpisode;
  readonly #entries = new Map<string, PlannedEntry>();
  readonly #rows: JsonObject[] = [];
  readonly #clocks = new Map<string, Uint8Array>();

  constructor(episode: PlannedEpisode) {
    this.#episode = episode;
  }

  async addAll(): Promise<void> {
    const episode = this.#episode;
    for (const [lane, channels] of [
      ["signal", episode.observations],
      ["action", episode.actions],
    ] as const) {
      for (const [id, channel] of byName(channels)) this.#channel(`${lane}/${named(id, "a channel")}`, channel);
    }
    await this.#rewards();
    this.#ends();
    this.#steps();
    for (const [channel, models] of byName(episode.omens)) {
      for (const [model, one] of byName(models)) this.#prediction("omen", [channel, model], one);
    }
    for (const [channel, models] of byName(episode.uncerts)) {
      for (const [model, kinds] of byName(models)) {
        for (const [kind, one] of byName(kinds)) this.#prediction("uncert", [channel, model, kind], one);
      }
    }
    for (const residual of episode.residuals) this.#residual(residual);
    for (const [id, label] of episode.labels) this.#label(`label/${named(id, "a label")}`, label);
    for (const [name, { content, contentType }] of episode.extras) {
      if (fileGroup(name) <= fileGroup(metaChannels) || name === metaProvenance || name === metaIdentity) {
        throw invalid("the episode makes this entry itself", { entry: name });
      }
      this.#add(name, content, contentType);
    }
    if (episode.provenance !== null) {
      const provenance = { ...provenanceDefaults, ...episode.provenance };
      checkProvenance(provenance, "invalid_argument");
      this.#json(metaProvenance, provenance);
    }
    this.#descriptions();
  }

  inOrder(): PlannedEntry[] {
    const place = (a: PlannedEntry, b: PlannedEntry) =>
      fileGroup(a.name) - fileGroup(b.name) || compareUtf8(a.name, b.name);
    return [...this.#entries.values()].sort(place);
  }

  // --- entries

  #add(name: string, content: Block | Uint8Array, contentType: number = ContentType.unknown): void {
    if (this.#entries.has(name)) throw invalid("two parts of the episode make a block of this name", { entry: name });
    const block = content instanceof Uint8Array ? memoryBlock(name, content) : content;
    this.#entries.set(name, { name, content: block, contentType });
  }

  #json(name: string, fields: JsonObject): void {
    this.#add(name, canonicalBytes(fields), ContentType.json);
  }

  #row(block: string, form: { dtype: DType; shape: readonly number[] }, more: JsonObject): void {
    const basic = { dtype: form.dtype, id: rowId(block), shape: [...form.shape], signal_block: block };
    const row = { ...more, ...basic };
    try {
      parseRow(row);
    } catch (error) {
      // What a reader would refuse is here an error of the caller.
      if (!(error instanceof ShardError)) throw error;
      throw invalid(error.problem, { rule: error.rule, entry: block, found: error.found });
    }
    this.#rows.push(row);
  }

  // --- descriptions

  #descriptions(): void {
    const { residualEdges } = this.#episode;
    this.#json(metaWshard, { endianness: "little", format: "W-SHARD", residual_edges: residualEdges, version: "0.1" });
    this.#json(metaEpisode, this.#facts());
    const place = (row: JsonObject) => rowGroup(row.signal_block as string);
    this.#rows.sort((a, b) => place(a) - place(b) || compareUtf8(a.id as string, b.id as string));
    this.#json(metaChannels, { channels: this.#rows });
  }

  #facts(): JsonObject {
    const { id, envId, length, timebase, metadata, chunkIndex, totalChunks, timestepRange } = this.#episode;
    const rate = timebase.tickHz;
    if (rate !== null && !(rate > 0 && Number.isFinite(rate)))
      throw invalid("the rate is not above 0", { found: rate });
    const clock: JsonObject = { tick_hz: rate, type: timebase.type };
    if (rate !== null) clock.dt_ns = stepNs(rate);
    if (timebase.epochNs !== 0n) clock.epoch_ns = timebase.epochNs;
    const fields: JsonObject = { env_id: envId, episode_id: id, length_T: length, timebase: clock };
    if (Object.keys(metadata).length > 0) fields.metadata = metadata;
    if (chunkIndex !== null) fields.chunk_index = chunkIndex;
    if (totalChunks !== null) fields.total_chunks = totalChunks;
    if (timestepRange !== null) fields.timestep_range = [...timestepRange];
    if (id === "") throw invalid("an episode needs an id");
    try {
      parseFacts(fields, {});
    } catch (error) {
      if (!(error instanceof ShardError)) throw error;
      throw invalid(error.problem, { rule: error.rule, found: error.found });
    }
    return fields;
  }

  // --- channels

  #prediction(lane: string, keys: string[], channel: PlannedChannel): void {
    const what = ["a channel", "a model", "an uncertainty"];
    keys.forEach((key, at) => {
      if (key !== "" || lane === "omen" || at !== 1) named(key, what[at]);
    });
    const block = joinKeys(lane, ...keys);
    const read = parseBlock(block);
    const isClear = [read.channel, read.model, read.kind].slice(0, keys.length).every((key, at) => key === keys[at]);
    const about = Object.fromEntries(
      ["channel", "model", "type"].slice(0, keys.length).map((field, at) => [field, keys[at]]),
    );
    this.#channel(block, channel, isClear ? {} : about);
  }

  #channel(block: string, channel: PlannedChannel, about: JsonObject = {}): void {
    try {
      this.#checkChannel(block, channel);
    } catch (error) {
      throw located(error, undefined, block);
    }
    const fields: JsonObject = { ...channel.fields, ...about };
    if (channel.length !== this.#episode.length) fields.length = channel.length;
    if (channel.layout !== "dense") fields.layout = channel.layout;
    if (channel.offsets !== undefined) {
      fields.offsets_block = `offsets/${block}`;
      this.#add(`offsets/${block}`, channel.offsets);
    }
    if (channel.frames !== undefined) {
      fields.frames_block = `frames/${block}`;
      this.#add(`frames/${block}`, channel.frames);
    }
    if (channel.times !== undefined) fields.time_block = this.#clock(block, channel.times);
    this.#add(block, channel.content);
    this.#row(block, channel, fields);
  }

  #checkChannel(block: string, channel: PlannedChannel): void {
    const { length } = this.#episode;
    const { times, fields } = channel;
    if (times !== undefined && times.length !== 8 * channel.length) {
      throw invalid("the clock has another length than the channel", {
        expected: channel.length,
        found: times.length / 8,
      });
    }
    if (fields.start_ns !== undefined && fields.sampling_rate_hz === undefined)
      throw invalid("a regular clock needs a rate");
    const hasClock = times !== undefined || fields.start_ns !== undefined;
    const isStep = channel.length === length || (mayHaveOneMore(block) && channel.length === length + 1);
    if (hasClock || isStep || channel.anyLength) return;
    throw invalid("the channel has another length than the episode, and no clock of its own", {
      expected: `${length} steps`,
      found: channel.length,
    });
  }

  /** The block of a clock; channels with equal timestamps share it. */
  #clock(block: string, times: Uint8Array): string {
    for (const [name, known] of this.#clocks) if (equalBytes(known, times)) return name;
    let name = `time/${block}`;
    for (let number = 2; this.#entries.has(name) || name === timeTicks || name === timeStamps; number++) {
      name = `time/${block}/${number}`;
    }
    this.#clocks.set(name, times);
    this.#add(name, times);
    return name;
  }

  // --- lanes of one block

  async #rewards(): Promise<void> {
    const { rewards, length } = this.#episode;
    if (rewards === null) return;
    if (rewards.layout !== "dense" || rewards.shape.length > 0 || rewards.length !== length) {
      throw invalid("rewards are one number for each step", { entry: reward, expected: length, found: rewards.length });
    }
    if (rewards.dtype === "f32") {
      this.#add(reward, rewards.content);
      if (Object.keys(rewards.fields).length > 0) this.#row(reward, { dtype: "f32", shape: [] }, rewards.fields);
      return;
    }
    const exact = await rewards.content.read();
    const values = toFloats(rewards.dtype, exact);
    const singles = Float32Array.from(values);
    this.#add(reward, rawBytes(singles));
    // Bit by bit: NaN is not equal to itself.
    if (rewards.dtype === "f64" && equalBytes(exact, rawBytes(Float64Array.from(singles)))) {
      if (Object.keys(rewards.fields).length > 0) this.#row(reward, { dtype: "f32", shape: [] }, rewards.fields);
      return;
    }
    this.#add(rewardExact, exact);
    this.#row(rewardExact, { dtype: rewards.dtype, shape: [] }, rewards.fields);
  }

  #ends(): void {
    const { terminations, truncations, length } = this.#episode;
    for (const ends of [terminations, truncations]) {
      if (ends !== null && ends.length !== length) {
        throw invalid("ends are one byte for each step", { entry: done, expected: length, found: ends.length });
      }
    }
    if (truncations === null) {
      if (terminations !== null) this.#add(done, terminations);
      return;
    }
    const ended = terminations ?? new Uint8Array(length);
    this.#add(
      done,
      ended.map((end, at) => (end || truncations[at] ? 1 : 0)),
    );
    this.#add(terminated, ended);
    this.#add(truncated, truncations);
  }

  #steps(): void {
    const { ticks, timestamps, length } = this.#episode;
    if (length >= i32Limit) throw broken("invalid_argument", "W-TIM-2", "too many steps for ticks", { found: length });
    this.#clockOfSteps(timeTicks, ticks ?? rawBytes(Int32Array.from({ length }, (_, step) => step)), 4);
    if (timestamps !== null) this.#clockOfSteps(timeStamps, timestamps, 8);
  }

  #clockOfSteps(name: string, bytes: Uint8Array, size: number): void {
    const expected = this.#episode.length * size;
    if (bytes.length !== expected)
      throw broken("invalid_argument", "W-TIM-2", "the clock does not fit the steps", {
        entry: name,
        expected,
        found: bytes.length,
      });
    this.#add(name, bytes);
  }

  #residual(residual: PlannedResidual): void {
    const { channel, model, type, content, scales, window, shape } = residual;
    const { length } = this.#episode;
    const block = joinKeys("residual", named(channel, "a channel"), model === "" ? "" : named(model, "a model"), type);
    const about: JsonObject = model === "" ? { channel, type } : { channel, model, type };
    this.#add(block, content);
    if (type === signs) {
      const packed = packedSize(length);
      const dimensions = packed ? content.length / packed : 0;
      if (!Number.isInteger(dimensions))
        throw broken("invalid_argument", "W-RES-1", "the bits do not fit the steps", { entry: block });
      this.#row(block, { dtype: "u8", shape: [packed] }, { ...about, length: dimensions });
      return;
    }
    const columns = shape.reduce((product, size) => product * size, 1);
    const count = Math.ceil(length / window);
    if (
      type !== differences ||
      scales === null ||
      content.length !== length * columns ||
      scales.length !== 4 * columns * count
    ) {
      throw broken("invalid_argument", "W-RES-2", "the differences or scales do not fit the steps", { entry: block });
    }
    this.#row(block, { dtype: "i8", shape }, { ...about, window });
    this.#add(block + scalesSuffix, scales);
    this.#row(block + scalesSuffix, { dtype: "f32", shape }, { length: count });
  }

  #label(block: string, label: Label): void {
    const fields = labelFields(label);
    try {
      parseLabel(fields, block);
    } catch (error) {
      if (!(error instanceof ShardError)) throw error;
      throw invalid(error.problem, { rule: error.rule, entry: block, found: error.found });
    }
    this.#json(block, fields);
  }
}

/** The entries of a map by the UTF-8 bytes of their keys. */
function byName<T>(map: ReadonlyMap<string, T>): [string, T][] {
  return [...map].sort(([a], [b]) => compareUtf8(a, b));
}

function named(id: string, what: string): string {
  checkId(id, what);
  return id;
}

/** Fields of a row that a caller gives besides those that the specification defines. */
export function checkOwnFields(extra: JsonObject): void {
  for (const key of Object.keys(extra)) {
    if (rowFields.has(key)) throw invalid("a field of a row is set twice", { found: key });
  }
}

/** Bytes of one step. */
export function stepBytes(form: { dtype: DType; shape: readonly number[] }): number {
  return form.shape.reduce((product, size) => product * size, dtypeSizes[form.dtype]);
}
