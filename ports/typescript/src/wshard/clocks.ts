/** Clocks: the times of steps and of channels with a regular clock (spec/wshard.md, section 5). */

import { halfToEven } from "../core/dtypes.js";
import { ShardError } from "../core/errors.js";

/** The clock of the steps. */
export interface Timebase {
  readonly type: "ticks" | "timestamps_ns";
  /** Steps per second; null if the writer did not know it. */
  readonly tickHz: number | null;
  /** The time of the first step. */
  readonly epochNs: bigint;
}

/** The rate of files of older writers, which do not state one. */
export const defaultRate = 30;
const nsPerSecond = 1e9;
const largest = (1n << 63n) - 1n;

/** How long after the first one a step is, in nanoseconds: first the product, then the quotient, then halves to even. */
export function stepTime(step: number | bigint, rate: number): bigint {
  const time = (Number(step) * nsPerSecond) / rate;
  if (!Number.isFinite(time)) throw tooLate(time);
  return BigInt(halfToEven(time));
}

/** The times of `count` entries of a regular clock. */
export function regularTimes(startNs: bigint, rate: number, count: number, first = 0): BigInt64Array {
  const times = new BigInt64Array(count);
  for (let at = 0; at < count; at++) {
    const time = startNs + stepTime(first + at, rate);
    if (time > largest || time < -largest - 1n) throw tooLate(time);
    times[at] = time;
  }
  return times;
}

/** `dt_ns`: the nanoseconds of one step, at most 2⁶³ − 1. */
export function stepNs(rate: number): bigint {
  const time = nsPerSecond / rate;
  return time >= 2 ** 63 ? largest : BigInt(halfToEven(time));
}

function tooLate(found: number | bigint): ShardError {
  return new ShardError("bad_value", "a time does not fit into 64 bits", { rule: "W-TIM-1", found: String(found) });
}
