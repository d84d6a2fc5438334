// The stream writer of @wshard/core, over our recorder: every step that was flushed survives a crash.

import { stat } from "node:fs/promises";
import { toTypedArray } from "../../core/dtypes.js";
import { invalid } from "../../core/errors.js";
import type { DType } from "../../core/registry.js";
import { Recorder } from "../recorder.js";
import type { StepValue } from "../recorder-channels.js";
import type { CompressionLevel, CompressionType } from "./names.js";

/** A channel of a stream. */
export interface StreamChannelDef {
  name: string;
  dtype: DType;
  shape: number[];
  modality?: string;
}

export interface WShardStreamWriterOptions {
  maxTimesteps?: number;
  /** Runs are compressed with zstd, or not at all. */
  compression?: CompressionType;
  compressionLevel?: CompressionLevel;
  flushInterval?: number;
}

type Values<T> = Readonly<Record<string, T>>;

/** Records an episode step by step. New code uses `Recorder`. The calls may be made without waiting for each. */
export class WShardStreamWriter {
  readonly #path: string;
  readonly #id: string;
  readonly #defs: readonly StreamChannelDef[];
  readonly #options: WShardStreamWriterOptions;
  #envId: string | undefined;
  #recorder: Recorder | undefined;
  #last: Promise<unknown> = Promise.resolve();
  #count = 0;
  #isFinalized = false;

  constructor(
    path: string,
    episodeId: string,
    channels: readonly StreamChannelDef[],
    options: WShardStreamWriterOptions = {},
  ) {
    this.#path = path;
    this.#id = episodeId;
    this.#defs = channels;
    this.#options = options;
  }

  get count(): number {
    return this.#count;
  }

  get isFinalized(): boolean {
    return this.#isFinalized;
  }

  async beginEpisode(envId = ""): Promise<void> {
    if (this.#envId !== undefined) throw invalid("the episode has begun already", { path: this.#path });
    this.#envId = envId;
  }

  /** Records a step; the values are the stored bytes of each channel. Which channels are actions, the first step says. */
  async writeTimestep(
    t: number,
    observations: Values<Uint8Array>,
    actions: Values<Uint8Array>,
    reward: number,
    done: boolean,
  ): Promise<void> {
    const values: Record<string, StepValue> = {};
    for (const [name, bytes] of [...Object.entries(observations), ...Object.entries(actions)]) {
      const dtype = this.#defs.find((def) => def.name === name)?.dtype ?? "u8";
      values[name] = toTypedArray(dtype === "f16" || dtype === "bf16" ? "u16" : dtype, Uint8Array.from(bytes));
    }
    return this.#step(t, values, Object.keys(actions), reward, done);
  }

  writeTimestepFloat32(
    t: number,
    observations: Values<readonly number[]>,
    actions: Values<readonly number[]>,
    reward: number,
    done: boolean,
  ): Promise<void> {
    const values = Object.fromEntries(
      [...Object.entries(observations), ...Object.entries(actions)].map(([name, numbers]) => [name, [...numbers]]),
    );
    return this.#step(t, values, Object.keys(actions), reward, done);
  }

  /** Finishes the episode; returns the size of its file. */
  async endEpisode(): Promise<number> {
    return this.#inTurn(async () => {
      const recorder = await this.#begun([]);
      await recorder.end();
      this.#isFinalized = true;
      return (await stat(this.#path)).size;
    });
  }

  #step(
    t: number,
    values: Values<StepValue>,
    actions: readonly string[],
    reward: number,
    done: boolean,
  ): Promise<void> {
    return this.#inTurn(async () => {
      const { maxTimesteps = 100000 } = this.#options;
      if (t !== this.#count) throw invalid("the steps are not in order", { expected: this.#count, found: t });
      if (t >= maxTimesteps) throw invalid("more steps than were announced", { expected: maxTimesteps });
      const recorder = await this.#begun(actions);
      await recorder.step(values, { reward, done });
      this.#count++;
    });
  }

  async #begun(actions: readonly string[]): Promise<Recorder> {
    if (this.#envId === undefined) throw invalid("call beginEpisode first", { path: this.#path });
    const { compression, flushInterval = 64 } = this.#options;
    this.#recorder ??= await Recorder.begin(this.#path, {
      id: this.#id,
      envId: this.#envId,
      channels: this.#defs.map(({ name, dtype, shape, modality }) => ({
        id: name,
        lane: actions.includes(name) ? "action" : "signal",
        dtype,
        shape,
        ...(modality === undefined ? {} : { modality }),
      })),
      flushSteps: flushInterval,
      compression: compression === "zstd" ? "zstd" : "none",
      overwrite: true,
      discardPartial: true,
    });
    return this.#recorder;
  }

  #inTurn<T>(run: () => Promise<T>): Promise<T> {
    const turn = this.#last.then(run);
    this.#last = turn.catch(() => undefined);
    return turn;
  }
}
