// The reader of @wshard/core, over ours.

import { invalid, ShardError } from "../../core/errors.js";
import type { ShardReader } from "../../core/reader.js";
import type { SourceLike } from "../../core/source.js";
import type { Channel } from "../../wshard/channels.js";
import { channelsOf } from "../../wshard/checking.js";
import type { Episode } from "../../wshard/episode.js";
import { openEpisode } from "../episodes.js";
import {
  actionBlock,
  BLOCK_META_CHANNELS,
  BLOCK_META_EPISODE,
  BLOCK_META_MODELS,
  BLOCK_META_WSHARD,
  type ChannelDef,
  type ChannelsMeta,
  decodeFloat32,
  decodeInt32,
  type EpisodeMeta,
  inRows,
  latentActionBlock,
  latentCodebookBlock,
  type ModelsMeta,
  multiModalSignalBlock,
  omenBlock,
  residualSign2ndDiffBlock,
  signalBlock,
  uncertBlock,
  type WShardMeta,
} from "./names.js";

/** Reads an episode. New code opens it with `openEpisode`. */
export class WShardReader {
  wshardMeta: WShardMeta | null = null;
  episodeMeta: EpisodeMeta | null = null;
  channelsMeta: ChannelsMeta | null = null;
  modelsMeta: ModelsMeta | null = null;
  readonly #source: SourceLike;
  #episode: Episode | undefined;

  constructor(source: SourceLike) {
    this.#source = source;
  }

  async open(): Promise<this> {
    this.#episode = await openEpisode(this.#source);
    this.wshardMeta = await this.#meta(BLOCK_META_WSHARD);
    this.episodeMeta = await this.#meta(BLOCK_META_EPISODE);
    this.channelsMeta = await this.#meta(BLOCK_META_CHANNELS);
    this.modelsMeta = await this.#meta(BLOCK_META_MODELS);
    return this;
  }

  async close(): Promise<void> {
    await this.#episode?.close();
  }

  get lengthT(): number {
    return this.#opened.length;
  }

  blockNames(): string[] {
    return [...this.#file.names];
  }

  hasBlock(name: string): boolean {
    return this.#file.has(name);
  }

  blockSize(name: string): number {
    return this.#file.entry(name).origSize;
  }

  channelIDs(): string[] {
    return this.#rows().map((row) => row.id);
  }

  getChannelDef(id: string): ChannelDef | null {
    return this.#rows().find((row) => row.id === id) ?? null;
  }

  async readBlock(name: string): Promise<Buffer> {
    const bytes = await this.#file.read(name);
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  // --- steps

  async getTimeTicks(): Promise<number[]> {
    return Array.from(await this.#opened.ticks());
  }

  async getTimeTimestampsNs(): Promise<bigint[]> {
    return Array.from((await this.#opened.timesNs()) ?? []);
  }

  async getReward(): Promise<number[]> {
    const { rewards } = this.#opened;
    return rewards === null ? [] : numbers(rewards);
  }

  async getDone(): Promise<boolean[]> {
    const { terminations } = this.#opened;
    return terminations === null ? [] : Array.from(await terminations.bytes(), (end) => end !== 0);
  }

  // --- channels

  getSignal(id: string): Promise<Buffer> {
    return this.readBlock(signalBlock(id));
  }

  getSignalFloat32(id: string): Promise<number[]> {
    return this.#values(signalBlock(id));
  }

  getSignalFloat32_2D(id: string, columns: number): Promise<number[][]> {
    return this.#rowsOf(signalBlock(id), columns);
  }

  getAction(id: string): Promise<Buffer> {
    return this.readBlock(actionBlock(id));
  }

  getActionFloat32(id: string): Promise<number[]> {
    return this.#values(actionBlock(id));
  }

  getActionFloat32_2D(id: string, columns: number): Promise<number[][]> {
    return this.#rowsOf(actionBlock(id), columns);
  }

  getOmen(channel: string, model: string): Promise<Buffer> {
    return this.readBlock(omenBlock(channel, model));
  }

  getOmenFloat32(channel: string, model: string): Promise<number[]> {
    return this.#values(omenBlock(channel, model));
  }

  getOmenFloat32_2D(channel: string, model: string, columns: number): Promise<number[][]> {
    return this.#rowsOf(omenBlock(channel, model), columns);
  }

  getUncert(channel: string, model: string, type: string): Promise<Buffer> {
    return this.readBlock(uncertBlock(channel, model, type));
  }

  getUncertFloat32(channel: string, model: string, type: string): Promise<number[]> {
    return this.#values(uncertBlock(channel, model, type));
  }

  getUncertFloat32_2D(channel: string, model: string, type: string, columns: number): Promise<number[][]> {
    return this.#rowsOf(uncertBlock(channel, model, type), columns);
  }

  getMultiModalSignal(group: string, modality: string): Promise<Buffer> {
    return this.readBlock(multiModalSignalBlock(group, modality));
  }

  getMultiModalSignalFloat32(group: string, modality: string): Promise<number[]> {
    return this.#values(multiModalSignalBlock(group, modality));
  }

  getMultiModalSignalFloat32_2D(group: string, modality: string, columns: number): Promise<number[][]> {
    return this.#rowsOf(multiModalSignalBlock(group, modality), columns);
  }

  getLatentAction(model: string): Promise<Buffer> {
    return this.readBlock(latentActionBlock(model));
  }

  getLatentActionFloat32(model: string): Promise<number[]> {
    return this.#values(latentActionBlock(model));
  }

  getLatentActionFloat32_2D(model: string, columns: number): Promise<number[][]> {
    return this.#rowsOf(latentActionBlock(model), columns);
  }

  getLatentActionCodebook(model: string): Promise<Buffer> {
    return this.readBlock(latentCodebookBlock(model));
  }

  async getLatentActionCodebookInt32(model: string): Promise<number[]> {
    return decodeInt32(await this.getLatentActionCodebook(model));
  }

  getResidualSign2ndDiff(channel: string): Promise<Buffer> {
    return this.readBlock(residualSign2ndDiffBlock(channel));
  }

  async getResidualSign2ndDiffUnpacked(channel: string): Promise<Int8Array> {
    const residual = this.#opened.residuals.get(channel);
    if (residual === undefined) throw new ShardError("entry_not_found", "no such residual", { found: channel });
    return residual.data();
  }

  // --- inside

  get #opened(): Episode {
    if (this.#episode === undefined) throw invalid("the reader is not open", { expected: "await open()" });
    return this.#episode;
  }

  get #file(): ShardReader {
    return this.#opened.files[0];
  }

  /** An entry that describes the episode, as it is stored: only what every reader needs of it was checked. */
  async #meta<T>(name: string): Promise<T | null> {
    return this.#file.has(name) ? ((await this.#file.readJson(name, "W-JSN-1")) as T) : null;
  }

  #rows(): ChannelDef[] {
    const listed = this.channelsMeta?.channels;
    return Array.isArray(listed) ? listed : [];
  }

  /** The values of a channel, whatever its type; of an entry that is none, those of 32-bit floats. */
  async #values(block: string): Promise<number[]> {
    for (const channel of channelsOf(this.#opened)) if (channel.block === block) return numbers(channel);
    return decodeFloat32(await this.readBlock(block));
  }

  async #rowsOf(block: string, columns: number): Promise<number[][]> {
    return inRows(await this.#values(block), columns);
  }
}

async function numbers(channel: Channel): Promise<number[]> {
  if (channel.layout !== "dense")
    throw invalid("the channel is not an array of numbers", { entry: channel.block, found: channel.layout });
  return Array.from((await channel.data()) as ArrayLike<number | bigint>, Number);
}
