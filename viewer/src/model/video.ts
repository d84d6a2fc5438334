// Packets of a camera as pictures: the decoders of the browser, and one of our own for 16-bit PNG, which browsers reduce
// to 8 bits.

import type { TypedArray } from "@shard-format/core";
import { imageSize } from "@shard-format/core/wshard";
import type { ChannelFacts } from "./facts";
import { decodePng16 } from "./png16";
import type { Packet } from "./reads";
import { decode } from "./stream";

/** A stream that this browser cannot decode. The message says what to do. */
export class NoDecoder extends Error {}

/**
 * The frames of the steps from `start` up to `end`, in C order, or why one of them cannot be shown. Colours are four
 * bytes a pixel: red, green, blue and opacity. `packets` are those that the steps need, from a keyframe on.
 */
export async function decodePackets(
  channel: ChannelFacts,
  packets: readonly Packet[],
  extradata: Uint8Array,
  start: number,
  end: number,
  signal: AbortSignal,
): Promise<(TypedArray | Error)[]> {
  const type = channel.contentType.toLowerCase();
  const frames =
    type === "image/png" || type === "image/jpeg"
      ? await decodeImages(channel, type, packets)
      : await decodeStream(channel, type, packets, extradata, start, end, signal);
  signal.throwIfAborted();
  return Array.from({ length: end - start }, (_, i) => {
    return frames.get(start + i) ?? new Error(`${channel.key}: the decoder gave no picture for step ${start + i}`);
  });
}

async function decodeImages(
  channel: ChannelFacts,
  type: string,
  packets: readonly Packet[],
): Promise<Map<number, TypedArray | Error>> {
  const decodeOne = async ({ data, step }: Packet): Promise<TypedArray> => {
    if (type === "image/png" && channel.dtype === "u16") return decodePng16(data, sides(channel));
    const stated = imageSize(data);
    const damaged = `${channel.key}: the picture of step ${step} is damaged or not ${type}`;
    if (stated === null || (type === "image/png") !== (data[0] === 0x89)) throw new Error(damaged);
    checkSize(channel, stated.width, stated.height, step);
    const bitmap = await createImageBitmap(new Blob([data as Uint8Array<ArrayBuffer>], { type })).catch(() => {
      throw new Error(damaged);
    });
    try {
      return pixelsOf(bitmap, stated.width, stated.height);
    } finally {
      bitmap.close();
    }
  };
  const shown = packets.filter((packet) => !packet.isHidden);
  const frames = await Promise.all(
    shown.map(async (packet): Promise<[number, TypedArray | Error]> => {
      return [packet.step, await decodeOne(packet).catch((error: Error) => error)];
    }),
  );
  return new Map(frames);
}

async function decodeStream(
  channel: ChannelFacts,
  type: string,
  packets: readonly Packet[],
  extradata: Uint8Array,
  start: number,
  end: number,
  signal: AbortSignal,
): Promise<Map<number, TypedArray | Error>> {
  const config = await supported(channel, type, packets, extradata);
  const frames = new Map<number, TypedArray | Error>();
  const wanted = new Map<number, number>();
  for (const packet of packets) {
    if (!packet.isHidden && packet.step >= start && packet.step < end) wanted.set(packet.number, packet.step);
  }
  const take = async (frame: VideoFrame) => {
    const step = wanted.get(frame.timestamp) as number;
    checkSize(channel, frame.displayWidth, frame.displayHeight, step);
    frames.set(step, await copyPixels(frame));
  };
  try {
    await decode(channel, config, packets, { numbers: new Set(wanted.keys()), take, signal });
  } catch (failure) {
    signal.throwIfAborted();
    // What was decoded before the damage can be seen.
    const reason = failure instanceof Error ? failure.message : String(failure);
    const isOfDecoder = failure instanceof DOMException;
    const error = new Error(isOfDecoder ? `${channel.key}: the stream is damaged: ${reason}` : reason);
    for (const step of wanted.values()) if (!frames.has(step)) frames.set(step, error);
  }
  return frames;
}

async function supported(
  channel: ChannelFacts,
  type: string,
  packets: readonly Packet[],
  extradata: Uint8Array,
): Promise<VideoDecoderConfig> {
  const first = packets.find((packet) => packet.isKeyframe)?.data ?? new Uint8Array(0);
  const codec = codecOf(type, first, extradata);
  const hint = `Run "wshard convert --video decode" to make a copy with plain pictures.`;
  if (codec === null) throw new NoDecoder(`No browser decodes ${type || "this video"}. ${hint}`);
  if (!("VideoDecoder" in globalThis)) {
    throw new NoDecoder(`This browser has no VideoDecoder, or the page is not from a secure address. ${hint}`);
  }
  const [height = 0, width = 0] = channel.shape;
  const config: VideoDecoderConfig = { codec, codedWidth: width, codedHeight: height, optimizeForLatency: true };
  config.colorSpace = type === "video/vp9" ? coloursOfVp9(first) : bt601;
  if (extradata.length > 0 && type !== "video/vp9") config.description = extradata as Uint8Array<ArrayBuffer>;
  const { supported } = await VideoDecoder.isConfigSupported(config).catch(() => ({ supported: false }));
  if (!supported) throw new NoDecoder(`This browser does not decode ${type} (${codec}). ${hint}`);
  return config;
}

// What applies where the stream does not say how its colours become red, green and blue. Decoders of H.264, H.265 and AV1
// prefer what the stream says.
const bt601: VideoColorSpaceInit = {
  primaries: "smpte170m",
  transfer: "smpte170m",
  matrix: "smpte170m",
  fullRange: false,
};

/** What a keyframe of VP9 says about its colours: Chromium's decoder takes it from here, not from the stream. */
export function coloursOfVp9(keyframe: Uint8Array): VideoColorSpaceInit {
  const [first = 0] = keyframe;
  const profile = ((first >> 5) & 1) | ((first >> 3) & 2);
  // The colours follow the first byte and three more; profiles 2 and 3 have one bit before them.
  const bits = (((keyframe[4] ?? 0) << 8) | (keyframe[5] ?? 0)) << (profile > 1 ? 1 : 0);
  const [space, fullRange] = [(bits >> 13) & 7, ((bits >> 12) & 1) === 1];
  if (profile === 3 || keyframe[1] !== 0x49) return bt601;
  if (space === 2) return { primaries: "bt709", transfer: "bt709", matrix: "bt709", fullRange };
  if (space === 5) return { primaries: "bt2020", matrix: "bt2020-ncl", fullRange } as unknown as VideoColorSpaceInit;
  return space === 7 ? { matrix: "rgb", fullRange: true } : { ...bt601, fullRange };
}

/** The name that browsers have for a stream; null if they decode no such streams. */
export function codecOf(type: string, keyframe: Uint8Array, extradata: Uint8Array): string | null {
  const hex = (byte: number | undefined) => (byte ?? 0).toString(16).padStart(2, "0");
  switch (type) {
    case "video/h264": {
      // Profile, constraints and level: bytes 1 to 3 of the record, and of the sequence parameter set.
      const sps = extradata.length >= 4 ? extradata : sequenceParameters(keyframe);
      return sps === null ? "avc1.64001f" : `avc1.${hex(sps[1])}${hex(sps[2])}${hex(sps[3])}`;
    }
    case "video/h265":
      return extradata.length >= 13 ? hevcName(extradata) : "hev1.1.6.L153.B0";
    case "video/av1": {
      const [, profile = 0, flags = 0] = extradata;
      const depth = extradata.length >= 4 && flags & 0x40 ? (flags & 0x20 ? "12" : "10") : "08";
      const level = (profile & 31).toString().padStart(2, "0");
      return extradata.length >= 4
        ? `av01.${profile >> 5}.${level}${flags & 0x80 ? "H" : "M"}.${depth}`
        : "av01.0.08M.08";
    }
    case "video/vp9": {
      const [first = 0] = keyframe;
      const profile = ((first >> 5) & 1) | ((first >> 3) & 2);
      return `vp09.0${profile}.41.${profile > 1 ? "10" : "08"}`;
    }
    default:
      return null;
  }
}

/** The first sequence parameter set of an access unit of H.264 in the form of Annex B. */
function sequenceParameters(unit: Uint8Array): Uint8Array | null {
  for (let i = 0; i + 6 < unit.length; i++) {
    if (unit[i] === 0 && unit[i + 1] === 0 && unit[i + 2] === 1 && ((unit[i + 3] as number) & 31) === 7)
      return unit.subarray(i + 3);
  }
  return null;
}

function hevcName(record: Uint8Array): string {
  const byte = (at: number) => record[at] ?? 0;
  const space = ["", "A", "B", "C"][byte(1) >> 6];
  let compatibility = 0;
  for (let bit = 0; bit < 32; bit++) {
    if (byte(2 + (bit >> 3)) & (0x80 >> (bit & 7))) compatibility += 2 ** bit;
  }
  const constraints = Array.from(record.subarray(6, 12));
  while (constraints.length > 0 && constraints.at(-1) === 0) constraints.pop();
  const parts = constraints.map((one) => `.${one.toString(16).toUpperCase()}`).join("");
  return `hvc1.${space}${byte(1) & 31}.${compatibility.toString(16).toUpperCase()}.${byte(1) & 0x20 ? "H" : "L"}${byte(12)}${parts}`;
}

function sides(channel: ChannelFacts): { height: number; width: number } {
  const [height = 0, width = 0] = channel.shape;
  return { height, width };
}

/** Before memory is made for pixels: the stream may claim any size (W-VID-6). */
function checkSize(channel: ChannelFacts, width: number, height: number, step: number): void {
  const wanted = sides(channel);
  if (width === wanted.width && height === wanted.height) return;
  throw new Error(
    `${channel.key}: the picture of step ${step} has ${width} × ${height} pixels, the channel says ${wanted.width} × ${wanted.height}`,
  );
}

async function copyPixels(frame: VideoFrame): Promise<Uint8Array> {
  const [width, height] = [frame.displayWidth, frame.displayHeight];
  try {
    const pixels = new Uint8Array(4 * width * height);
    await frame.copyTo(pixels, { format: "RGBA", rect: frame.visibleRect ?? { x: 0, y: 0, width, height } });
    return pixels;
  } catch {
    return pixelsOf(frame, width, height); // browsers that cannot convert while they copy
  }
}

function pixelsOf(image: CanvasImageSource, width: number, height: number): Uint8Array {
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  if (context === null) throw new Error("the browser gives no canvas of this size");
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, width, height);
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}
