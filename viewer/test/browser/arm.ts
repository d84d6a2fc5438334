// An episode for tests and pictures of panels: a reaching arm, with a prediction, its uncertainty, residuals, labels,
// texts, and some things that are wrong with it.

import { type EpisodeInput, encodeEpisode } from "@shard-format/core/wshard";

export const length = 400;
const dims = 4;
const rate = 50;

/** Random numbers that are the same each time. */
function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

function normal(random: () => number): number {
  return Math.sqrt(-2 * Math.log(random() + 1e-12)) * Math.cos(2 * Math.PI * random());
}

export function input(id = "ep_0042", seed = 1): EpisodeInput {
  const random = generator(seed);
  const position = new Float32Array((length + 1) * dims);
  const predicted = new Float32Array(length * dims);
  const deviation = new Float32Array(length * dims);
  const other = new Float32Array(length * dims);
  for (let dim = 0; dim < dims; dim++) {
    for (let step = 0; step <= length; step++) {
      const at = step * dims + dim;
      position[at] = Math.sin(step / (25 + 9 * dim) + dim) * (1 + dim / 3) + 0.01 * normal(random);
      if (step === length) continue;
      // The model goes wrong between steps 240 and 300.
      const wrong = step > 240 && step < 300 ? 0.5 * Math.sin((Math.PI * (step - 240)) / 60) : 0;
      deviation[at] = 0.05 + (step > 250 && step < 310 ? 0.12 : 0);
      predicted[at] = position[at] + wrong + 0.03 * normal(random);
      other[at] = position[at] + 0.12 * normal(random);
    }
  }
  const action = new Float32Array(length * 3);
  const broken = new Float32Array(length * 2);
  const rewards = new Float32Array(length);
  for (let step = 0; step < length; step++) {
    action[3 * step] = Math.cos(step / 25);
    action[3 * step + 1] = 0.6 * Math.sin(step / 31 + 1);
    action[3 * step + 2] = step % 90 < 45 ? 1 : -1;
    broken[2 * step] = step >= 120 && step < 133 ? Number.NaN : Math.sin(step / 40);
    broken[2 * step + 1] = 0.25;
    rewards[step] = -0.4 * Math.abs(Math.sin(step / 60)) + (step === length - 1 ? 5 : 0);
  }
  return {
    id,
    envId: "Reach-v1",
    timebase: { tickHz: rate },
    metadata: {
      task: "pick up the cup",
      success: true,
      operator: "ada",
      homepage: "https://example.org/runs/42",
      odd: "javascript:alert(1)",
      robot: { name: "arm", joints: ["shoulder", "elbow", "wrist", "grip"], mass_kg: 12.5 },
    },
    observations: {
      joint_pos: { data: position, shape: [dims], unit: "rad" },
      gripper_force: { data: broken, shape: [2], unit: "N" },
      instruction: {
        text: Array.from({ length }, (_, step) => (step < 200 ? "pick up the cup" : "put it on the shelf")),
      },
    },
    actions: { ctrl: { data: action, shape: [3] } },
    rewards,
    terminations: Uint8Array.from({ length }, (_, step) => Number(step === length - 1)),
    truncations: Uint8Array.from({ length }, (_, step) => Number(step === 310)),
    omens: {
      joint_pos: {
        dreamer: { data: predicted, shape: [dims] },
        baseline: { data: other, shape: [dims] },
      },
    },
    uncerts: { joint_pos: { dreamer: { std: { data: deviation, shape: [dims] } } } },
    residuals: [
      { channel: "joint_pos", type: "sign2nddiff" },
      { channel: "joint_pos", model: "dreamer", type: "delta_q", window: 64 },
    ],
    labels: {
      phase: [
        { start: 0, end: 120, text: "reach", source: "human", confidence: 1 },
        { start: 120, end: 190, text: "grasp", source: "human", confidence: 0.9 },
        { start: 190, end: 320, text: "lift", source: "detector", confidence: 0.62 },
        { start: 300, end: 400, text: "place", source: "detector", confidence: 0.8 },
      ],
    },
    extras: { "notes/calibration.bin": Uint8Array.from({ length: 1000 }, (_, at) => (at * 7) & 255) },
    provenance: { run_id: "run-7", epoch: 3, source: { robot: "arm-2", git: "https://example.org/commit/abc" } },
  };
}

export async function episodeBytes(id?: string, seed?: number): Promise<Uint8Array> {
  return encodeEpisode(input(id, seed));
}
