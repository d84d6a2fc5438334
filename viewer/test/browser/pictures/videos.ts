// Cameras whose frames are encoded in the page: the left half of step t is grey of 8 times t modulo 24, the right half is red.

import type { ChannelFacts } from "../../../src/model/facts";
import type { Packet } from "../../../src/model/reads";

export const sides = { width: 64, height: 48 };
export const steps = 24;

export interface Encoded {
  readonly contentType: string;
  readonly packets: readonly Packet[];
  readonly extradata: Uint8Array;
  readonly dtype?: ChannelFacts["dtype"];
  readonly shape?: readonly number[];
}

function draw(step: number): OffscreenCanvas {
  const canvas = new OffscreenCanvas(sides.width, sides.height);
  const context = canvas.getContext("2d") as OffscreenCanvasRenderingContext2D;
  context.fillStyle = `rgb(${8 * (step % 24)} ${8 * (step % 24)} ${8 * (step % 24)})`;
  context.fillRect(0, 0, 32, 48);
  context.fillStyle = "rgb(200 0 0)";
  context.fillRect(32, 0, 32, 48);
  return canvas;
}

/** Packets of a codec with a keyframe at every eighth step; null if this browser does not encode it. */
export async function encodeStream(
  contentType: string,
  codec: string,
  more: object = {},
  { length, between } = { length: steps, between: 8 },
): Promise<Encoded | null> {
  const config: VideoEncoderConfig = {
    codec,
    ...sides,
    bitrate: 4_000_000,
    framerate: 30,
    latencyMode: "realtime",
    ...more,
  };
  const { supported } = await VideoEncoder.isConfigSupported(config).catch(() => ({ supported: false }));
  if (!supported) return null;
  const packets: Packet[] = [];
  let extradata = new Uint8Array(0);
  let failed: unknown = null;
  const encoder = new VideoEncoder({
    output(chunk, metadata) {
      const data = new Uint8Array(chunk.byteLength);
      chunk.copyTo(data);
      const description = metadata?.decoderConfig?.description;
      if (description !== undefined && extradata.length === 0 && contentType !== "video/vp9") {
        extradata = new Uint8Array(
          description instanceof ArrayBuffer ? description.slice(0) : (description as Uint8Array).slice(),
        );
      }
      const number = packets.length;
      packets.push({ data, number, step: number, isKeyframe: chunk.type === "key", isHidden: false });
    },
    error(error) {
      failed = error;
    },
  });
  encoder.configure(config);
  for (let step = 0; step < length; step++) {
    const frame = new VideoFrame(draw(step), { timestamp: step * 33_333 });
    encoder.encode(frame, { keyFrame: step % between === 0 });
    frame.close();
  }
  await encoder.flush();
  encoder.close();
  return failed === null ? { contentType, packets, extradata } : null;
}

export async function encodeImages(contentType: "image/png" | "image/jpeg"): Promise<Encoded> {
  // All at once: browsers encode images when they have nothing else to do.
  const packets = await Promise.all(
    Array.from({ length: steps }, async (_, step): Promise<Packet> => {
      const blob = await draw(step).convertToBlob({ type: contentType, quality: 0.95 });
      const data = new Uint8Array(await blob.arrayBuffer());
      return { data, number: step, step, isKeyframe: true, isHidden: false };
    }),
  );
  return { contentType, packets, extradata: new Uint8Array(0) };
}

/** Depth of 16 bits: 1000 + x + 100 · step, 0 in the lower half; each row with the next of the five filters. */
export async function encodeDepth(): Promise<Encoded> {
  const { width, height } = sides;
  const packets: Packet[] = [];
  for (let step = 0; step < steps; step++) {
    const value = (x: number, y: number) => (y >= height / 2 ? 0 : 1000 + x + 100 * step);
    const byte = (x: number, y: number) =>
      x < 0 || y < 0 ? 0 : x % 2 === 0 ? value(x >> 1, y) >> 8 : value(x >> 1, y) & 255;
    const rows = new Uint8Array(height * (2 * width + 1));
    for (let y = 0; y < height; y++) {
      const filter = y % 5;
      rows[y * (2 * width + 1)] = filter;
      for (let x = 0; x < 2 * width; x++) {
        const [a, b, c] = [byte(x - 2, y), byte(x, y - 1), x < 2 ? 0 : byte(x - 2, y - 1)];
        const paeth = pick(a + b - c, a, b, c);
        rows[y * (2 * width + 1) + 1 + x] = byte(x, y) - ([0, a, b, (a + b) >> 1, paeth][filter] as number);
      }
    }
    const compressed = new Blob([rows]).stream().pipeThrough(new CompressionStream("deflate"));
    const pixels = new Uint8Array(await new Response(compressed).arrayBuffer());
    const head = new Uint8Array(13);
    const view = new DataView(head.buffer);
    view.setUint32(0, width);
    view.setUint32(4, height);
    head.set([16, 0, 0, 0, 0], 8);
    const parts = [Uint8Array.of(0x89, 0x50, 0x4e, 0x47, 13, 10, 26, 10), chunk("IHDR", head)];
    parts.push(
      chunk("IDAT", pixels.subarray(0, 40)),
      chunk("IDAT", pixels.subarray(40)),
      chunk("IEND", new Uint8Array(0)),
    );
    const data = new Uint8Array(await new Blob(parts as Uint8Array<ArrayBuffer>[]).arrayBuffer());
    packets.push({ data, number: step, step, isKeyframe: true, isHidden: false });
  }
  const shape = [height, width];
  return { contentType: "image/png", packets, extradata: new Uint8Array(0), dtype: "u16", shape };
}

function pick(p: number, a: number, b: number, c: number): number {
  const [da, db, dc] = [Math.abs(p - a), Math.abs(p - b), Math.abs(p - c)];
  return da <= db && da <= dc ? a : db <= dc ? b : c;
}

/** A chunk of a PNG file. Its checksum is left at 0: our decoder does not look at it. */
function chunk(name: string, data: Uint8Array): Uint8Array {
  const out = new Uint8Array(12 + data.length);
  new DataView(out.buffer).setUint32(0, data.length);
  out.set(new TextEncoder().encode(name), 4);
  out.set(data, 8);
  return out;
}
