// What a case of spec/vectors/canonical tells about an episode, as the writer wants it.

import { fromHex } from "../src/core/bytes.js";
import { toTypedArray } from "../src/core/dtypes.js";
import type { DType, Json, JsonObject } from "../src/node.js";
import type {
  ChannelInput,
  DenseInput,
  EpisodeInput,
  LabelInput,
  NumbersInput,
  ResidualInput,
} from "../src/wshard/node.js";
import { parseBase64 } from "../src/wshard/video.js";

type Case = Record<string, unknown>;

export function caseInput(given: JsonObject): EpisodeInput {
  const told = given as Case;
  const timebase = told.timebase as { type: "ticks" | "timestamps_ns"; tick_hz: number | null; epoch_ns: string };
  const { rewards, timestamps_ns: times } = told;
  const residuals = (told.residuals as Case[] | undefined)?.map(residual);
  return {
    id: told.id as string,
    envId: told.env_id as string,
    length: Number(told.length),
    timebase: { type: timebase.type, tickHz: timebase.tick_hz, epochNs: BigInt(timebase.epoch_ns) },
    metadata: told.metadata as JsonObject,
    observations: mapped(told.observations, channel),
    actions: mapped(told.actions, channel),
    omens: mapped(told.omens, (models) => mapped(models, channel)),
    uncerts: mapped(told.uncerts, (models) => mapped(models, (kinds) => mapped(kinds, channel))),
    labels: mapped(told.labels, label),
    extras: mapped(told.extras, (extra) => ({ data: bytes(extra.hex), contentType: Number(extra.content_type) })),
    ...ifGiven("rewards", rewards && (channel(rewards as Case) as DenseInput)),
    ...ifGiven("terminations", told.terminations && bytes(told.terminations)),
    ...ifGiven("truncations", told.truncations && bytes(told.truncations)),
    ...ifGiven("ticks", (told.ticks as string[] | undefined)?.map(Number)),
    ...ifGiven("timestampsNs", (times as string[] | undefined)?.map(BigInt)),
    ...ifGiven("residuals", residuals),
    ...ifGiven("provenance", told.provenance),
    ...ifGiven("chunkIndex", told.chunk_index && Number(told.chunk_index)),
    ...ifGiven("totalChunks", told.total_chunks && Number(told.total_chunks)),
    ...ifGiven("timestepRange", (told.timestep_range as string[] | undefined)?.map(Number)),
  };
}

/** A field, if there is a value for it. */
function ifGiven(key: string, value: unknown): object {
  return value === undefined || value === null ? {} : { [key]: value };
}

function mapped<T>(told: unknown, make: (one: Case) => T): Map<string, T> {
  return new Map(Object.entries((told ?? {}) as Record<string, Case>).map(([key, one]) => [key, make(one)]));
}

function bytes(hex: unknown): Uint8Array {
  return fromHex(hex as string) as Uint8Array;
}

/** Every bit of the values; those of 16-bit floats as integers. */
export function numbers(dtype: DType, hex: unknown): NumbersInput {
  return toTypedArray(dtype === "f16" || dtype === "bf16" ? "u16" : dtype, bytes(hex));
}

function channel(told: Case): ChannelInput {
  const {
    content_type: contentType,
    modality,
    unit,
    semantics,
    description,
    lossy,
    ...own
  } = (told.row ?? {}) as JsonObject;
  const dtype = told.dtype as DType;
  const shape = (told.shape as string[]).map(Number);
  const common = {
    ...ifGiven("contentType", contentType),
    ...ifGiven("modality", modality),
    ...ifGiven("unit", unit),
    ...ifGiven("semantics", semantics),
    ...ifGiven("description", description),
    ...ifGiven("lossy", lossy),
    ...ifGiven("startNs", told.start_ns && BigInt(told.start_ns as string)),
    ...ifGiven("samplingRateHz", told.sampling_rate_hz),
    ...ifGiven("timestampsNs", (told.timestamps_ns as string[] | undefined)?.map(BigInt)),
    fields: own as Record<string, Json>,
  };
  switch (told.layout) {
    case "text":
      return { ...common, text: told.text as string[] };
    case "ragged":
      return { ...common, dtype, shape, items: (told.items as string[]).map((items) => numbers(dtype, items)) };
    case "video":
      return {
        ...common,
        dtype: dtype as "u8" | "u16",
        shape,
        contentType: told.content_type as string,
        packets: (told.packets as string[]).map(bytes),
        extradata: parseBase64((told.extradata as string | undefined) ?? "") as Uint8Array,
        ...ifGiven("steps", (told.steps as string[] | undefined)?.map(BigInt)),
        ...ifGiven("keyframes", told.keyframes),
        ...ifGiven("hidden", told.hidden),
      };
    default:
      return {
        ...common,
        dtype,
        shape,
        data: numbers(dtype, told.hex),
        ...ifGiven("length", told.length && Number(told.length)),
        ...ifGiven("horizon", told.horizon && Number(told.horizon)),
      };
  }
}

function label(told: Case): LabelInput {
  const intervals = (told.intervals as Case[]).map((one) => ({
    start: BigInt(one.start as string),
    end: BigInt(one.end as string),
    text: one.text as string,
    source: (one.source as string | null) ?? "",
    confidence: one.confidence as number | null,
  }));
  return { unit: told.unit as "steps" | "ns", intervals };
}

function residual(told: Case): ResidualInput {
  const { channel: about, model, type, window } = told;
  return {
    channel: about as string,
    model: model as string,
    type: type as ResidualInput["type"],
    ...ifGiven("window", window && Number(window)),
  };
}
