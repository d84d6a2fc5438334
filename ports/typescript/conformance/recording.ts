// Records a case of spec/vectors/canonical step by step.

import { readFileSync } from "node:fs";
import { decodeUtf8, fromHex } from "../src/core/bytes.js";
import type { JsonObject } from "../src/node.js";
import { type ChannelDef, Recorder, type RecorderOptions, type StepFacts, type StepValue } from "../src/wshard/node.js";
import { tellWritten } from "./container.js";
import { numbers } from "./episode-case.js";
import { digest, type Kind } from "./kind.js";

interface ToldStep {
  values: Record<string, string>;
  timestamp_ns?: string;
  reward?: number;
  done?: boolean;
  terminated?: boolean;
  truncated?: boolean;
}

interface Call {
  step?: ToldStep;
  write?: { channel: string; value: string; timestamp_ns: string };
  annotate?: { label: string; text: string; start: string; end: string };
}

export const recording: Kind = {
  async write(given, out) {
    const channels = new Map(channelsOf(given).map((def) => [def.id, def]));
    const valuesOf = (told: Record<string, string>) =>
      Object.fromEntries(Object.entries(told).map(([id, hex]) => [id, stepValue(channels.get(id), hex)]));
    const recorder = await Recorder.begin(out, optionsOf(given));
    try {
      for (const { step, write, annotate } of given["calls"] as Call[]) {
        if (step !== undefined) await recorder.step(valuesOf(step.values), factsOf(step));
        if (write !== undefined) {
          const value = stepValue(channels.get(write.channel), write.value);
          await recorder.write(write.channel, value, BigInt(write.timestamp_ns));
        }
        if (annotate !== undefined) {
          const { label, text, start, end } = annotate;
          recorder.annotate(text, { label, start: Number(start), end: Number(end) });
        }
      }
      await recorder.flush();
      const journal = digest(readFileSync(recorder.partialPath));
      await recorder.end({ finalObservations: valuesOf(given["final"] as Record<string, string>) });
      return { ...(await tellWritten(out)), journal_sha256: journal };
    } finally {
      await recorder.abort();
    }
  },
};

function optionsOf(given: JsonObject): RecorderOptions {
  const episode = given["episode"] as JsonObject;
  const clock = episode["timebase"] as JsonObject;
  const options = given["options"] as JsonObject;
  return {
    id: String(episode["id"]),
    envId: String(episode["env_id"]),
    channels: channelsOf(given),
    timebase: {
      type: clock["type"] as "ticks",
      tickHz: clock["tick_hz"] as number | null,
      epochNs: BigInt(clock["epoch_ns"] as string),
    },
    metadata: (episode["metadata"] ?? {}) as JsonObject,
    flushSteps: Number(options["flush_steps"]),
    flushSeconds: 3600,
    fsync: "never",
    overwrite: true,
    discardPartial: true,
  };
}

function channelsOf(given: JsonObject): ChannelDef[] {
  return (given["channels"] as JsonObject[]).map((told) => ({
    id: String(told["id"]),
    lane: told["lane"] as "signal" | "action",
    dtype: told["dtype"] as "f32",
    shape: (told["shape"] as string[]).map(Number),
    layout: told["layout"] as "dense" | "ragged" | "text",
    ownClock: told["own_clock"] === true,
  }));
}

function factsOf({ values: _, timestamp_ns: time, ...facts }: ToldStep): StepFacts {
  return time === undefined ? facts : { ...facts, timestampNs: BigInt(time) };
}

function stepValue(channel: ChannelDef | undefined, hex: string): StepValue {
  if (channel?.layout === "text") return decodeUtf8(fromHex(hex) as Uint8Array) as string;
  return numbers(channel?.dtype ?? "f32", hex);
}
