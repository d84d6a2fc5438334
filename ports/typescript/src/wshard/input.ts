// What a caller gives for a new episode, checked and turned into blocks.

import { encodeUtf8 } from "../core/bytes.js";
import { invalid } from "../core/errors.js";
import type { JsonObject } from "../core/json.js";
import { ContentType, type DType } from "../core/registry.js";
import { concatenated, memoryBlock } from "./blocks.js";
import type { Timebase } from "./clocks.js";
import type { Label } from "./metadata.js";
import { checkOwnFields, type PlannedChannel, type PlannedEpisode, type PlannedResidual, stepBytes } from "./plan.js";
import { defaultWindow, type Edges, packSigns, quantise, secondDifferenceSigns } from "./residual-codes.js";
import { dtypeOf, type NumbersInput, rawBytes, toBytes, toFloats } from "./values.js";
import { checkFrames, checkPictureForm, formatBase64 } from "./video.js";

/** Maps by name: an object or a Map. */
export type Named<T> = Readonly<Record<string, T>> | ReadonlyMap<string, T>;

/** What the row of a channel may say besides its form. */
export interface ChannelFields {
  /** The times of its entries, if it advances independently of the steps. */
  readonly timestampsNs?: BigInt64Array | readonly bigint[];
  /** With `samplingRateHz`, a regular clock of its own. */
  readonly startNs?: bigint;
  readonly samplingRateHz?: number;
  readonly modality?: string;
  readonly unit?: string;
  readonly semantics?: string;
  readonly description?: string;
  readonly contentType?: string;
  /** How the values were changed before they were given here. */
  readonly lossy?: JsonObject;
  /** Fields of your own. */
  readonly fields?: JsonObject;
}

/** One array of a fixed shape for each step. */
export interface DenseInput extends ChannelFields {
  /** The values of all steps, in C order. */
  readonly data: NumbersInput;
  /** By default that of the array; f64 for a list of numbers. */
  readonly dtype?: DType;
  /** The shape of one step; [] by default. */
  readonly shape?: readonly number[];
  /** Needed only if a step has no values. */
  readonly length?: number;
  /** H, if each step holds values about the next H steps. */
  readonly horizon?: number;
}

/** A varying number of items in each step. */
export interface RaggedInput extends ChannelFields {
  readonly items: readonly NumbersInput[];
  readonly dtype?: DType;
  /** The shape of one item; [] by default. */
  readonly shape?: readonly number[];
}

/** One string for each step. */
export interface TextInput extends ChannelFields {
  readonly text: readonly string[];
}

/** The frames of a camera as a codec has encoded them. */
export interface VideoInput extends ChannelFields {
  readonly packets: readonly Uint8Array[];
  readonly contentType: string;
  /** The shape of a decoded frame. */
  readonly shape: readonly number[];
  readonly dtype?: "u8" | "u16";
  /** The step of each packet; 0, 1, 2, … by default. */
  readonly steps?: readonly (number | bigint)[];
  /** By default every packet is one. */
  readonly keyframes?: readonly boolean[];
  readonly hidden?: readonly boolean[];
  readonly extradata?: Uint8Array;
}

/** A channel of a new episode. */
export type ChannelInput = DenseInput | RaggedInput | TextInput | VideoInput;

/** A residual that the writer computes: of a signal, or of a signal and the prediction of a model. */
export interface ResidualInput {
  readonly channel: string;
  readonly model?: string;
  readonly type: "sign2nddiff" | "delta_q";
  readonly window?: number;
  /** The packed bits of `sign2nddiff`, if they were computed before. */
  readonly packed?: Uint8Array;
}

/** A labelled interval of a new episode. */
export interface IntervalInput {
  readonly start: number | bigint;
  readonly end: number | bigint;
  readonly text: string;
  readonly source?: string;
  readonly confidence?: number | null;
}

/** A label lane of a new episode; a list counts steps. */
export type LabelInput =
  | readonly IntervalInput[]
  | { readonly unit: "steps" | "ns"; readonly intervals: readonly IntervalInput[] };

/** A new episode. */
export interface EpisodeInput {
  readonly id: string;
  readonly envId?: string;
  /** T, the number of steps; by default that of the rewards, ends, actions or observations. */
  readonly length?: number;
  /** The rate is unknown by default. */
  readonly timebase?: Partial<Timebase>;
  readonly metadata?: JsonObject;
  readonly observations?: Named<ChannelInput>;
  readonly actions?: Named<ChannelInput>;
  readonly omens?: Named<Named<ChannelInput>>;
  readonly uncerts?: Named<Named<Named<ChannelInput>>>;
  readonly rewards?: NumbersInput | DenseInput;
  readonly terminations?: ArrayLike<boolean | number>;
  readonly truncations?: ArrayLike<boolean | number>;
  readonly ticks?: ArrayLike<number>;
  readonly timestampsNs?: BigInt64Array | readonly bigint[];
  readonly residuals?: readonly ResidualInput[];
  /** What residuals have at the first and the last step. */
  readonly residualEdges?: Edges;
  readonly labels?: Named<LabelInput>;
  /** Entries that the format does not define. */
  readonly extras?: Named<Uint8Array | { readonly data: Uint8Array; readonly contentType: number }>;
  readonly provenance?: JsonObject;
  readonly chunkIndex?: number;
  readonly totalChunks?: number;
  readonly timestepRange?: readonly [number, number];
}

/** The plan of a new episode. */
export function planInput(input: EpisodeInput): PlannedEpisode {
  const observations = mapped(input.observations, plannedChannel);
  const actions = mapped(input.actions, plannedChannel);
  const omens = mapped(input.omens, (models) => mapped(models, plannedChannel));
  const rewards = input.rewards === undefined ? null : plannedRewards(input.rewards);
  const length = input.length ?? guessedLength(input, rewards, actions, observations);
  if (!Number.isSafeInteger(length) || length < 0)
    throw invalid("the length is not an integer of 0 or more", { found: length });
  const times = input.timestampsNs;
  return {
    id: input.id,
    envId: input.envId ?? "",
    length,
    timebase: { type: times ? "timestamps_ns" : "ticks", tickHz: null, epochNs: 0n, ...input.timebase },
    metadata: input.metadata ?? {},
    chunkIndex: input.chunkIndex ?? null,
    totalChunks: input.totalChunks ?? null,
    timestepRange: input.timestepRange ?? null,
    residualEdges: input.residualEdges ?? "pad",
    observations,
    actions,
    omens,
    uncerts: mapped(input.uncerts, (models) => mapped(models, (kinds) => mapped(kinds, plannedChannel))),
    rewards,
    terminations: flags(input.terminations),
    truncations: flags(input.truncations),
    ticks: input.ticks === undefined ? null : toBytes("i32", Array.from(input.ticks), "time/ticks"),
    timestamps: times === undefined ? null : toBytes("i64", times, "time/timestamps_ns"),
    residuals: (input.residuals ?? []).map((one) => computed(one, input, length)),
    labels: mapped(input.labels, plannedLabel),
    extras: mapped(input.extras, (extra) => {
      const isBare = extra instanceof Uint8Array;
      return {
        content: memoryBlock("", isBare ? extra : extra.data),
        contentType: isBare ? ContentType.unknown : extra.contentType,
      };
    }),
    provenance: input.provenance ?? null,
  };
}

function entriesOf<T>(named: Named<T> | undefined): [string, T][] {
  if (named === undefined) return [];
  return named instanceof Map ? [...named] : Object.entries(named as Record<string, T>);
}

function mapped<T, U>(named: Named<T> | undefined, make: (one: T, name: string) => U): Map<string, U> {
  return new Map(entriesOf(named).map(([name, one]) => [name, make(one, name)]));
}

function guessedLength(
  input: EpisodeInput,
  rewards: PlannedChannel | null,
  actions: ReadonlyMap<string, PlannedChannel>,
  observations: ReadonlyMap<string, PlannedChannel>,
): number {
  if (rewards !== null) return rewards.length;
  for (const ends of [input.terminations, input.truncations, input.timestampsNs])
    if (ends !== undefined) return ends.length;
  for (const channel of [...actions.values(), ...observations.values()]) {
    if (channel.times === undefined && channel.fields.start_ns === undefined) return channel.length;
  }
  throw invalid("the number of steps is not known", { expected: "length" });
}

function flags(ends: ArrayLike<boolean | number> | undefined): Uint8Array | null {
  return ends === undefined ? null : Uint8Array.from(ends as ArrayLike<unknown>, (end) => (end ? 1 : 0));
}

// --- channels

function commonFields(input: ChannelFields): JsonObject {
  checkOwnFields(input.fields ?? {});
  const fields: JsonObject = { ...input.fields };
  const { modality, unit, semantics, description, contentType, lossy, startNs, samplingRateHz } = input;
  const texts = { modality, unit, semantics, description, content_type: contentType };
  for (const [key, text] of Object.entries(texts)) if (text !== undefined && text !== "") fields[key] = text;
  if (lossy !== undefined) fields.lossy = lossy;
  if (startNs !== undefined) fields.start_ns = startNs;
  if (samplingRateHz !== undefined) fields.sampling_rate_hz = samplingRateHz;
  return fields;
}

function formOf(
  values: NumbersInput | undefined,
  input: { dtype?: DType; shape?: readonly number[] },
): { dtype: DType; shape: readonly number[] } {
  const first = values?.[0];
  const listed = typeof first === "bigint" ? "i64" : typeof first === "boolean" ? "bool" : "f64";
  return { dtype: input.dtype ?? (values === undefined ? null : dtypeOf(values)) ?? listed, shape: input.shape ?? [] };
}

function plannedChannel(input: ChannelInput, name: string): PlannedChannel {
  const times = input.timestampsNs === undefined ? undefined : toBytes("i64", input.timestampsNs, name);
  const made = plannedLayout(input, name);
  return times === undefined ? made : { ...made, times };
}

function plannedLayout(input: ChannelInput, name: string): PlannedChannel {
  if ("text" in input) return plannedText(input, name);
  if ("items" in input) return plannedItems(input, name);
  return "packets" in input ? plannedVideo(input, name) : plannedDense(input, name);
}

function plannedDense(input: DenseInput, name: string): PlannedChannel {
  const form = formOf(input.data, input);
  const content = toBytes(form.dtype, input.data, name);
  const step = stepBytes(form);
  const length = step ? content.length / step : (input.length ?? 0);
  if (!Number.isInteger(length) || (input.length ?? length) !== length) {
    throw invalid("the values are not whole steps of the shape", {
      entry: name,
      expected: `[${form.shape}]`,
      found: `${input.data.length} values`,
    });
  }
  const fields = commonFields(input);
  if (input.horizon !== undefined) fields.horizon = input.horizon;
  return { ...form, length, layout: "dense", content: memoryBlock(name, content), fields };
}

function plannedRewards(input: NumbersInput | DenseInput): PlannedChannel {
  return plannedDense("data" in input ? input : { data: input }, "reward");
}

function plannedItems(input: RaggedInput, name: string): PlannedChannel {
  const form = formOf(input.items.find((items) => items.length > 0) ?? input.items[0], input);
  const pieces = input.items.map((items) => toBytes(form.dtype, items, name));
  const offsets = offsetsOf(pieces, stepBytes(form), name);
  return {
    ...form,
    length: pieces.length,
    layout: "ragged",
    content: memoryBlock(name, concatenated(pieces)),
    offsets,
    fields: commonFields(input),
  };
}

function plannedText(input: TextInput, name: string): PlannedChannel {
  const pieces = input.text.map((text) => {
    const bytes = encodeUtf8(text);
    if (bytes === undefined) throw invalid("a string has a lone surrogate", { entry: name });
    return bytes;
  });
  const form = { dtype: "u8" as const, shape: [] };
  const content = memoryBlock(name, concatenated(pieces));
  return {
    ...form,
    length: pieces.length,
    layout: "text",
    content,
    offsets: offsetsOf(pieces, 1, name),
    fields: commonFields(input),
  };
}

/** Where each piece starts, counted in items, and the end of the last. */
function offsetsOf(pieces: readonly Uint8Array[], item: number, name: string) {
  const offsets = new BigInt64Array(pieces.length + 1);
  for (const [at, piece] of pieces.entries()) {
    const count = item ? piece.length / item : 0;
    if (!Number.isInteger(count))
      throw invalid("a step is not a whole number of items", { entry: name, found: `${piece.length} bytes` });
    offsets[at + 1] = offsets[at] + BigInt(count);
  }
  return memoryBlock(`offsets/${name}`, rawBytes(offsets));
}

function plannedVideo(input: VideoInput, name: string): PlannedChannel {
  const { packets, steps, keyframes, hidden, extradata } = input;
  const fields = commonFields(input);
  if (extradata !== undefined && extradata.length > 0) fields.extradata = formatBase64(extradata);
  const count = packets.length;
  for (const list of [steps, keyframes, hidden]) {
    if (list !== undefined && list.length !== count)
      throw invalid("a list does not have one value for each packet", { entry: name });
  }
  const table = new BigInt64Array(2 * count);
  let isPlain = true;
  for (let at = 0; at < count; at++) {
    const flags = ((keyframes?.[at] ?? true) ? 1 : 0) | (hidden?.[at] ? 2 : 0);
    table[2 * at] = BigInt(steps?.[at] ?? at);
    table[2 * at + 1] = BigInt(flags);
    isPlain &&= flags === 1 && table[2 * at] === BigInt(at);
  }
  const form = { dtype: input.dtype ?? ("u8" as const), shape: input.shape };
  const length = count - (hidden ?? []).filter(Boolean).length;
  const fail = (_code: string, rule: string, problem: string, found: string) =>
    invalid(problem, { rule, entry: name, found });
  checkPictureForm(form, input.contentType, fail);
  checkFrames(table, count, length, fail);
  const made: PlannedChannel = {
    ...form,
    length,
    layout: "video",
    content: memoryBlock(name, concatenated(packets)),
    offsets: offsetsOf(packets, 1, name),
    fields,
  };
  return isPlain ? made : { ...made, frames: memoryBlock(`frames/${name}`, rawBytes(table)) };
}

// --- labels and residuals

function plannedLabel(input: LabelInput): Label {
  const { unit, intervals } = "intervals" in input ? input : { unit: "steps" as const, intervals: input };
  return {
    unit,
    intervals: intervals.map(({ start, end, text, source = "", confidence = null }) => {
      if (![start, end].every((bound) => typeof bound === "bigint" || Number.isSafeInteger(bound))) {
        throw invalid("the bounds of an interval are not integers", { found: `${start} to ${end}` });
      }
      return { start: BigInt(start), end: BigInt(end), text, source, confidence, extra: {} };
    }),
    extra: {},
  };
}

function computed(residual: ResidualInput, input: EpisodeInput, length: number): PlannedResidual {
  const { channel, model = "", type, window = defaultWindow } = residual;
  if (residual.packed !== undefined) {
    return { channel, model, type, window, shape: [], content: residual.packed, scales: null };
  }
  if (!Number.isSafeInteger(window) || window < 1)
    throw invalid("a window is not an integer above 0", { found: window });
  const signal = denseInput(entriesOf(input.observations), channel);
  const { shape } = formOf(signal.data, signal);
  const dimensions = shape.reduce((product, size) => product * size, 1);
  const x = floatsOf(signal, channel).slice(0, length * dimensions);
  if (model !== "") {
    const models = entriesOf(input.omens).find(([name]) => name === channel)?.[1];
    const predicted = floatsOf(denseInput(entriesOf(models), model), channel);
    if (predicted.length < x.length) throw invalid("the prediction is shorter than the signal", { entry: channel });
    for (let at = 0; at < x.length; at++) x[at] -= predicted[at];
  }
  const about = { channel, model, type, window, shape };
  if (type === "sign2nddiff") {
    const signs = secondDifferenceSigns(x, dimensions, input.residualEdges ?? "pad");
    return { ...about, content: packSigns(signs, dimensions), scales: null };
  }
  const { codes, scales } = quantise(x, dimensions, window);
  return { ...about, content: rawBytes(codes), scales: rawBytes(scales) };
}

function denseInput(channels: [string, ChannelInput][], name: string): DenseInput {
  const found = channels.find(([key]) => key === name)?.[1];
  if (found === undefined || !("data" in found)) throw invalid("a residual needs a dense channel", { found: name });
  return found;
}

function floatsOf(input: DenseInput, name: string): Float64Array {
  const { dtype } = formOf(input.data, input);
  return toFloats(dtype, toBytes(dtype, input.data, name));
}
