// The writer of @wshard/core, over ours: files are in canonical form.

import { stat } from "node:fs/promises";
import { toTypedArray } from "../../core/dtypes.js";
import { invalid } from "../../core/errors.js";
import { canonicalBytes } from "../../core/json.js";
import { ContentType, type DType } from "../../core/registry.js";
import type { Timebase } from "../../wshard/clocks.js";
import type { DenseInput, EpisodeInput, ResidualInput } from "../../wshard/input.js";
import type { Edges } from "../../wshard/residual-codes.js";
import { packSigns, secondDifferenceSigns } from "../../wshard/residual-codes.js";
import { saveEpisode } from "../episodes.js";
import { levelOf } from "./codecs.js";
import {
  BLOCK_META_MODELS,
  type ChannelDef,
  type CompressionLevel,
  type CompressionType,
  decodeBool,
  type EpisodeMeta,
  encodeFloat32,
  encodeFloat32_2D,
  encodeInt32,
  LATENT_ACTION_CHANNEL,
  LATENT_CODEBOOK_CHANNEL,
  type ModelsMeta,
  type TimebaseMeta,
} from "./names.js";

/** What `setEpisode` takes: of the times, the type is enough, and the number of steps may be left out. */
type Episode = Omit<EpisodeMeta, "length_T" | "timebase"> & {
  length_T?: number;
  length_t?: number;
  timebase?: string | Partial<TimebaseMeta>;
};

export interface WShardWriterOptions {
  /** Ignored: files are in canonical form, with an alignment of 64. */
  alignment?: number;
  compression?: CompressionType;
  compressionLevel?: CompressionLevel;
}

/** Bytes of a block, with the form that the call says they have. */
interface Block {
  bytes: Uint8Array;
  dtype?: DType;
  shape?: number[];
}

type Rows = readonly ArrayLike<number>[];

/** Writes an episode. New code uses `saveEpisode`. */
export class WShardWriter {
  readonly #path: string;
  #compression: CompressionType;
  #level: CompressionLevel;
  #edges: Edges = "pad";
  #episode: Episode | undefined;
  #models: ModelsMeta | undefined;
  readonly #channels = new Map<string, ChannelDef>();
  readonly #signals = new Map<string, Block>();
  readonly #actions = new Map<string, Block>();
  readonly #omens = new Map<string, Map<string, Block>>();
  readonly #uncerts = new Map<string, Map<string, Map<string, Block>>>();
  readonly #residuals: ResidualInput[] = [];
  #ticks: readonly number[] | undefined;
  #times: readonly bigint[] | undefined;
  #rewards: Float32Array | undefined;
  #done: readonly boolean[] | undefined;

  constructor(path: string, options: WShardWriterOptions = {}) {
    this.#path = path;
    this.#compression = options.compression ?? "none";
    this.#level = options.compressionLevel ?? "default";
  }

  withCompression(type: CompressionType): this {
    this.#compression = type;
    return this;
  }

  withCompressionLevel(level: CompressionLevel): this {
    this.#level = level;
    return this;
  }

  setResidualEdgeRule(rule: Edges): this {
    this.#edges = rule;
    return this;
  }

  /** The number of steps; 0 before `setEpisode` has said it. */
  get lengthT(): number {
    return this.#episode?.length_T ?? this.#episode?.length_t ?? 0;
  }

  setEpisode(episode: Episode): this {
    this.#episode = episode;
    return this;
  }

  setModels(models: ModelsMeta): this {
    this.#models = models;
    return this;
  }

  addChannel(channel: ChannelDef): this {
    this.#channels.set(channel.id, channel);
    return this;
  }

  // --- steps

  setTimeTicks(ticks: readonly number[]): this {
    this.#ticks = ticks;
    return this;
  }

  setTimeTimestampsNs(times: readonly bigint[]): this {
    this.#times = times;
    return this;
  }

  setReward(rewards: ArrayLike<number>): this {
    this.#rewards = Float32Array.from(rewards);
    return this;
  }

  setDone(done: readonly boolean[]): this {
    this.#done = done;
    return this;
  }

  setDoneUint8(done: Uint8Array): this {
    return this.setDone(decodeBool(done));
  }

  // --- channels

  setSignal(id: string, data: Uint8Array): this {
    return this.#set(this.#signals, id, { bytes: data });
  }

  setSignalFloat32(id: string, values: ArrayLike<number>): this {
    return this.#set(this.#signals, id, flat(values));
  }

  setSignalFloat32_2D(id: string, rows: Rows): this {
    return this.#set(this.#signals, id, table(rows));
  }

  setAction(id: string, data: Uint8Array): this {
    return this.#set(this.#actions, id, { bytes: data });
  }

  setActionFloat32(id: string, values: ArrayLike<number>): this {
    return this.#set(this.#actions, id, flat(values));
  }

  setActionFloat32_2D(id: string, rows: Rows): this {
    return this.#set(this.#actions, id, table(rows));
  }

  setMultiModalSignal(group: string, modality: string, data: Uint8Array): this {
    return this.#set(this.#signals, `${group}/${modality}`, { bytes: data });
  }

  setMultiModalSignalFloat32(group: string, modality: string, values: ArrayLike<number>): this {
    return this.#set(this.#signals, `${group}/${modality}`, flat(values));
  }

  setMultiModalSignalFloat32_2D(group: string, modality: string, rows: Rows): this {
    return this.#set(this.#signals, `${group}/${modality}`, table(rows));
  }

  setOmen(channel: string, model: string, data: Uint8Array): this {
    return this.#set(inner(this.#omens, channel), model, { bytes: data });
  }

  setOmenFloat32(channel: string, model: string, values: ArrayLike<number>): this {
    return this.#set(inner(this.#omens, channel), model, flat(values));
  }

  setOmenFloat32_2D(channel: string, model: string, rows: Rows): this {
    return this.#set(inner(this.#omens, channel), model, table(rows));
  }

  setUncert(channel: string, model: string, type: string, data: Uint8Array): this {
    return this.#set(inner(inner(this.#uncerts, channel), model), type, { bytes: data });
  }

  setUncertFloat32(channel: string, model: string, type: string, values: ArrayLike<number>): this {
    return this.#set(inner(inner(this.#uncerts, channel), model), type, flat(values));
  }

  setUncertFloat32_2D(channel: string, model: string, type: string, rows: Rows): this {
    return this.#set(inner(inner(this.#uncerts, channel), model), type, table(rows));
  }

  setLatentAction(model: string, data: Uint8Array): this {
    return this.setOmen(LATENT_ACTION_CHANNEL, model, data);
  }

  setLatentActionFloat32(model: string, values: ArrayLike<number>): this {
    return this.setOmenFloat32(LATENT_ACTION_CHANNEL, model, values);
  }

  setLatentActionFloat32_2D(model: string, rows: Rows): this {
    return this.setOmenFloat32_2D(LATENT_ACTION_CHANNEL, model, rows);
  }

  setLatentActionCodebook(model: string, data: Uint8Array): this {
    return this.#set(inner(this.#omens, LATENT_CODEBOOK_CHANNEL), model, { bytes: data, dtype: "i32" });
  }

  setLatentActionCodebookInt32(model: string, values: ArrayLike<number>): this {
    return this.setLatentActionCodebook(model, encodeInt32(values));
  }

  setResidualSign2ndDiff(channel: string, packed: Uint8Array): this {
    this.#residuals.push({ channel, type: "sign2nddiff", packed });
    return this;
  }

  computeAndSetResidual(channel: string, values: ArrayLike<number>): this {
    return this.setResidualSign2ndDiff(
      channel,
      packSigns(secondDifferenceSigns(Float64Array.from(values), 1, this.#edges)),
    );
  }

  #set(to: Map<string, Block>, key: string, block: Block): this {
    to.set(key, block);
    return this;
  }

  // --- writing

  /** Writes the file; returns its size. */
  async write(): Promise<number> {
    const options = { compression: this.#compression, level: levelOf(this.#level) };
    await saveEpisode(this.#input(), this.#path, options);
    return (await stat(this.#path)).size;
  }

  #input(): EpisodeInput {
    const episode = this.#episode;
    if (episode === undefined) throw invalid("setEpisode was not called", { path: this.#path });
    const length =
      episode.length_T ?? episode.length_t ?? this.#done?.length ?? this.#rewards?.length ?? this.#ticks?.length;
    if (length === undefined)
      throw invalid("the number of steps is not known", { expected: "length_T", path: this.#path });
    const dense = (key: string, block: Block) => this.#dense(key, block, length);
    const models = (map: Map<string, Block>, channel: string) => mapped(map, (one) => dense(channel, one));
    return {
      id: episode.episode_id,
      envId: episode.env_id ?? "",
      length,
      timebase: parseTimebase(episode.timebase),
      metadata: {
        ...(episode.source === undefined ? {} : { source: episode.source }),
        ...(episode.action_space === undefined ? {} : { action_space: episode.action_space }),
        ...episode.metadata,
      },
      ...(episode.chunk_index === undefined ? {} : { chunkIndex: episode.chunk_index }),
      ...(episode.total_chunks === undefined ? {} : { totalChunks: episode.total_chunks }),
      ...(episode.timestep_range === undefined ? {} : { timestepRange: episode.timestep_range }),
      residualEdges: this.#edges,
      observations: mapped(this.#signals, (one, key) => dense(key, one)),
      actions: mapped(this.#actions, (one, key) => dense(key, one)),
      omens: mapped(this.#omens, models),
      uncerts: mapped(this.#uncerts, (byModel, channel) => mapped(byModel, (kinds) => models(kinds, channel))),
      residuals: this.#residuals,
      ...(this.#ticks === undefined ? {} : { ticks: this.#ticks }),
      ...(this.#times === undefined ? {} : { timestampsNs: this.#times }),
      ...(this.#rewards === undefined ? {} : { rewards: this.#rewards }),
      ...(this.#done === undefined ? {} : { terminations: this.#done }),
      ...(this.#models === undefined
        ? {}
        : {
            extras: {
              [BLOCK_META_MODELS]: { data: canonicalBytes({ ...this.#models }), contentType: ContentType.json },
            },
          }),
    };
  }

  /** A block with its form: what the call says, what its channel says, or 32-bit floats. */
  #dense(key: string, { bytes, dtype, shape }: Block, length: number): DenseInput {
    const known = this.#channels.get(key);
    const type = dtype ?? known?.dtype ?? "f32";
    const values = toTypedArray(type === "f16" || type === "bf16" ? "u16" : type, bytes);
    const perStep = length > 0 ? values.length / length : 0;
    const guessed = Number.isInteger(perStep) && perStep !== 1 && perStep > 0 ? [perStep] : [];
    const { modality, unit, description, semantics, content_type: contentType, sampling_rate_hz: rate } = known ?? {};
    const texts = Object.entries({ modality, unit, description, semantics, contentType });
    return {
      data: values,
      dtype: type,
      shape: shape ?? known?.shape ?? guessed,
      ...Object.fromEntries(texts.filter(([, text]) => text !== undefined)),
      ...(rate === undefined ? {} : { samplingRateHz: rate }),
    };
  }
}

function flat(values: ArrayLike<number>): Block {
  return { bytes: encodeFloat32(values), dtype: "f32" };
}

function table(rows: Rows): Block {
  const columns = rows[0]?.length ?? 0;
  if (rows.some((row) => row.length !== columns)) throw invalid("the rows of a table do not have the same length");
  return { bytes: encodeFloat32_2D(rows), dtype: "f32", shape: [columns] };
}

function inner<T>(maps: Map<string, Map<string, T>>, key: string): Map<string, T> {
  const found = maps.get(key) ?? new Map<string, T>();
  maps.set(key, found);
  return found;
}

function mapped<T, U>(map: ReadonlyMap<string, T>, make: (one: T, key: string) => U): Map<string, U> {
  return new Map([...map].map(([key, one]) => [key, make(one, key)]));
}

/** A timebase as files have it, or only its type. */
function parseTimebase(given: Episode["timebase"]): Partial<Timebase> {
  const { type, tick_hz, dt_ns, epoch_ns } = (typeof given === "string" ? { type: given } : given) ?? {};
  const tickHz = tick_hz ?? (dt_ns ? 1e9 / Number(dt_ns) : null);
  return {
    ...(type === "ticks" || type === "timestamps_ns" ? { type } : {}),
    tickHz,
    ...(epoch_ns === undefined ? {} : { epochNs: BigInt(epoch_ns) }),
  };
}
