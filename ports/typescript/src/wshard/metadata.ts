// The descriptions of an episode: meta/wshard, meta/episode, meta/channels, labels and provenance
// (spec/wshard.md, sections 3, 5, 7 and 13). Parsing is pure: JSON in, facts or an error out.

import { toDType } from "../core/dtypes.js";
import { broken, shortened } from "../core/errors.js";
import { isInteger, isObject, type Json, type JsonObject } from "../core/json.js";
import type { DType, ErrorCode } from "../core/registry.js";
import { defaultRate, type Timebase } from "./clocks.js";
import { metaChannels, metaEpisode, metaProvenance, splitFirst } from "./names.js";

/** What `meta/episode` and `meta/wshard` say. */
export interface EpisodeFacts {
  readonly id: string;
  readonly envId: string;
  /** T, the number of steps; checked against the file before it is used as a number. */
  readonly length: bigint;
  readonly timebase: Timebase;
  readonly metadata: JsonObject;
  readonly chunkIndex: number | null;
  readonly totalChunks: number | null;
  readonly timestepRange: readonly [number, number] | null;
}

/** One row of `meta/channels`, checked. Fields that are absent are null. */
export interface Row {
  readonly id: string;
  readonly block: string;
  readonly dtype: DType;
  /** The shape of one step. */
  readonly shape: readonly number[];
  readonly length: bigint | null;
  readonly layout: string;
  readonly horizon: number | null;
  readonly window: number | null;
  readonly startNs: bigint | null;
  readonly samplingRateHz: number | null;
  readonly offsetsBlock: string | null;
  readonly framesBlock: string | null;
  readonly timeBlock: string | null;
  readonly contentType: string | null;
  readonly extradata: string | null;
  readonly channel: string | null;
  readonly model: string | null;
  readonly type: string | null;
  /** The whole row, as stored. */
  readonly fields: JsonObject;
}

/** A dtype and a shape. */
export interface Form {
  readonly dtype: DType;
  readonly shape: readonly number[];
}

const largest = (1n << 63n) - 1n;
const largestExact = 2 ** 53 - 1;
const mostDimensions = 31;
const mostBesideZero = 2n ** 31n - 1n;

// --- fields

function bad(rule: string, what: string, expected: string, found: Json | undefined, entry?: string): never {
  throw broken("bad_metadata", rule, `${what} is not ${expected}`, { entry, found: told(found) });
}

/** A value for a message. */
export function told(value: unknown): string {
  if (typeof value === "string") return JSON.stringify(shortened(value));
  if (Array.isArray(value)) return "a list";
  return typeof value === "object" && value !== null ? "an object" : shortened(String(value));
}

/** Whether a field is an integer from `least` to 2⁶³ − 1. */
export function isCount(holder: JsonObject | Json[], key: string | number, least = 0n): boolean {
  if (!isInteger(holder, key)) return false;
  const value = BigInt((holder as JsonObject)[key] as number | bigint);
  return value >= least && value <= largest;
}

/** Whether a field is an integer within ±(2⁶³ − 1). */
function isInt64(holder: JsonObject, key: string): boolean {
  return isCount(holder, key, -largest);
}

/** Whether a value is a number that a 64-bit float can hold. */
function isNumber(value: Json | undefined): value is number | bigint {
  return typeof value === "number" || (typeof value === "bigint" && Number.isFinite(Number(value)));
}

/** Whether a value is a SHA-256 in hex digits. */
export function isHash(value: Json | undefined): value is string {
  return typeof value === "string" && /^[0-9a-f]{64}$/.test(value);
}

/** A field that is there and not null. */
function given(holder: JsonObject, key: string): boolean {
  return holder[key] !== undefined && holder[key] !== null;
}

// --- meta/episode and meta/wshard

/** What the two descriptions say together (W-EPI, W-TIM-1). A journal, which has no length, gives one. */
export function parseFacts(episode: JsonObject, wshard: JsonObject, knownLength?: bigint): EpisodeFacts {
  const id = "episode_id" in episode ? episode.episode_id : episode.id;
  if (typeof id !== "string") bad("W-EPI-1", "'episode_id'", "a string", id, metaEpisode);
  const envId = "env_id" in episode ? episode.env_id : "";
  if (typeof envId !== "string") bad("W-EPI-1", "'env_id'", "a string", envId, metaEpisode);
  const length = knownLength ?? parseLength(episode);
  const { metadata } = episode;
  if (given(episode, "metadata") && !isObject(metadata))
    bad("W-EPI-3", "'metadata'", "an object", metadata, metaEpisode);
  return {
    id,
    envId,
    length,
    timebase: parseTimebase(episode, wshard),
    metadata: isObject(metadata) ? metadata : {},
    ...parseChunkFields(episode, length),
  };
}

function parseLength(episode: JsonObject): bigint {
  const key = "length_T" in episode ? "length_T" : "length_t";
  if (!isCount(episode, key)) bad("W-EPI-2", `'${key}'`, "an integer from 0 to 2⁶³ − 1", episode[key], metaEpisode);
  return BigInt(episode[key] as number | bigint);
}

type ChunkFields = Pick<EpisodeFacts, "chunkIndex" | "totalChunks" | "timestepRange">;

function parseChunkFields(episode: JsonObject, length: bigint): ChunkFields {
  for (const key of ["chunk_index", "total_chunks"]) {
    if (given(episode, key) && !isCount(episode, key)) {
      bad("W-EPI-4", `'${key}'`, "an integer of 0 or more", episode[key], metaEpisode);
    }
  }
  const chunkIndex = given(episode, "chunk_index") ? Number(episode.chunk_index) : null;
  const totalChunks = given(episode, "total_chunks") ? Number(episode.total_chunks) : null;
  if (chunkIndex !== null && totalChunks && chunkIndex >= totalChunks) {
    bad("W-EPI-4", "'chunk_index'", `below 'total_chunks', ${totalChunks}`, chunkIndex, metaEpisode);
  }
  const range = given(episode, "timestep_range") ? episode.timestep_range : null;
  if (range === null) return { chunkIndex, totalChunks, timestepRange: null };
  const isRange =
    Array.isArray(range) && range.length === 2 && isCount(range, 0, -largest) && isCount(range, 1, -largest);
  if (!isRange || BigInt(range[0] as number) > BigInt(range[1] as number))
    bad("W-EPI-4", "'timestep_range'", "two integers in order", range, metaEpisode);
  const [first, last] = range.map(Number) as [number, number];
  // Some writers store [0, 0] where nothing was set (section 11).
  const isUnset = first === 0 && last === 0 && length !== 1n;
  return { chunkIndex, totalChunks, timestepRange: isUnset ? null : [first, last] };
}

function parseTimebase(episode: JsonObject, wshard: JsonObject): Timebase {
  const bases = [checkTimebase(episode), checkTimebase(wshard)];
  const rates = bases.map((base) => Number(base.tick_hz ?? 0));
  const steps = bases.map((base) => Number(base.dt_ns ?? 0));
  const rate = rates.find((one) => one > 0) ?? steps.filter((one) => one > 0).map((one) => 1e9 / one)[0];
  const type = bases.map((base) => base.type).find((one) => one === "ticks" || one === "timestamps_ns");
  const epoch = bases.map((base) => base.epoch_ns).find((one) => one !== undefined && one !== null);
  // A writer of today says null for a rate that it does not know; those before it left the field out (W-TIM-5).
  const isUnknown = bases[0].tick_hz === null;
  return {
    type: (type as Timebase["type"] | undefined) ?? "ticks",
    tickHz: rate ?? (isUnknown ? null : defaultRate),
    epochNs: BigInt((epoch as number | bigint | undefined) ?? 0),
  };
}

function checkTimebase(fields: JsonObject): JsonObject {
  if (!given(fields, "timebase")) return {};
  const base = fields.timebase;
  if (!isObject(base)) bad("W-EPI-3", "'timebase'", "an object", base, metaEpisode);
  if (given(base, "type") && typeof base.type !== "string")
    bad("W-TIM-1", "'type'", "a string", base.type, metaEpisode);
  if (given(base, "tick_hz") && !isNumber(base.tick_hz))
    bad("W-TIM-1", "'tick_hz'", "a number", base.tick_hz, metaEpisode);
  for (const key of ["dt_ns", "epoch_ns"]) {
    if (given(base, key) && !isInt64(base, key))
      bad("W-TIM-1", `'${key}'`, "an integer of 64 bits", base[key], metaEpisode);
  }
  return base;
}

// --- meta/channels

const stringFields = [
  ...["signal_block", "dtype", "layout", "offsets_block", "frames_block", "extradata", "time_block", "modality"],
  ...["unit", "semantics", "description", "content_type", "channel", "model", "type"],
];
/** The fields of rows that this specification defines. */
export const rowFields: ReadonlySet<string> = new Set([
  ...stringFields,
  ...["id", "shape", "length", "window", "horizon", "start_ns", "sampling_rate_hz", "lossy"],
]);

/** The rows of `meta/channels` by block (W-CHN). */
export function parseRows(channels: JsonObject): Map<string, Row> {
  const rows: Row[] = [];
  if ("channels" in channels) {
    const listed = channels.channels;
    if (!Array.isArray(listed)) bad("W-CHN-1", "'channels'", "a list", listed, metaChannels);
    for (const fields of listed) rows.push(parseRow(fields));
  } else {
    for (const [block, fields] of Object.entries(channels)) rows.push(parseRow(fields, block));
  }
  const found = new Map<string, Row>();
  for (const row of rows) {
    if (found.has(row.block)) {
      throw broken("bad_metadata", "W-CHN-5", "two rows describe one block", {
        entry: metaChannels,
        found: told(row.block),
      });
    }
    found.set(row.block, row);
  }
  return found;
}

/** One row. `block` is the key of a row of the older form. */
export function parseRow(fields: Json, block?: string): Row {
  if (!isObject(fields)) bad("W-CHN-1", "a row", "an object", fields, metaChannels);
  const wrong = (key: string, expected: string) =>
    bad("W-CHN-2", `'${key}' of a row`, expected, fields[key], metaChannels);
  for (const key of stringFields) if (given(fields, key) && typeof fields[key] !== "string") wrong(key, "a string");
  if (given(fields, "length") && !isCount(fields, "length")) wrong("length", "an integer of 0 or more");
  for (const key of ["window", "horizon"])
    if (given(fields, key) && !isCount(fields, key, 1n)) wrong(key, "an integer above 0");
  if (given(fields, "start_ns") && !isInt64(fields, "start_ns")) wrong("start_ns", "an integer of 64 bits");
  const rate = fields.sampling_rate_hz;
  if (given(fields, "sampling_rate_hz") && !(isNumber(rate) && rate > 0)) wrong("sampling_rate_hz", "a number above 0");
  if (given(fields, "lossy") && !isObject(fields.lossy)) wrong("lossy", "an object");
  if (block === undefined && (typeof fields.id !== "string" || fields.id === ""))
    wrong("id", "a string that is not empty");
  const form = parseForm(fields);
  const text = (key: string) => (given(fields, key) ? (fields[key] as string) : null);
  const row: Row = {
    id: block === undefined ? (fields.id as string) : rowId(block),
    block: block ?? text("signal_block") ?? `signal/${fields.id as string}`,
    ...form,
    length: given(fields, "length") ? BigInt(fields.length as number | bigint) : null,
    layout: text("layout") ?? "dense",
    horizon: given(fields, "horizon") ? Number(fields.horizon) : null,
    window: given(fields, "window") ? Number(fields.window) : null,
    startNs: given(fields, "start_ns") ? BigInt(fields.start_ns as number | bigint) : null,
    samplingRateHz: given(fields, "sampling_rate_hz") ? Number(rate) : null,
    offsetsBlock: text("offsets_block"),
    framesBlock: text("frames_block"),
    timeBlock: text("time_block"),
    contentType: text("content_type"),
    extradata: text("extradata"),
    channel: text("channel"),
    model: text("model"),
    type: text("type"),
    fields,
  };
  if (row.horizon !== null && (row.shape[0] !== row.horizon || row.layout !== "dense")) {
    bad("W-CHN-8", "'horizon'", "the first number of the shape of a dense channel", fields.horizon, metaChannels);
  }
  return row;
}

/** The id in the row of a block: the name of a channel of `signal/` and `action/`, otherwise the whole name. */
export function rowId(block: string): string {
  const [lane, rest] = splitFirst(block);
  return lane === "signal" || lane === "action" ? rest : block;
}

/** The dtype and the shape of a row (W-CHN-2 to W-CHN-4). */
export function parseForm(fields: JsonObject): Form {
  const dtype = typeof fields.dtype === "string" ? toDType(fields.dtype) : undefined;
  if (dtype === undefined) bad("W-CHN-3", "'dtype'", "a known data type", fields.dtype, metaChannels);
  const shape = given(fields, "shape") ? (fields.shape as Json) : [];
  if (!Array.isArray(shape) || shape.some((size, at) => !isInteger(shape, at) || Number(size) < 0)) {
    bad("W-CHN-2", "'shape'", "a list of integers of 0 or more", shape, metaChannels);
  }
  const sizes = shape.map((size) => BigInt(size as number | bigint));
  const beside = sizes.reduce((product, size) => (size ? product * size : product), 1n);
  const isFitting = sizes.length <= mostDimensions && sizes.every((size) => size <= largest);
  if (!isFitting || (sizes.includes(0n) && beside > mostBesideZero)) {
    bad("W-CHN-4", "'shape'", "of at most 31 dimensions that memory can have", shape, metaChannels);
  }
  return { dtype, shape: sizes.map(Number) };
}

/** Rows of `omen_channels` or `action_spaces` by block, which describe them as those of `meta/channels` do. */
export function parseOlderRows(listed: Json | undefined, nameField: string, has: (block: string) => boolean): Row[] {
  const rows: Row[] = [];
  for (const fields of Array.isArray(listed) ? listed : []) {
    const block = isObject(fields) ? fields[nameField] : null;
    if (typeof block === "string" && has(block)) rows.push(parseRow(fields, block));
  }
  return rows;
}

// --- labels

/** One labelled interval, half-open. */
export interface Interval {
  readonly start: bigint;
  readonly end: bigint;
  readonly text: string;
  /** Who or what has labelled it; empty if nobody said. */
  readonly source: string;
  readonly confidence: number | null;
  /** Fields that the specification does not define. */
  readonly extra: JsonObject;
}

/** The intervals of one label lane. */
export interface Label {
  readonly unit: "steps" | "ns";
  readonly intervals: readonly Interval[];
  /** Fields that the specification does not define. */
  readonly extra: JsonObject;
}

/** A label lane (W-LAB). */
export function parseLabel(fields: JsonObject, entry?: string): Label {
  const { unit = "steps" } = fields;
  if (unit !== "steps" && unit !== "ns") bad("W-LAB-2", "'unit'", "'steps' or 'ns'", unit, entry);
  const rows = fields.intervals;
  if (!Array.isArray(rows)) bad("W-LAB-1", "'intervals'", "a list", rows, entry);
  const extra = without(fields, ["unit", "intervals"]);
  return { unit, intervals: rows.map((row) => parseInterval(row, entry)), extra };
}

function parseInterval(row: Json, entry: string | undefined): Interval {
  if (!isObject(row)) bad("W-LAB-1", "an interval", "an object", row, entry);
  for (const key of ["start", "end"]) {
    if (!isInt64(row, key)) bad("W-LAB-1", `'${key}' of an interval`, "an integer of 64 bits", row[key], entry);
  }
  const [start, end] = [row.start, row.end].map((bound) => BigInt(bound as number | bigint)) as [bigint, bigint];
  if (start > end) bad("W-LAB-1", "'end' of an interval", "at or after its start", row.end, entry);
  if (typeof row.text !== "string") bad("W-LAB-1", "'text' of an interval", "a string", row.text, entry);
  const { source = "", confidence = null } = row;
  if (typeof source !== "string") bad("W-LAB-1", "'source' of an interval", "a string", source, entry);
  if (confidence !== null && !isNumber(confidence))
    bad("W-LAB-1", "'confidence' of an interval", "a number", confidence, entry);
  const extra = without(row, ["start", "end", "text", "source", "confidence"]);
  return { start, end, text: row.text, source, confidence: confidence === null ? null : Number(confidence), extra };
}

/** The JSON of a label lane in canonical form. */
export function labelFields(label: Label): JsonObject {
  const intervals = label.intervals.map((one) => ({
    ...one.extra,
    end: one.end,
    start: one.start,
    text: one.text,
    ...(one.source === "" ? {} : { source: one.source }),
    ...(one.confidence === null ? {} : { confidence: one.confidence }),
  }));
  return { ...label.extra, intervals, unit: label.unit };
}

/** The fields of an object that are not listed. */
export function without(fields: JsonObject, keys: readonly string[]): JsonObject {
  return Object.fromEntries(Object.entries(fields).filter(([key]) => !keys.includes(key)));
}

// --- meta/provenance

/** What provenance says if nothing was set. */
export const provenanceDefaults: JsonObject = {
  end_state: "",
  epoch: 0,
  first_seq: 0,
  last_seq: 0,
  prev_identity: "",
  run_id: "",
  source: {},
  start_state: "",
  v: 1,
};

/** Checks `meta/provenance` (W-PRV-1); for checking tools and writers. */
export function checkProvenance(fields: JsonObject, code: ErrorCode = "bad_metadata"): void {
  const wrong = (key: string) => {
    throw broken(code, "W-PRV-1", `the provenance is wrong at '${key}'`, {
      entry: metaProvenance,
      found: told(fields[key]),
    });
  };
  for (const key of Object.keys(provenanceDefaults)) if (!(key in fields)) wrong(key);
  for (const [key, value] of Object.entries(fields)) {
    let isRight = false;
    if (["end_state", "start_state", "prev_identity"].includes(key)) isRight = value === "" || isHash(value);
    else if (key === "source")
      isRight = isObject(value) && Object.values(value).every((text) => typeof text === "string");
    else if (key === "run_id") isRight = typeof value === "string";
    else if (key === "v") isRight = isInteger(fields, key) && value === 1;
    else if (key in provenanceDefaults) isRight = isInteger(fields, key) && Math.abs(Number(value)) <= largestExact;
    if (!isRight) wrong(key);
  }
}
