// Writing episodes: new ones in canonical form, loaded ones with as few changes as possible (spec/wshard.md, section 15).

import type { JsonObject } from "../core/json.js";
import type { Codec } from "../core/layout.js";
import { ContentType, Role } from "../core/registry.js";
import { BytesSink, type Sink } from "../core/sink.js";
import { ShardWriter } from "../core/writer.js";
import type { ZstdProvider } from "../core/zstd.js";
import type { Block } from "./blocks.js";
import { type Channel, type DenseChannel, RaggedChannel, TextChannel } from "./channels.js";
import { Episode, entryBlock } from "./episode.js";
import { type EpisodeInput, planInput } from "./input.js";
import { type Label, without } from "./metadata.js";
import { metaIdentity } from "./names.js";
import {
  type PlannedChannel,
  type PlannedEntry,
  type PlannedEpisode,
  type PlannedResidual,
  planEntries,
} from "./plan.js";
import type { Residual } from "./residual.js";
import { VideoChannel } from "./video.js";

/** How an episode is written. */
export interface SaveOptions {
  /** How arrays are stored: raw by default, so that a reader can use them in place. */
  readonly compression?: Codec;
  /** Level of zstd, 3 unless it is given. */
  readonly level?: number;
  /** Compresses, if `compression` is zstd. */
  readonly zstd?: ZstdProvider;
  /** Adds the entry `meta/identity`. */
  readonly identity?: boolean;
}

/** The file of a new episode, or of one that was opened. */
export async function encodeEpisode(episode: EpisodeInput | Episode, options: SaveOptions = {}): Promise<Uint8Array> {
  const sink = new BytesSink();
  await writeEpisode(sink, episode, options);
  return sink.bytes as Uint8Array;
}

/** Writes the file of an episode. */
export async function writeEpisode(
  sink: Sink,
  episode: EpisodeInput | Episode,
  options: SaveOptions = {},
): Promise<void> {
  const { entries, alignment } = await entriesOf(episode);
  const { compression = "none", level, zstd, identity = false } = options;
  const writer = new ShardWriter(sink, {
    role: Role.wshard,
    alignment,
    identity,
    compression,
    names: entries.map((entry) => entry.name),
    ...(level === undefined ? {} : { level }),
    ...(zstd === undefined ? {} : { zstd }),
  });
  try {
    for (const { name, content, contentType } of entries) {
      // Descriptions stay raw: readers want them first.
      const codec = contentType === ContentType.json ? "none" : compression;
      await writer.write(name, await content.read(), { contentType, codec });
    }
    await writer.finish();
  } catch (error) {
    await writer.abort();
    throw error;
  }
}

async function entriesOf(
  episode: EpisodeInput | Episode,
): Promise<{ entries: readonly PlannedEntry[]; alignment: number }> {
  if (!(episode instanceof Episode)) return { entries: await planEntries(planInput(episode)), alignment: 64 };
  const [file, ...others] = episode.files;
  if (file === undefined || others.length > 0)
    return { entries: await planEntries(await planEpisode(episode)), alignment: 64 };
  const kept = file.names.filter((name) => name !== metaIdentity).map((name) => entryBlock(file, name));
  return {
    entries: kept.map((content) => ({ name: content.name, content, contentType: content.contentType })),
    alignment: file.header.alignment,
  };
}

/** The plan of an episode of several files, or of a recording. */
export async function planEpisode(episode: Episode): Promise<PlannedEpisode> {
  const { clocks } = episode;
  const channels = (map: ReadonlyMap<string, Channel>) => mapped(map, planChannel);
  const flags = async (ends: DenseChannel | null) =>
    ends === null ? null : (await ends.bytes()).map((end) => (end ? 1 : 0));
  const bytes = async (clock: DenseChannel | null) => (clock === null ? null : clock.bytes());
  return {
    ...facts(episode),
    observations: await channels(episode.observations),
    actions: await channels(episode.actions),
    omens: await mapped(episode.omens, channels),
    uncerts: await mapped(episode.uncerts, (models) => mapped(models, channels)),
    rewards: episode.rewards === null ? null : await planChannel(episode.rewards),
    terminations: await flags(episode.terminations),
    truncations: await flags(episode.truncations),
    ticks: await bytes(clocks.ticks),
    timestamps: await bytes(clocks.timestamps),
    residuals: await Promise.all([...episode.residuals.values()].map(planResidual)),
    labels: await mapped(episode.labels, (lane): Promise<Label> => lane.read()),
    extras: await mapped(episode.extras, async ({ source, contentType }) => ({ content: source, contentType })),
    provenance: await episode.provenance(),
  };
}

function facts(episode: Episode) {
  const { id, envId, length, timebase, metadata, chunkIndex, totalChunks, timestepRange, residualEdges } = episode;
  return { id, envId, length, timebase, metadata, chunkIndex, totalChunks, timestepRange, residualEdges };
}

async function mapped<T, U>(map: ReadonlyMap<string, T>, make: (one: T) => Promise<U>): Promise<Map<string, U>> {
  const made = new Map<string, U>();
  for (const [key, one] of map) made.set(key, await make(one));
  return made;
}

/** Fields of a row that follow from the channel itself. */
const ownFields = [
  ...["id", "signal_block", "dtype", "shape", "length", "layout", "offsets_block", "frames_block", "time_block"],
  ...["channel", "model", "type", "window"],
];

async function planChannel(channel: Channel): Promise<PlannedChannel> {
  if (channel.layout === "unknown") return channel.data();
  const { dtype, shape, length, layout, source } = channel;
  const stored = without(channel.row?.fields ?? {}, ownFields);
  const fields: JsonObject = Object.fromEntries(
    Object.entries(stored).filter(([, value]) => value !== null && value !== ""),
  );
  const clock = channel.clockBlock();
  const planned: PlannedChannel = {
    dtype,
    shape,
    length,
    layout,
    fields,
    content: source,
    ...indexBlocks(channel),
    anyLength: true,
  };
  return clock === null ? planned : { ...planned, times: await clock.read() };
}

function indexBlocks(channel: Channel): { offsets?: Block; frames?: Block } {
  if (channel instanceof RaggedChannel || channel instanceof TextChannel) return { offsets: channel.offsetsBlock() };
  if (!(channel instanceof VideoChannel)) return {};
  const { offsets, frames } = channel.indexBlocks();
  return frames === null ? { offsets } : { offsets, frames };
}

async function planResidual(residual: Residual): Promise<PlannedResidual> {
  const { channel, model, type, window, shape } = residual;
  const content = await residual.bytes();
  const scales = residual.scalesSource === null ? null : await residual.scalesSource.read();
  return { channel, model, type, window, shape, content, scales };
}
