// Two episodes, or two channels with clocks of their own, laid over each other.

import { type Clock, nearest, usualGap } from "./clocks";

/** A labelled range of time of an episode, on its x axis. */
export interface Span {
  readonly from: number;
  readonly to: number;
  readonly text: string;
}

/**
 * How far to move the second episode so that the spans with this text begin together, the `number`th of each;
 * undefined if one of them has no such span. Alignment by step or by time is a shift of 0 on that clock, and an offset
 * that the user drags is a shift itself.
 */
export function labelShift(a: readonly Span[], b: readonly Span[], text: string, number = 0): number | undefined {
  const starts = [a, b].map((spans) => spans.filter((span) => span.text === text).map((span) => span.from));
  const [first, second] = starts.map((found) => found.sort((x, y) => x - y)[number]);
  return first === undefined || second === undefined ? undefined : first - second;
}

/** The texts of the spans that both episodes have, in the order of the first one. */
export function commonLabels(a: readonly Span[], b: readonly Span[]): string[] {
  const others = new Set(b.map((span) => span.text));
  return [...new Set(a.map((span) => span.text))].filter((text) => others.has(text));
}

/**
 * For each step of `a` from `from` to `to`, the nearest step of `b` moved by `shift`; −1 where `b` has no sample within
 * its usual distance of samples, so that nothing is compared across a hole.
 */
export function pairSteps(a: Clock, b: Clock, shift: number, from = 0, to = a.length): Int32Array {
  const reach = usualGap(b);
  const pairs = new Int32Array(Math.max(0, to - from)).fill(-1);
  for (let i = 0; i < pairs.length; i++) {
    const x = a.at(from + i) - shift;
    const step = nearest(b, x);
    if (step >= 0 && Math.abs(b.at(step) - x) <= reach) pairs[i] = step;
  }
  return pairs;
}
