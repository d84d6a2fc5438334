// Values of channels, decoded groups kept: scrubbing inside a group costs nothing.

import type { ReadOptions, ShardReader, TypedArray } from "@shard-format/core";
import type { DenseChannel, Episode } from "@shard-format/core/wshard";
import { Lru } from "./lru";

/** All decoded groups of all episodes. */
export const decoded = new Lru<TypedArray>(64 << 20);

/** Small groups are read and kept together. */
const smallGroup = 256 << 10;
/** Longer windows pass by the cache, which they would only empty. */
const mostGroups = 4;
/** What is compressed as one piece is decoded and kept whole, up to this size. */
const largestWhole = 64 << 20;

/** Reads windows of one dense channel. */
export class DenseReader {
  /** Steps that are read and kept together; 0: nothing is kept. */
  #group: Promise<number> | undefined;

  constructor(
    readonly prefix: string,
    readonly channel: DenseChannel,
    readonly files: Episode["files"],
  ) {}

  /** The values of some steps. The array may be one that is kept: copy what you transfer. */
  async window(start: number, end: number, options?: ReadOptions): Promise<TypedArray> {
    const { channel } = this;
    const width = channel.valuesPerStep;
    if (this.#group === undefined) {
      // The reader asks for frames and for their table at the same time: nothing is known that would be faster.
      const first = channel.window(start, end, options);
      const known = first.then(
        () => groupOf(channel, this.files),
        () => 0,
      );
      this.#group = known;
      try {
        return await first;
      } catch (error) {
        this.#group = undefined;
        throw error;
      }
    }
    const group = await this.#group;
    if (group === 0 || start >= end || end - start > mostGroups * group) return channel.window(start, end, options);
    const first = Math.floor(start / group);
    const last = Math.floor((end - 1) / group);
    const pieces: TypedArray[] = [];
    for (let number = first; number <= last; number++) {
      const from = number * group;
      const to = Math.min(channel.length, from + group);
      // The last group of a recording grows: an old answer must not stand for the new one.
      const key = `${this.prefix}/${from}-${to}`;
      let values = decoded.get(key);
      if (values === undefined) {
        values = await channel.window(from, to, options);
        decoded.set(key, values, values.byteLength);
      }
      pieces.push(values.subarray(Math.max(0, start - from) * width, (end - from) * width) as TypedArray);
    }
    return pieces.length === 1 ? (pieces[0] as TypedArray) : joined(pieces);
  }
}

function joined(pieces: readonly TypedArray[]): TypedArray {
  const length = pieces.reduce((sum, piece) => sum + piece.length, 0);
  const [first] = pieces as [TypedArray];
  const out = new (first.constructor as new (length: number) => TypedArray)(length);
  let at = 0;
  for (const piece of pieces) {
    (out as Float64Array).set(piece as Float64Array, at);
    at += piece.length;
  }
  return out;
}

/** Steps that are read together: whole frames of a compressed block, and about as many bytes of a raw one. */
async function groupOf(channel: DenseChannel, files: readonly ShardReader[]): Promise<number> {
  const { stepBytes } = channel;
  if (stepBytes === 0) return 0;
  const owner = files.find((file) => file.has(channel.block));
  const usual = Math.max(1, Math.floor(smallGroup / stepBytes));
  if (owner === undefined || owner.entry(channel.block).codec === "none") return usual;
  const frames = await owner.seekFrames(channel.block);
  const bytes = frames?.[0]?.decompressedSize ?? channel.source.size;
  if (frames === undefined) return bytes > largestWhole ? 0 : channel.length;
  const steps = Math.max(1, Math.floor(bytes / stepBytes));
  return steps * Math.max(1, Math.floor(usual / steps));
}
