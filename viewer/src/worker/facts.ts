// What an opened episode says about itself, as plain facts for the page.

import { type JsonObject, ShardError, type ShardReader } from "@shard-format/core";
import type { Channel, Episode, Residual } from "@shard-format/core/wshard";
import type { ChannelFacts, EntryFacts, EpisodeFacts, Lane, Layout } from "../model/facts";

/** A channel, or a residual, that can be read, with its facts. */
export interface Readable {
  readonly facts: ChannelFacts;
  readonly channel: Channel | null;
  readonly residual: Residual | null;
}

/** A channel of the page has at most this many steps: positions are exact, and arrays can be made for them. */
const mostEntries = 2 ** 32;

/** All channels, in the order in which the tree and the stage show them. */
export function readables(episode: Episode): Readable[] {
  const found: Readable[] = [];
  const owners = ownersOf(episode);
  const add = (lane: Lane, id: string, channel: Channel | null, about: { model?: string; type?: string } = {}) => {
    if (channel !== null)
      found.push({ facts: channelFacts(lane, id, channel, about, owners), channel, residual: null });
  };
  for (const [id, channel] of episode.observations) add("signal", id, channel);
  add("reward", "reward", episode.rewards);
  add("terminated", "terminated", episode.terminations);
  add("truncated", "truncated", episode.truncations);
  for (const [id, channel] of episode.actions) add("action", id, channel);
  for (const [id, models] of episode.omens) for (const [model, channel] of models) add("omen", id, channel, { model });
  for (const [id, models] of episode.uncerts) {
    for (const [model, types] of models)
      for (const [type, channel] of types) add("uncert", id, channel, { model, type });
  }
  for (const residual of episode.residuals.values()) {
    found.push({ facts: residualFacts(residual, owners), channel: null, residual });
  }
  for (const [id, { block }] of episode.labels) {
    found.push({
      facts: { ...blank("label", id, block), layout: "label", ...stored(owners, block) },
      channel: null,
      residual: null,
    });
  }
  for (const [name, { source }] of episode.extras) {
    const facts = { ...blank("extra", name, name), length: source.size, ...stored(owners, name) };
    found.push({ facts, channel: null, residual: null });
  }
  return found;
}

function blank(lane: Lane, id: string, block: string): ChannelFacts {
  return {
    key: block,
    lane,
    id,
    model: "",
    type: "",
    layout: "bytes",
    dtype: "u8",
    shape: [],
    dimensions: 1,
    length: 0,
    unit: "",
    rate: null,
    horizon: null,
    hasOwnClock: false,
    contentType: "",
    codec: "",
    storedBytes: 0,
    bytes: 0,
    isInferred: false,
    lossy: null,
    sidecar: "",
    row: {},
    problem: null,
  };
}

/** The length of a channel, or why it has none. */
function lengthOf(channel: Channel | Residual): { length: number; problem: string | null } {
  try {
    if ("check" in channel) channel.check();
    const { length } = channel;
    if (length > mostEntries) return { length: 0, problem: `${length} entries are more than this page can show` };
    // Checks that the offsets are there and fit.
    if ("offsetsBlock" in channel) channel.offsetsBlock();
    if ("indexBlocks" in channel) channel.indexBlocks();
    if ("clockBlock" in channel) channel.clockBlock();
    if (channel instanceof Object && "layout" in channel && channel.layout === "unknown") {
      return { length: 0, problem: `unknown layout '${channel.row?.layout}'` };
    }
    return { length, problem: null };
  } catch (error) {
    return { length: 0, problem: error instanceof ShardError ? error.message : String(error) };
  }
}

function channelFacts(
  lane: Lane,
  id: string,
  channel: Channel,
  about: { model?: string; type?: string },
  owners: Owners,
): ChannelFacts {
  const { row } = channel;
  const fields = row?.fields ?? {};
  return {
    ...blank(lane, id, channel.block),
    ...about,
    layout: channel.layout as Layout,
    dtype: channel.dtype,
    shape: channel.shape,
    dimensions: channel.valuesPerStep,
    ...lengthOf(channel),
    unit: typeof fields["unit"] === "string" ? fields["unit"] : "",
    rate: channel.samplingRateHz,
    horizon: channel.horizon,
    hasOwnClock: channel.hasOwnClock,
    contentType: row?.contentType ?? "",
    isInferred: channel.inferred,
    lossy: isObject(fields["lossy"]) ? fields["lossy"] : null,
    row: plain(fields),
    ...stored(owners, channel.block),
    bytes: channel.source.size,
  };
}

function residualFacts(residual: Residual, owners: Owners): ChannelFacts {
  const { row } = residual;
  return {
    ...blank("residual", residual.channel, residual.block),
    model: residual.model,
    type: residual.type,
    layout: "dense",
    dtype: "i8",
    shape: residual.shape,
    dimensions: residual.dimensions,
    ...lengthOf(residual),
    row: plain(row?.fields ?? {}),
    ...stored(owners, residual.block),
    bytes: residual.source.size,
  };
}

/** Which file holds each block; the first that does. */
type Owners = ReadonlyMap<string, { reader: ShardReader; isSidecar: boolean }>;

function ownersOf(episode: Episode): Owners {
  const owners = new Map<string, { reader: ShardReader; isSidecar: boolean }>();
  for (const reader of episode.files) {
    const isSidecar = reader.has("meta/sidecar");
    for (const name of reader.names) if (!owners.has(name)) owners.set(name, { reader, isSidecar });
  }
  return owners;
}

function stored(owners: Owners, block: string): Pick<ChannelFacts, "codec" | "storedBytes" | "sidecar" | "bytes"> {
  const owner = owners.get(block);
  if (owner === undefined) return { codec: "", storedBytes: 0, sidecar: "", bytes: 0 };
  const entry = owner.reader.entry(block);
  return {
    codec: codecName(entry.codec, entry.isFiltered),
    storedBytes: entry.diskSize,
    bytes: entry.origSize,
    sidecar: owner.isSidecar ? baseName(owner.reader.path ?? "") : "",
  };
}

function codecName(codec: string | undefined, isFiltered: boolean): string {
  if (codec === undefined) return "?";
  return isFiltered ? `${codec}, filtered` : codec;
}

export function entryFacts(reader: ShardReader): EntryFacts[] {
  return Array.from(reader.entries(), (entry) => ({
    name: entry.name,
    file: reader.path ?? "",
    codec: codecName(entry.codec, entry.isFiltered),
    contentType: entry.contentType,
    offset: entry.dataOffset,
    storedBytes: entry.diskSize,
    bytes: entry.origSize,
    crc32c: entry.crc32c ?? null,
  }));
}

export function episodeFacts(
  row: number,
  episode: Episode,
  channels: readonly Readable[],
  { isUnfinished, recover }: Pick<EpisodeFacts, "isUnfinished" | "recover">,
): EpisodeFacts {
  return {
    row,
    id: episode.id,
    envId: episode.envId,
    length: episode.length,
    rate: episode.timebase.tickHz,
    epochNs: String(episode.timebase.epochNs),
    hasTimestamps: episode.clocks.timestamps !== null,
    metadata: plain(episode.metadata),
    task: taskOf(episode.metadata),
    files: episode.files.map(({ path, header }) => ({ name: path ?? "", size: header.totalFileSize })),
    chunks: episode.files.filter((file) => file.has("meta/episode") && !file.has("meta/sidecar")).length,
    isUnfinished,
    recover,
    channels: channels.map(({ facts }) => facts),
    problems: episode.problems.map(({ message }) => message),
  };
}

/** What the episode is about, under the names that writers use. */
export function taskOf(metadata: JsonObject): string {
  for (const key of ["task", "instruction", "task_name", "language_instruction"]) {
    const value = metadata[key];
    if (typeof value === "string" && value !== "") return value;
  }
  return "";
}

/** The last part of a path or an address. */
export function baseName(path: string): string {
  return path.replace(/[?#].*$/, "").replace(/^.*\//, "");
}

function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The same object with a usual prototype: one without can be sent to the page, but not be compared by tests. */
function plain(object: JsonObject): JsonObject {
  return { ...object };
}
