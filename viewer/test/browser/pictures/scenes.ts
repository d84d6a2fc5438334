// Made-up channels whose pictures are known.

import type { TypedArray } from "@shard-format/core";
import type { ChannelFacts } from "../../../src/model/facts";
import type { MadeUpChannel, Scene } from "./reads";
import { type Encoded, encodeDepth, encodeImages, encodeStream, sides, steps as videoSteps } from "./videos";

/** A channel with `values` of `shape` a step; everything else as in most files. */
function channel(values: TypedArray, shape: readonly number[], more: Partial<ChannelFacts> = {}): MadeUpChannel {
  const dimensions = shape.reduce((product, size) => product * size, 1);
  const length = values.length / dimensions;
  return { facts: facts({ shape, dimensions, length, bytes: values.byteLength, ...more }), values };
}

function facts(more: Partial<ChannelFacts>): ChannelFacts {
  const id = more.id ?? "camera";
  const lane = more.lane ?? "signal";
  const key = `${lane}/${id}${more.model ? `/${more.model}` : ""}${more.type ? `/${more.type}` : ""}`;
  return {
    key,
    lane,
    id,
    model: "",
    type: "",
    layout: "dense",
    dtype: "u8",
    shape: [],
    dimensions: 1,
    length: 0,
    unit: "",
    rate: null,
    horizon: null,
    hasOwnClock: false,
    contentType: "",
    codec: "none",
    storedBytes: 0,
    bytes: 0,
    isInferred: false,
    lossy: null,
    sidecar: "",
    row: {},
    problem: null,
    ...more,
  };
}

/** A corridor with a ball that moves from left to right; pixel (0, 0) is `step`, 0, 255 − `step`. */
function corridor(steps: number, height: number, width: number, shift = 0): Uint8Array {
  const values = new Uint8Array(steps * height * width * 3);
  let at = 0;
  for (let step = 0; step < steps; step++) {
    const ball = { x: (width * (step + 1)) / (steps + 1) + shift, y: height * 0.62, radius: height * 0.14 };
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        const floor = y > height * 0.7;
        const dx = x - ball.x;
        const dy = y - ball.y;
        const distance = Math.hypot(dx, dy) / ball.radius;
        const light = 1 - (0.45 * Math.hypot(dx + ball.radius * 0.4, dy + ball.radius * 0.4)) / ball.radius;
        const tile = floor && (Math.floor(x / 12) + Math.floor((y * 2) / 12)) % 2 === 0 ? 22 : 0;
        const base = floor
          ? [96 + tile, 88 + tile, 82 + tile]
          : [150 + (60 * y) / height, 176 + (40 * y) / height, 196];
        const colour = distance < 1 ? [232 * light, 92 * light, 48 * light] : base;
        for (const part of colour) values[at++] = part;
      }
    }
    values.set([step, 0, 255 - step], step * height * width * 3);
  }
  return values;
}

function steps<T extends TypedArray>(array: T, fill: (index: number) => number): T {
  for (let i = 0; i < array.length; i++) array[i] = fill(i);
  return array;
}

/** Numbers from 0 to 1 that look like chance and are always the same. */
function noise(i: number): number {
  const x = Math.sin(i * 12.9898 + 4.1414) * 43758.5453;
  return x - Math.floor(x);
}

/** Steps of NaN. */
function nothing(shape: readonly number[], length: number): Scene {
  const size = shape.reduce((product, one) => product * one, length);
  return { length, channels: [channel(new Float32Array(size).fill(Number.NaN), shape, { dtype: "f32" })] };
}

function video(encoded: Encoded | null): Scene {
  if (encoded === null) return { length: 0, channels: [] };
  const { contentType, packets, extradata, dtype = "u8", shape = [sides.height, sides.width, 3] } = encoded;
  const dimensions = shape.reduce((product, size) => product * size, 1);
  const row = facts({
    layout: "video",
    dtype,
    shape,
    dimensions,
    length: packets.length,
    contentType,
    unit: dtype === "u16" ? "mm" : "",
  });
  return { length: packets.length, channels: [{ facts: row, packets, extradata }] };
}

/** A stream whose packets are not those of its codec from some step on. */
function damaged(scene: Scene, from = 0, to = videoSteps): Scene {
  const channels = scene.channels.map((one) => ({
    ...one,
    packets: (one.packets ?? []).map((packet) => ({
      ...packet,
      data:
        packet.step < from || packet.step >= to ? packet.data : packet.data.map((byte, i) => byte ^ ((i * 37) & 255)),
    })),
  }));
  return { ...scene, channels };
}

export const scenes: Readonly<Record<string, () => Scene | Promise<Scene>>> = {
  camera() {
    return { length: 64, channels: [channel(corridor(64, 120, 160), [120, 160, 3])] };
  },
  "camera and prediction"() {
    const truth = channel(corridor(64, 120, 160), [120, 160, 3]);
    const prediction = channel(corridor(64, 120, 160, 9), [120, 160, 3], { lane: "omen", model: "dreamer" });
    return { length: 64, channels: [truth, prediction] };
  },
  "two quarters"() {
    // Left half 10, 20, 30, right half 200, 100, 50; the prediction is 5 more of green.
    const side = (add: number) => {
      const values = new Uint8Array(8 * 8 * 8 * 3);
      for (let i = 0; i < values.length; i++) {
        const right = Math.floor(i / 3) % 8 >= 4;
        values[i] = ((right ? [200, 100, 50] : [10, 20, 30])[i % 3] as number) + (i % 3 === 1 ? add : 0);
      }
      return values;
    };
    return {
      length: 8,
      channels: [channel(side(0), [8, 8, 3]), channel(side(5), [8, 8, 3], { lane: "omen", model: "m" })],
    };
  },
  "channel first"() {
    // Red rises to the right, blue falls from top to bottom.
    const values = new Uint8Array(4 * 3 * 32 * 32);
    for (let step = 0; step < 4; step++) {
      for (let y = 0; y < 32; y++) {
        for (let x = 0; x < 32; x++) {
          const at = step * 3072 + y * 32 + x;
          values[at] = 8 * x;
          values[at + 1024] = 64 * step;
          values[at + 2048] = 8 * y;
        }
      }
    }
    return { length: 4, channels: [channel(values, [3, 32, 32], { row: { semantics: "rgb, CHW" } })] };
  },
  depth() {
    // A wall that comes nearer to the right; a hole without values in the middle.
    const [height, width] = [60, 80];
    const values = steps(new Uint16Array(32 * height * width), (i) => {
      const [x, y] = [i % width, Math.floor(i / width) % height];
      const step = Math.floor(i / width / height);
      if (Math.hypot(x - 40, y - 30) < 9) return 0;
      return 500 + 20 * (width - x) + 6 * Math.abs(y - 30) + 10 * step;
    });
    return { length: 32, channels: [channel(values, [height, width], { dtype: "u16", unit: "mm", id: "depth" })] };
  },
  "own clock"() {
    // Four pictures in ten steps, the first at step 2; each is all of one grey.
    const values = steps(new Uint8Array(4 * 16 * 16), (i) => 50 * (1 + Math.floor(i / 256)));
    const made = channel(values, [16, 16], { hasOwnClock: true });
    return { length: 10, channels: [{ ...made, positions: Float64Array.of(2, 4, 6, 8) }] };
  },
  points() {
    // A floor, a box and a ball that rolls along it; the fourth column is 0 of the floor, 0.5 of the box, 1 of the ball.
    const [length, count] = [40, 3000];
    const values = new Float32Array(length * count * 4);
    for (let step = 0; step < length; step++) {
      for (let i = 0; i < count; i++) {
        const [u, v, w] = [noise(i * 3), noise(i * 3 + 1), noise(i * 3 + 2)];
        const turn = 2 * Math.PI * u;
        let point = [2 * u - 1, 2 * v - 1, 0.01 * w, 0];
        if (i % 3 === 1) point = [0.3 + 0.4 * u, 0.3 + 0.4 * v, (i % 2) * 0.5 + (1 - (i % 2)) * 0.5 * w, 0.5];
        if (i % 3 === 1 && i % 2 === 0) point[i % 4 === 0 ? 0 : 1] = w > 0.5 ? 0.3 : 0.7;
        if (i % 3 === 2) {
          const z = 2 * v - 1;
          const r = Math.sqrt(1 - z * z);
          point = [-0.7 + 0.035 * step + 0.2 * r * Math.cos(turn), -0.4 + 0.2 * r * Math.sin(turn), 0.2 + 0.2 * z, 1];
        }
        values.set(point, (step * count + i) * 4);
      }
    }
    return { length, channels: [channel(values, [count, 4], { dtype: "f32", unit: "m", id: "scan" })] };
  },
  "ragged points"() {
    // Step t has 40 (t + 1) points of byte colours: half red and low, half blue and high. Step 3 has none.
    const items = Array.from({ length: 6 }, (_, step) => {
      const item = new Float32Array(step === 3 ? 0 : 40 * (step + 1) * 6);
      for (let i = 0; i < item.length / 6; i++) {
        const high = i % 2;
        item.set([noise(3 * i), noise(3 * i + 1), high, high ? 0 : 255, 0, high ? 255 : 0], 6 * i);
      }
      return item;
    });
    const row = facts({ id: "lidar", layout: "ragged", dtype: "f32", shape: [6], dimensions: 6, length: 6, unit: "m" });
    return { length: 6, channels: [{ facts: row, items }] };
  },
  rows() {
    // Dimension d is d of 31; steps 40 to 59 of dimension 5 are missing.
    const values = steps(new Float32Array(100 * 32), (i) => {
      const [step, dimension] = [Math.floor(i / 32), i % 32];
      return dimension === 5 && step >= 40 && step < 60 ? Number.NaN : dimension;
    });
    return { length: 100, channels: [channel(values, [32], { dtype: "f32", id: "tactile", unit: "N" })] };
  },
  spike() {
    // All zero but for one value of dimension 9 at step 30,000, and one of −1 to 1 for the range.
    const values = new Float32Array(60_000 * 20);
    values[30_000 * 20 + 9] = 1;
    values[2] = -1;
    return { length: 60_000, channels: [channel(values, [20], { dtype: "f32", id: "tactile" })] };
  },
  waves() {
    const values = steps(new Float32Array(400 * 64), (i) => {
      const [step, dimension] = [Math.floor(i / 64), i % 64];
      return (
        Math.sin(step / 24 + dimension / 9) * Math.exp(-(((dimension - 32 - 20 * Math.sin(step / 70)) / 16) ** 2)) +
        0.08 * noise(i)
      );
    });
    return { length: 400, channels: [channel(values, [64], { dtype: "f32", id: "tactile", unit: "N" })] };
  },
  codes() {
    // Code 3 until step 50, then code 7; the last step is code 12.
    const values = steps(new Int32Array(100), (step) => (step === 99 ? 12 : step < 50 ? 3 : 7));
    return {
      length: 100,
      channels: [channel(values, [], { dtype: "i32", lane: "omen", id: "latent_action_codebook", model: "m" })],
    };
  },
  "many codes"() {
    const values = steps(new Int32Array(600 * 3), (i) =>
      Math.floor(noise(Math.floor(i / 3 / (7 + (i % 3) * 9)) * 3 + (i % 3)) ** 2 * 40),
    );
    return {
      length: 600,
      channels: [channel(values, [3], { dtype: "i32", lane: "omen", id: "latent_action_codebook", model: "m" })],
    };
  },
  embedding() {
    // A path around a circle in 32 dimensions; in the first half of the episode it is at one side.
    const values = steps(new Float32Array(300 * 32), (i) => {
      const [step, dimension] = [Math.floor(i / 32), i % 32];
      const turn = (step / 300) * 2 * Math.PI;
      const wobble = 0.15 * Math.sin(7 * turn);
      return (
        (2 + wobble) * Math.cos(turn) * Math.sin(dimension) + (1 + wobble) * Math.sin(turn) * Math.cos(2 * dimension)
      );
    });
    return {
      length: 300,
      channels: [channel(values, [32], { dtype: "f32", lane: "omen", id: "latent_action", model: "m" })],
    };
  },
  "video/h264": async () => video(await encodeStream("video/h264", "avc1.42001f", { avc: { format: "avc" } })),
  "video/h264 Annex B": async () =>
    video(await encodeStream("video/h264", "avc1.42001f", { avc: { format: "annexb" } })),
  "video/vp9": async () => video(await encodeStream("video/vp9", "vp09.00.10.08")),
  "video/av1": async () => video(await encodeStream("video/av1", "av01.0.04M.08")),
  "long stretches": async () =>
    video(await encodeStream("video/h264", "avc1.42001f", { avc: { format: "avc" } }, { length: 260, between: 120 })),
  "image/png": async () => video(await encodeImages("image/png")),
  "image/jpeg": async () => video(await encodeImages("image/jpeg")),
  "depth video": async () => video(await encodeDepth()),
  "video/ffv1"() {
    const packets = Array.from({ length: videoSteps }, (_, step) => ({
      data: new Uint8Array(8),
      number: step,
      step,
      isKeyframe: true,
      isHidden: false,
    }));
    return video({ contentType: "video/ffv1", packets, extradata: new Uint8Array(0) });
  },
  "damaged video": async () => damaged(video(await encodeStream("video/vp9", "vp09.00.10.08"))),
  "damaged images": async () => damaged(video(await encodeImages("image/png"))),
  "one damaged image": async () => damaged(video(await encodeImages("image/png")), 5, 6),
  "wrong size"() {
    return encodeImages("image/png").then((encoded) => video({ ...encoded, shape: [40, 64, 3] }));
  },
  "two cameras"() {
    const [a, b] = [0, 7].map((shift) => corridor(128, 240, 320, shift));
    return {
      length: 128,
      channels: [
        channel(a as Uint8Array, [240, 320, 3]),
        channel(b as Uint8Array, [240, 320, 3], { lane: "omen", model: "m" }),
      ],
    };
  },
  "no camera entries": () => ({ length: 3, channels: [channel(new Uint8Array(0), [8, 8, 3], { length: 0 })] }),
  "no values": () => nothing([16, 16], 4),
  "no points": () => nothing([50, 4], 4),
  "no rows": () => nothing([32], 4),
  "one embedding": () => nothing([32], 1),
  "no codes": () => ({ length: 3, channels: [channel(new Int32Array(0), [], { dtype: "i32", length: 0 })] }),
  "quantile band"() {
    const flat = (value: number) => new Float32Array(40).fill(value);
    const about = (type: string, value: number) =>
      channel(flat(value), [], { dtype: "f32", lane: "uncert", model: "m", type });
    const truth = channel(flat(0), [], { dtype: "f32" });
    const prediction = channel(flat(0), [], { dtype: "f32", lane: "omen", model: "m" });
    return { length: 40, channels: [truth, prediction, about("q05", -1), about("q95", 3), about("entropy", 7)] };
  },
  forecast() {
    // At each step, a model predicts 0 for this step, and then more and more, up to 1 seven steps later.
    const truth = channel(new Float32Array(40), [], { dtype: "f32" });
    const ramp = Float32Array.from({ length: 40 * 8 }, (_, at) => (at % 8) / 7);
    const more = { dtype: "f32", lane: "omen", model: "m", horizon: 8 } as const;
    return { length: 40, channels: [truth, channel(ramp, [8], more)] };
  },
  horizon() {
    // Step t is grey of 20 t. At each step, a model has predicted 1 more than that for this step and the two after it.
    const truth = steps(new Uint8Array(8 * 64), (i) => 20 * Math.floor(i / 64));
    const predicted = steps(
      new Uint8Array(8 * 3 * 64),
      (i) => 20 * (Math.floor(i / 192) + (Math.floor(i / 64) % 3)) + 1,
    );
    const more = { lane: "omen", model: "m", horizon: 3 } as const;
    return { length: 8, channels: [channel(truth, [8, 8]), channel(predicted, [3, 8, 8], more)] };
  },
};
