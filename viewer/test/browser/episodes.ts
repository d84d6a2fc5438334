// Episodes for the tests, as the TypeScript library writes them.

import { ShardError, type Sink } from "@shard-format/core";
import { type EpisodeInput, encodeEpisode, writeEpisode } from "@shard-format/core/wshard";
import type { Served } from "./harness";

/** Numbers that look like a movement. */
export function waves(steps: number, dims: number, phase = 0): Float32Array {
  return Float32Array.from({ length: steps * dims }, (_, at) => {
    const [step, dim] = [Math.floor(at / dims), at % dims];
    return Math.sin(step / (20 + 3 * dim) + dim + phase) * (1 - dim / (2 * dims));
  });
}

/** An arm that reaches for something, with a camera, and what a model predicted. It goes wrong at step 150. */
export function reaching(steps = 200, more: Partial<EpisodeInput> = {}): EpisodeInput {
  const truth = waves(steps, 3);
  const predicted = truth.map((value, at) => value + (Math.floor(at / 3) === 150 ? 2 : 0));
  const frames = new Uint8Array(steps * 24 * 32 * 3).map((_, at) => (at / (24 * 32 * 3) + at) % 256);
  return {
    id: "reach_001",
    envId: "Reach-v1",
    timebase: { tickHz: 50 },
    metadata: { task: "reach for the cup", success: true },
    observations: {
      joint_pos: { data: truth, shape: [3], unit: "rad" },
      camera: { data: frames, shape: [24, 32, 3] },
      gripper: { data: Int32Array.from({ length: steps }, (_, step) => Number(step > 100)) },
    },
    actions: { ctrl: { data: waves(steps, 2, 1), shape: [2] } },
    rewards: Float32Array.from({ length: steps }, (_, step) => step / steps),
    terminations: Array.from({ length: steps }, (_, step) => step === steps - 1),
    truncations: Array.from({ length: steps }, () => false),
    omens: { joint_pos: { dreamer: { data: predicted, shape: [3] } } },
    uncerts: { joint_pos: { dreamer: { std: { data: new Float32Array(steps * 3).fill(0.1), shape: [3] } } } },
    labels: {
      phase: [
        { start: 0, end: 80, text: "reach" },
        { start: 80, end: 140, text: "grasp" },
      ],
    },
    ...more,
  };
}

export function encoded(episode: EpisodeInput): Promise<Uint8Array> {
  return encodeEpisode(episode);
}

/** Keeps everything but long blocks of zeros, which nobody needs in memory. */
class SparseSink implements Sink {
  readonly path = undefined;
  readonly parts: { start: number; bytes: Uint8Array }[] = [];
  #size = 0;
  #head: Uint8Array = new Uint8Array(0);

  async begin(): Promise<void> {}

  async append(bytes: Uint8Array): Promise<void> {
    if (bytes.length < 1 << 26) this.parts.push({ start: this.#size, bytes: bytes.slice() });
    this.#size += bytes.length;
  }

  async finish(head: Uint8Array): Promise<void> {
    this.#head = head;
  }

  async abort(): Promise<void> {
    throw new ShardError("closed", "the test gave up");
  }

  get served(): Served {
    const head = this.#head;
    const parts = [{ start: -head.length, bytes: head }, ...this.parts];
    return {
      size: head.length + this.#size,
      read(offset, length) {
        const out = new Uint8Array(length);
        for (const { start, bytes } of parts) {
          const from = start + head.length;
          const [low, high] = [Math.max(offset, from), Math.min(offset + length, from + bytes.length)];
          if (low < high) out.set(bytes.subarray(low - from, high - from), low - offset);
        }
        return out;
      },
    };
  }
}

/** Five channels of ten million samples each. In each, one sample is 50 and all others are at most 1. */
export async function fiveLong(): Promise<Served> {
  const samples = 10_000_000;
  const data = new Float32Array(samples);
  for (let at = 0; at < samples; at++) data[at] = Math.sin(at / 1000) + (at === 7_654_321 ? 50 : 0);
  const steps = 8_000;
  const channel = { data, startNs: 0n, samplingRateHz: (samples / steps) * 30 };
  const sink = new SparseSink();
  await writeEpisode(sink, {
    id: "five_001",
    timebase: { tickHz: 30 },
    observations: Object.fromEntries(["a", "b", "c", "d", "e"].map((name) => [name, channel])),
    actions: { ctrl: { data: waves(steps, 2), shape: [2] } },
    rewards: new Float32Array(steps),
  });
  return sink.served;
}

/** An episode of more than 2 GB: a camera without light, joints, and a microphone with ten million samples. */
export async function huge(): Promise<Served> {
  const steps = 8_000;
  const samples = 10_000_000;
  const sink = new SparseSink();
  const sound = new Float32Array(samples);
  for (let at = 0; at < samples; at++) sound[at] = Math.sin(at / 1000) + (at === 7_654_321 ? 50 : 0);
  await writeEpisode(sink, {
    id: "long_001",
    timebase: { tickHz: 30 },
    observations: {
      camera: { data: new Uint8Array(steps * 320 * 280 * 3), shape: [280, 320, 3] },
      joint_pos: { data: waves(steps, 7), shape: [7], unit: "rad" },
      microphone: { data: sound, startNs: 0n, samplingRateHz: (samples / steps) * 30 },
    },
    actions: { ctrl: { data: waves(steps, 7, 1), shape: [7] } },
    rewards: Float32Array.from({ length: steps }, (_, step) => Math.sin(step / 300)),
  });
  return sink.served;
}
