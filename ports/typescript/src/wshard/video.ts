/** Video channels: packets and the index of their frames (spec/wshard.md, section 6). Nothing here decodes pictures. */

import { toTypedArray } from "../core/dtypes.js";
import type { ShardError } from "../core/errors.js";
import type { DType } from "../core/registry.js";
import type { ReadOptions } from "../core/source.js";
import { BaseChannel } from "./base-channel.js";
import { type Block, checkWindow } from "./blocks.js";

const keyframeFlag = 1n;
const hiddenFlag = 2n;
const largestSide = 65535;
const pixelSizes: Readonly<Record<string, readonly number[]>> = { u8: [1, 3, 4], u16: [1] };
const pngSides = 16;
const pngMagic = 0x89504e47;

/** One packet of a video: a frame as its codec has encoded it. */
export interface Packet {
  readonly data: Uint8Array;
  /** Its place in the block, in the order in which packets are decoded. */
  readonly number: number;
  /** The step of its frame; of a hidden one, where it is in time. */
  readonly step: number;
  /** Whether decoding can start here. */
  readonly isKeyframe: boolean;
  /** Whether its frame is not a step, but needed to decode others. */
  readonly isHidden: boolean;
}

/** What each packet is, and which packets each step needs. */
export interface FrameIndex {
  /** Where each packet starts, and the end of the last, in bytes. */
  readonly offsets: Float64Array;
  /** The step of each packet. */
  readonly steps: BigInt64Array;
  readonly keyframes: readonly boolean[];
  readonly hidden: readonly boolean[];
  /** The packet of each step. */
  readonly packetOf: Float64Array;
  /** The keyframe at which decoding starts for each step. */
  readonly startOf: Float64Array;
}

/** The frames of a camera as a codec has encoded them. */
export class VideoChannel extends BaseChannel {
  readonly layout = "video";
  private known: Promise<FrameIndex> | null = null;

  /** What a packet is, such as `video/h264`. */
  get contentType(): string {
    return this.row?.contentType ?? "";
  }

  /** What the decoder needs besides the packets; empty if nothing. */
  get extradata(): Uint8Array {
    return parseBase64(this.row?.extradata ?? "") ?? new Uint8Array(0);
  }

  /** All packets, in the order in which they are decoded. */
  async data(options?: ReadOptions): Promise<Packet[]> {
    const index = await this.index();
    return this.packets(index, 0, index.offsets.length - 1, options);
  }

  /** The packets that the steps from `start` up to `end` need, from a keyframe on; reads only these. */
  async window(start: number, end: number, options?: ReadOptions): Promise<Packet[]> {
    const index = await this.index();
    checkWindow(start, end, this.length, this.block);
    if (start === end) return [];
    const first = index.startOf[start];
    let last = first;
    for (let step = start; step < end; step++) last = Math.max(last, index.packetOf[step]);
    return this.packets(index, first, last + 1, options);
  }

  /** Reads and checks the index of the frames, once. */
  index(): Promise<FrameIndex> {
    this.known ??= this.readIndex().catch((error: unknown) => {
      this.known = null; // the next call may have more luck
      throw error;
    });
    return this.known;
  }

  /** The blocks of offsets and frames (W-VID-1, W-VID-2). */
  indexBlocks(): { offsets: Block; frames: Block | null } {
    this.checkRow();
    const offsetsBlock = this.row?.offsetsBlock ?? null;
    const framesBlock = this.row?.framesBlock ?? null;
    const offsets = offsetsBlock === null ? null : this.find(offsetsBlock);
    if (offsets === null)
      throw this.error("bad_profile", "W-VID-1", "the offsets are missing", offsetsBlock ?? "no offsets_block");
    if (offsets.size < 8 || offsets.size % 8) {
      throw this.error("size_mismatch", "W-VID-1", "the offsets are not whole integers", `${offsets.size} bytes`);
    }
    if (framesBlock === null) return { offsets, frames: null };
    const frames = this.find(framesBlock);
    if (frames === null) throw this.error("bad_profile", "W-VID-2", "the frames are missing", framesBlock);
    if (frames.size !== 2 * (offsets.size - 8)) {
      throw this.error("size_mismatch", "W-VID-2", "the frames do not fit the packets", `${frames.size} bytes`);
    }
    return { offsets, frames };
  }

  private checkRow(): void {
    checkPictureForm(this, this.contentType, this.fail);
    if (parseBase64(this.row?.extradata ?? "") === null)
      throw this.error("bad_metadata", "W-VID-5", "'extradata' is not Base64");
  }

  private readonly fail: Fail = (...problem) => this.error(...problem);

  private async readIndex(): Promise<FrameIndex> {
    const blocks = this.indexBlocks();
    const stored = toTypedArray("i64", await blocks.offsets.read());
    const size = BigInt(this.source.size);
    let before = 0n;
    for (const [at, offset] of stored.entries()) {
      if (offset < before || offset > size || (at === 0 && offset !== 0n)) {
        throw this.error(
          "bad_value",
          "W-VID-1",
          "offsets do not start with 0, fall, or are outside the block",
          String(offset),
        );
      }
      before = offset;
    }
    if (before !== size)
      throw this.error("bad_value", "W-VID-1", "offsets do not end with the size of the block", String(before));
    const frames = blocks.frames === null ? null : toTypedArray("i64", await blocks.frames.read());
    const found = checkFrames(frames, stored.length - 1, this.length, this.fail);
    return { offsets: Float64Array.from(stored, Number), ...found };
  }

  private async packets(index: FrameIndex, first: number, end: number, options?: ReadOptions): Promise<Packet[]> {
    const start = index.offsets[first];
    const bytes = await this.source.read(start, index.offsets[end], options);
    return Array.from({ length: end - first }, (_, at) => {
      const number = first + at;
      const data = bytes.subarray(index.offsets[number] - start, index.offsets[number + 1] - start);
      const isKeyframe = index.keyframes[number];
      return { data, number, step: Number(index.steps[number]), isKeyframe, isHidden: index.hidden[number] };
    });
  }

  /**
   * Compares the sizes that PNG images state with the shape of the channel (W-VID-6). Nothing is decoded; other codecs
   * are not checked. Ask for it before you decode.
   */
  async checkPictures(): Promise<void> {
    if (this.contentType.toLowerCase() !== "image/png") return;
    for (const { data, number } of await this.data()) this.checkPng(data, number);
  }

  private checkPng(data: Uint8Array, number: number): void {
    const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    const isPng = data.length >= pngSides + 8 && view.getUint32(0) === pngMagic;
    const found = isPng ? `${view.getUint32(pngSides + 4)} x ${view.getUint32(pngSides)} pixels` : "no PNG image";
    const expected = `${this.shape[0]} x ${this.shape[1]} pixels`;
    if (found === expected) return;
    throw this.error("bad_value", "W-VID-6", `packet ${number} is not a frame of the channel`, found, expected);
  }
}

/** Makes the error about a video. */
type Fail = (code: "bad_metadata" | "bad_value", rule: string, problem: string, found: string) => ShardError;

/** Checks what the row of a video says about its pictures (W-VID-5). */
export function checkPictureForm(
  { dtype, shape }: { readonly dtype: DType; readonly shape: readonly number[] },
  contentType: string,
  fail: Fail,
): void {
  const [height = 0, width = 0, pixel = 1] = shape;
  const isSized = [2, 3].includes(shape.length) && [height, width].every((side) => side >= 1 && side <= largestSide);
  if (!isSized || !(pixelSizes[dtype] ?? []).includes(pixel)) {
    throw fail("bad_metadata", "W-VID-5", "these are not the frames of a video", `${dtype} [${shape}]`);
  }
  if (!/^(video|image)\//i.test(contentType)) {
    throw fail("bad_metadata", "W-VID-5", "a video has no content type 'video/…' or 'image/…'", contentType);
  }
}

/** What the table of frames says about each packet, if its frames are the steps (W-VID-3, W-VID-4). */
export function checkFrames(
  frames: BigInt64Array | null,
  count: number,
  length: number,
  fail: Fail,
): Omit<FrameIndex, "offsets"> {
  const steps = new BigInt64Array(count);
  const keyframes: boolean[] = [];
  const hidden: boolean[] = [];
  let shown = 0;
  for (let at = 0; at < count; at++) {
    const flags = frames === null ? keyframeFlag : frames[2 * at + 1];
    if (flags < 0n || flags > 3n) throw fail("bad_value", "W-VID-3", "a packet has unknown flags", String(flags));
    steps[at] = frames === null ? BigInt(at) : frames[2 * at];
    keyframes.push((flags & keyframeFlag) !== 0n);
    hidden.push((flags & hiddenFlag) !== 0n);
    if (!hidden[at]) shown++;
  }
  // Counted before memory is made for a length that the file merely claims.
  if (shown !== length)
    throw fail("bad_value", "W-VID-3", "the frames are not the steps", `${shown} frames for ${length} steps`);
  const packetOf = new Float64Array(length).fill(-1);
  for (let at = 0; at < count; at++) {
    if (hidden[at]) continue;
    const step = Number(steps[at]);
    if (!(step >= 0 && step < length) || packetOf[step] !== -1) {
      throw fail("bad_value", "W-VID-3", "a step is outside the episode or there twice", String(steps[at]));
    }
    packetOf[step] = at;
  }
  return { steps, keyframes, hidden, packetOf, startOf: startsOf(steps, keyframes, packetOf, fail) };
}

/** The keyframe from which each step is decoded. */
function startsOf(
  steps: BigInt64Array,
  keyframes: readonly boolean[],
  packetOf: Float64Array,
  fail: Fail,
): Float64Array {
  const last = new Float64Array(keyframes.length);
  const previous = new Float64Array(keyframes.length);
  let key = -1;
  let before = -1;
  for (let at = 0; at < keyframes.length; at++) {
    if (keyframes[at]) [before, key] = [key, at];
    last[at] = key;
    previous[at] = before;
  }
  const starts = new Float64Array(packetOf.length);
  let earlier = -1;
  for (let step = 0; step < packetOf.length; step++) {
    const packet = packetOf[step];
    let start = last[packet];
    // A frame can follow a keyframe in the stream and come before it in time: it needs the keyframe before.
    if (start >= 0 && steps[start] > BigInt(step)) start = previous[packet];
    if (start < 0 || steps[start] > BigInt(step) || start < earlier) {
      throw fail("bad_value", "W-VID-4", "a step has no keyframe to start from", `step ${step}`);
    }
    starts[step] = earlier = start;
  }
  return starts;
}

/** The bytes of Base64 text; null if it is none. */
export function parseBase64(text: string): Uint8Array | null {
  if (!/^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/.test(text)) return null;
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/** Bytes as Base64 text. */
export function formatBase64(bytes: Uint8Array): string {
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}
