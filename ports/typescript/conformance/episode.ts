import { readFileSync } from "node:fs";
import { toHex } from "../src/core/bytes.js";
import { type Codec, computeIdentity, type JsonObject, openShard, ShardError } from "../src/node.js";
import { channelsOf, checkEpisode, readChannel } from "../src/wshard/checking.js";
import {
  type Channel,
  type DenseChannel,
  type Episode,
  type Label,
  type LabelLane,
  openEpisode,
  type Residual,
  saveEpisode,
  type VideoChannel,
} from "../src/wshard/node.js";
import { formatBase64 } from "../src/wshard/video.js";
import { caseInput } from "./episode-case.js";
import { digest, type Kind, optionsOf, type Told } from "./kind.js";

/** What it has, in the letters of tests/conformance/ports.py. */
export const episodeFeatures = "ECDH";
const longestHex = 512;

export const episode: Kind = {
  async read(file) {
    const opened = await openEpisode(file);
    try {
      return await tellEpisode(opened);
    } finally {
      await opened.close();
    }
  },

  async step(file, given) {
    const opened = await openEpisode(file, optionsOf(given));
    try {
      if (given.when === "check") {
        const codes = [given.error, ...((given.also as string[] | undefined) ?? [])];
        const found = (await checkEpisode(opened)).find((problem) => codes.includes(problem.code));
        if (found !== undefined) throw found;
      } else {
        for (const problem of opened.problems) throw problem;
        if (given.when === "touch") await touch(opened, given.touch as string[]);
      }
      return { done: true };
    } finally {
      await opened.close();
    }
  },

  async write(given, out) {
    const { compression, identity } = given.options as { compression: Codec; identity: boolean };
    await saveEpisode(caseInput(given.episode as JsonObject), out, { compression, identity, sync: false });
    return told(out);
  },

  async rewrite(file, out) {
    const opened = await openEpisode(file);
    try {
      await saveEpisode(opened, out, { sync: false });
    } finally {
      await opened.close();
    }
    return told(out);
  },
};

/** The hash and the identity of a file. */
async function told(file: string): Promise<Told> {
  const reader = await openShard(file);
  try {
    return { sha256: digest(readFileSync(file)), identity: await (await computeIdentity(reader)).digest() };
  } finally {
    await reader.close();
  }
}

/** Reads everything of one lane. */
async function touch(opened: Episode, path: readonly string[]): Promise<void> {
  const [lane, ...keys] = path;
  if (lane === "ticks" || lane === "timestamps_ns") {
    await (lane === "ticks" ? opened.clocks.ticks : opened.clocks.timestamps)?.data();
    return;
  }
  let found: unknown = opened[lane as keyof Episode];
  for (const key of keys) found = (found as ReadonlyMap<string, unknown>).get(key);
  const residual = found as Partial<Residual> & Partial<LabelLane>;
  if (residual.bytes !== undefined && residual.scales !== undefined) {
    await residual.bytes();
    await residual.scales();
  } else if (residual.read !== undefined) await residual.read();
  else await readChannel(found as Channel);
}

export async function tellEpisode(opened: Episode): Promise<Told> {
  const { timebase, length, clocks } = opened;
  const integers = async (clock: DenseChannel | null) =>
    clock === null || length === 0 ? null : Array.from((await clock.data()) as unknown as bigint[], String);
  for (const channel of channelsOf(opened)) if (length > 0) await windowsAgree(channel);
  return {
    id: opened.id,
    env_id: opened.envId,
    length: String(length),
    timebase: { type: timebase.type, tick_hz: timebase.tickHz, epoch_ns: String(timebase.epochNs) },
    metadata: opened.metadata,
    chunk_index: text(opened.chunkIndex),
    total_chunks: text(opened.totalChunks),
    timestep_range: opened.timestepRange?.map(String) ?? null,
    observations: await tellMap(opened.observations, tellChannel),
    actions: await tellMap(opened.actions, tellChannel),
    omens: await tellMap(opened.omens, (models) => tellMap(models, tellChannel)),
    uncerts: await tellMap(opened.uncerts, (models) => tellMap(models, (kinds) => tellMap(kinds, tellChannel))),
    rewards: opened.rewards !== null && length > 0 ? await tellChannel(opened.rewards) : null,
    terminations: await tellEnds(opened.terminations, length),
    truncations: await tellEnds(opened.truncations, length),
    residuals: await tellMap(opened.residuals, tellResidual),
    labels: await tellMap(opened.labels, async (lane) => tellLabel(await lane.read())),
    extras: await tellMap(opened.extras, async ({ source }) => digest(await source.read())),
    ticks: await integers(clocks.ticks),
    timestamps_ns: await integers(clocks.timestamps),
  };
}

function text(value: number | null): string | null {
  return value === null ? null : String(value);
}

async function tellMap<T>(map: ReadonlyMap<string, T>, tell: (one: T) => Promise<unknown>): Promise<Told> {
  const told: Told = Object.create(null);
  for (const [key, one] of map) told[key] = await tell(one);
  return told;
}

function tellBytes(bytes: Uint8Array): Told {
  return bytes.length <= longestHex ? { hex: toHex(bytes) } : { sha256: digest(bytes) };
}

function flags(bytes: Uint8Array): Uint8Array {
  return bytes.map((byte) => (byte ? 1 : 0));
}

async function tellChannel(channel: Channel): Promise<Told> {
  const told: Told = {
    block: channel.block,
    dtype: channel.dtype,
    inferred: channel.inferred,
    layout: channel.layout,
    length: String(channel.length),
    shape: channel.shape.map(String),
    ...(await tellValues(channel)),
  };
  if (channel.horizon !== null) told.horizon = String(channel.horizon);
  if (channel.startNs !== null) told.start_ns = String(channel.startNs);
  if (channel.samplingRateHz !== null) told.sampling_rate_hz = channel.samplingRateHz;
  const times = await channel.timestampsNs();
  if (times !== null) told[channel.startNs === null ? "timestamps_ns" : "times_ns"] = Array.from(times, String);
  return told;
}

async function tellValues(channel: Channel): Promise<Told> {
  switch (channel.layout) {
    case "dense": {
      const bytes = await channel.bytes();
      return tellBytes(channel.dtype === "bool" ? flags(bytes) : bytes);
    }
    case "text":
      return { text: await channel.data() };
    case "ragged":
      return { items: (await channel.items()).map(toHex) };
    case "video":
      return tellVideo(channel);
    default:
      throw new ShardError("unknown_layout", "a channel that cannot be told", { entry: channel.block });
  }
}

async function tellVideo(channel: VideoChannel): Promise<Told> {
  const { steps, keyframes, hidden } = await channel.index();
  return {
    content_type: channel.contentType,
    extradata: formatBase64(channel.extradata),
    hidden,
    keyframes,
    packets: (await channel.data()).map((packet) => toHex(packet.data)),
    steps: Array.from(steps, String),
  };
}

async function tellEnds(channel: DenseChannel | null, length: number): Promise<Told | null> {
  if (channel === null || length === 0) return null;
  return { block: channel.block, hex: toHex(flags(await channel.bytes())), length: String(channel.length) };
}

async function tellResidual(residual: Residual): Promise<Told> {
  const scales = await residual.scales();
  const isQuantised = residual.type === "delta_q";
  return {
    block: residual.block,
    channel: residual.channel,
    model: residual.model,
    scales: scales === null ? null : toHex(new Uint8Array(scales.buffer, scales.byteOffset, scales.byteLength)),
    shape: isQuantised ? residual.shape.map(String) : null,
    type: residual.type,
    window: isQuantised ? String(residual.window) : null,
    ...tellBytes(await residual.bytes()),
  };
}

function tellLabel({ unit, intervals }: Label): Told {
  const tell = ({ start, end, text, source, confidence }: Label["intervals"][number]) => ({
    confidence,
    end: String(end),
    source: source || null,
    start: String(start),
    text,
  });
  return { unit, intervals: intervals.map(tell) };
}

/** Fails if a window of a channel is not the same as that part of all of it. */
async function windowsAgree(channel: Channel): Promise<void> {
  if (channel.layout === "video" || channel.layout === "unknown" || channel.length < 2) return;
  const [start, end] = [1, channel.length - (channel.length > 2 ? 1 : 0)];
  const whole = JSON.stringify(await channel.data(), tellNumber);
  const values = channel.layout === "dense" ? channel.valuesPerStep : 1;
  const part = (JSON.parse(whole) as unknown[] | Record<string, unknown>) ?? [];
  const expected = JSON.stringify(Object.values(part).slice(start * values, end * values));
  const found = JSON.parse(JSON.stringify(await channel.window(start, end), tellNumber)) as object;
  if (JSON.stringify(Object.values(found)) !== expected)
    throw new Error(`a window of ${channel.block} differs from the whole`);
}

function tellNumber(_key: string, value: unknown): unknown {
  return typeof value === "bigint" || typeof value === "number" ? String(value) : value;
}
