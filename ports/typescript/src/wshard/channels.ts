/** Channels: arrays with a description, read when they are asked for (spec/wshard.md, sections 4 to 6). */

import { type TypedArray, toTypedArray } from "../core/dtypes.js";
import { dtypeSizes } from "../core/registry.js";
import type { ReadOptions } from "../core/source.js";
import { BaseChannel, type ChannelFacts } from "./base-channel.js";
import { type Block, checkWindow, type FindBlock } from "./blocks.js";
import type { Row } from "./metadata.js";
import { mayHaveOneMore } from "./names.js";
import { VideoChannel } from "./video.js";

/** A channel of an episode; `layout` says which kind it is. */
export type Channel = DenseChannel | RaggedChannel | TextChannel | VideoChannel | UnreadableChannel;

const mostUnbacked = 1 << 20;

/** One array of a fixed shape for each step. */
export class DenseChannel extends BaseChannel {
  readonly layout = "dense";
  /** The rule about the size of its block. */
  readonly #rule: string;
  #length: number | null = null;

  constructor(source: Block, facts: ChannelFacts, steps: number, find: FindBlock, inferred = false, rule = "W-BLK-1") {
    super(source, facts, steps, find, inferred);
    this.#rule = rule;
  }

  /** Entries along the first axis; an error if the block does not hold whole steps (W-BLK-1). */
  override get length(): number {
    this.#length ??= this.#fittingLength();
    return this.#length;
  }

  #fittingLength(): number {
    const stated = this.row?.length ?? null;
    const lengths = [stated ?? BigInt(this.steps)];
    if (stated === null && mayHaveOneMore(this.block)) lengths.push(BigInt(this.steps) + 1n);
    const step = this.shape.reduce((product, size) => product * BigInt(size), BigInt(dtypeSizes[this.dtype]));
    for (const length of lengths) {
      const isBacked =
        step > 0n || length <= mostUnbacked || length === BigInt(this.steps) || length === BigInt(this.steps) + 1n;
      if (isBacked && length * step === BigInt(this.source.size)) return Number(length);
    }
    const expected = `${lengths[0]} entries of ${step} bytes`;
    const problem = "the block does not hold the stated number of entries";
    throw this.error("size_mismatch", this.#rule, problem, `${this.source.size} bytes`, expected);
  }

  /** All values, in C order. */
  data(options?: ReadOptions): Promise<TypedArray> {
    return this.window(0, this.length, options);
  }

  /** The values of the steps from `start` up to `end`; reads only these. */
  async window(start: number, end: number, options?: ReadOptions): Promise<TypedArray> {
    return toTypedArray(this.dtype, await this.bytes(start, end, options));
  }

  /** The stored bytes of some steps. */
  async bytes(start = 0, end = this.length, options?: ReadOptions): Promise<Uint8Array> {
    checkWindow(start, end, this.length, this.block);
    // A step of a channel without steps may be too large to multiply with.
    if (this.length === 0) return this.source.read();
    return this.source.read(start * this.stepBytes, end * this.stepBytes, options);
  }
}

/** Ragged and text channels: items of all steps, and where each step starts. */
abstract class ItemsChannel extends BaseChannel {
  /** The block of offsets (W-RAG-1). */
  offsetsBlock(): Block {
    const name = this.row?.offsetsBlock ?? null;
    const offsets = name === null ? null : this.find(name);
    if (offsets === null)
      throw this.error("bad_profile", "W-RAG-1", "the offsets are missing", name ?? "no offsets_block");
    const length = this.row?.length ?? BigInt(this.steps);
    if (BigInt(offsets.size) !== 8n * (length + 1n)) {
      throw this.error(
        "size_mismatch",
        "W-RAG-1",
        "the offsets do not fit the length",
        `${offsets.size} bytes for ${length} entries`,
      );
    }
    const item = this.stepBytes;
    const isWhole = item > 0 ? this.source.size % item === 0 : this.source.size === 0;
    if (!isWhole)
      throw this.error(
        "size_mismatch",
        "W-RAG-3",
        "the block is not a whole number of items",
        `${this.source.size} bytes`,
      );
    return offsets;
  }

  /** Where the items of each step start, and the end of the last. */
  async offsets(start = 0, end = this.length, options?: ReadOptions): Promise<Float64Array> {
    const block = this.offsetsBlock();
    checkWindow(start, end, this.length, this.block);
    const stored = toTypedArray("i64", await block.read(8 * start, 8 * (end + 1), options));
    const items = this.stepBytes ? BigInt(this.source.size / this.stepBytes) : stored[stored.length - 1];
    const isLast = end === this.length;
    if (start === 0 && stored[0] !== 0n)
      throw this.error("bad_value", "W-RAG-2", "offsets do not start with 0", String(stored[0]));
    for (let at = 0; at < stored.length; at++) {
      const before = at ? stored[at - 1] : 0n;
      if (stored[at] < before || stored[at] > items) {
        throw this.error("bad_value", "W-RAG-2", "offsets fall, or are outside the block", String(stored[at]));
      }
    }
    if (isLast && stored[stored.length - 1] !== items) {
      throw this.error(
        "bad_value",
        "W-RAG-2",
        "offsets do not end with the number of items",
        String(stored[stored.length - 1]),
      );
    }
    return Float64Array.from(stored, Number);
  }

  /** The stored bytes of each step. */
  protected async pieces(start: number, end: number, options?: ReadOptions): Promise<Uint8Array[]> {
    const offsets = await this.offsets(start, end, options);
    // An item that never occurs may be too large to multiply with.
    const item = this.source.size === 0 ? 0 : this.stepBytes;
    const first = offsets[0] * item;
    const bytes = await this.source.read(first, offsets[end - start] * item, options);
    return Array.from({ length: end - start }, (_, at) =>
      bytes.subarray(offsets[at] * item - first, offsets[at + 1] * item - first),
    );
  }
}

/** A varying number of items in each step. */
export class RaggedChannel extends ItemsChannel {
  readonly layout = "ragged";

  /** The items of every step. */
  async data(options?: ReadOptions): Promise<TypedArray[]> {
    this.offsetsBlock();
    return this.window(0, this.length, options);
  }

  /** The items of the steps from `start` up to `end`; reads only these. */
  async window(start: number, end: number, options?: ReadOptions): Promise<TypedArray[]> {
    return (await this.pieces(start, end, options)).map((piece) => toTypedArray(this.dtype, piece));
  }

  /** The stored bytes of the items of some steps. */
  async items(start = 0, end = this.length): Promise<Uint8Array[]> {
    this.offsetsBlock();
    return this.pieces(start, end);
  }
}

/** One string for each step. */
export class TextChannel extends ItemsChannel {
  readonly layout = "text";

  /** The string of every step. */
  async data(options?: ReadOptions): Promise<string[]> {
    if (this.dtype !== "u8" || this.shape.length > 0) {
      throw this.error(
        "bad_metadata",
        "W-RAG-5",
        "a text channel is not u8 with shape []",
        `${this.dtype} [${this.shape}]`,
      );
    }
    this.offsetsBlock();
    return this.window(0, this.length, options);
  }

  /** The strings of the steps from `start` up to `end`; reads only these. */
  async window(start: number, end: number, options?: ReadOptions): Promise<string[]> {
    const pieces = await this.pieces(start, end, options);
    const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
    return pieces.map((piece, at) => {
      try {
        return decoder.decode(piece);
      } catch {
        throw this.error("bad_value", "W-RAG-4", "a string is not UTF-8", `step ${start + at}`);
      }
    });
  }
}

/** A channel with a layout that this version does not know (W-CHN-7); only its bytes can be copied. */
export class UnreadableChannel extends BaseChannel {
  readonly layout = "unknown";

  /** Throws the reason. */
  data(_options?: ReadOptions): Promise<never> {
    return Promise.reject(this.error("unknown_layout", "W-CHN-7", `unknown layout '${this.row?.layout}'`));
  }

  /** Throws the reason. */
  window(_start: number, _end: number, _options?: ReadOptions): Promise<never> {
    return this.data();
  }
}

/** The channel that a row describes. */
export function channelOfRow(row: Row, source: Block, steps: number, find: FindBlock): Channel {
  const facts = { dtype: row.dtype, shape: row.shape, row };
  switch (row.layout) {
    case "dense":
      return new DenseChannel(source, facts, steps, find);
    case "ragged":
      return new RaggedChannel(source, facts, steps, find);
    case "text":
      return new TextChannel(source, facts, steps, find);
    case "video":
      return new VideoChannel(source, facts, steps, find);
    default:
      return new UnreadableChannel(source, facts, steps, find);
  }
}
