// Reads what a comparison shows: metrics of a selection, and differences between two episodes.

import type { EpisodeModel, Subject } from "../model/episode";
import type { ChannelFacts } from "../model/facts";
import type { Range, ReadOptions, Reads } from "../model/reads";
import { uncertaintiesOf } from "../model/uncertainty";
import { pairSteps } from "../plot-data/alignment";
import { stepClock } from "../plot-data/clocks";
import { columns, type Reduced } from "../plot-data/columns";
import { type Metrics, metrics } from "../plot-data/metrics";
import { Pyramid } from "../plot-data/pyramid";
import { type Numbers, samplesOf } from "../plot-data/samples";
import { type Alignment, clockOn } from "./alignment";
import { joinMetrics, noMetrics } from "./metrics";

/** Values that are read at once for a table, and all values for the difference in one view. */
const piece = 1 << 17;
const mostDifferences = 1 << 20;

export interface Measured {
  readonly dimensions: readonly Metrics[];
  readonly all: Metrics;
  /** Which share of the steps was read so far. */
  readonly share: number;
}

/** Told what is known so far, a few times a second. */
export type Tell = (measured: Measured) => void;

interface Piece {
  readonly values: Numbers;
  readonly first: number;
}

async function read(
  reads: Reads,
  channel: ChannelFacts,
  from: number,
  to: number,
  options: ReadOptions,
): Promise<Piece> {
  const first = Math.max(0, Math.min(from, channel.length));
  const end = Math.max(first, Math.min(to, channel.length));
  const window = first < end ? await reads.window(channel.key, first, end, options) : null;
  return { values: window?.kind === "dense" ? (window.values as Numbers) : new Float64Array(0), first };
}

function stepsIn({ start, end }: Range, length: number): [number, number] {
  const clamp = (position: number) => Math.max(0, Math.min(length, Math.ceil(position)));
  return [clamp(start), clamp(end)];
}

/** How far the prediction of a model is from the truth. */
export async function measureModel(
  { reads }: EpisodeModel,
  subject: Subject,
  prediction: ChannelFacts,
  range: Range,
  options: ReadOptions,
  tell: Tell,
): Promise<Measured> {
  const { channel } = subject;
  const known = uncertaintiesOf(subject, prediction);
  const std = known.find((one) => one.kind === "std");
  const band = known.find((one) => one.kind === "band");
  return measure(channel, range, prediction.length, options, tell, async (from, to) => {
    const sources = [channel, prediction, std?.channel, band?.lower, band?.upper];
    const [truth, mean, deviation, lower, upper] = await Promise.all(
      sources.map((one) => one && read(reads, one, from, to, options)),
    );
    return (dimension) => {
      // Of steps with a horizon, the first value is about the step itself.
      const of = ({ values, first }: Piece, width = prediction.dimensions) =>
        samplesOf(values, { width, dimension, first });
      const given = {
        mean: of(mean as Piece),
        std: deviation && of(std?.isVariance ? { ...deviation, values: roots(deviation.values) } : deviation),
        edges: lower && upper && ([of(lower), of(upper)] as const),
      };
      return metrics(of(truth as Piece, channel.dimensions), given, from, to);
    };
  });
}

function roots(values: Numbers): Numbers {
  return Float64Array.from(values as Float64Array, (one) => Math.sqrt(Number(one)));
}

/** How far a channel of the second episode is from that of the first. */
export async function measureEpisodes(
  a: EpisodeModel,
  b: EpisodeModel,
  [channelA, channelB]: readonly [ChannelFacts, ChannelFacts],
  alignment: Alignment,
  range: Range,
  options: ReadOptions,
  tell: Tell,
): Promise<Measured> {
  return measure(channelA, range, channelA.length, options, tell, async (from, to) => {
    const found = await readPaired(a, b, [channelA, channelB], alignment, from, to, options);
    return (dimension) => {
      const width = channelA.dimensions;
      const truth = samplesOf(found.a.values, { width, dimension, first: found.a.first });
      const mean = samplesOf(found.b.values, { width, dimension, first: found.b.first });
      return metrics(truth, { mean }, from, to, found.pairs);
    };
  });
}

async function measure(
  { dimensions, length }: ChannelFacts,
  range: Range,
  other: number,
  { signal }: ReadOptions,
  tell: Tell,
  read: (from: number, to: number) => Promise<(dimension: number) => Metrics>,
): Promise<Measured> {
  const [from, to] = stepsIn(range, Math.min(length, other));
  const found: Metrics[] = Array.from({ length: dimensions }, () => noMetrics);
  const known = (end: number): Measured => ({
    dimensions: [...found],
    all: found.reduce(joinMetrics, noMetrics),
    share: to > from ? (end - from) / (to - from) : 1,
  });
  const steps = Math.max(1, Math.floor(piece / Math.max(1, dimensions)));
  let [rested, told] = [performance.now(), performance.now()];
  for (let start = from; start < to; start += steps) {
    const end = Math.min(to, start + steps);
    const of = await read(start, end);
    for (let dimension = 0; dimension < dimensions; dimension++) {
      // The page answers in between.
      if (performance.now() - rested > 20) {
        await new Promise((done) => setTimeout(done));
        rested = performance.now();
      }
      found[dimension] = joinMetrics(found[dimension] as Metrics, of(dimension));
    }
    signal?.throwIfAborted();
    if (performance.now() - told > 400) {
      tell(known(end));
      told = performance.now();
    }
  }
  return known(to);
}

/** Both channels around some steps of the first, and which steps belong together. */
async function readPaired(
  a: EpisodeModel,
  b: EpisodeModel,
  [channelA, channelB]: readonly [ChannelFacts, ChannelFacts],
  alignment: Alignment,
  from: number,
  to: number,
  options: ReadOptions,
) {
  const pairs = pairSteps(stepClock(channelA.length), clockOn(alignment, channelB.length), 0, from, to);
  // Each step has one partner at most half a step away, of whichever episode has the longer steps.
  const reach = Math.max(1, alignment.toA(1) - alignment.toA(0)) / 2 + 1e-6;
  for (let at = 0; at < pairs.length; at++) {
    const step = pairs[at] as number;
    if (step >= 0 && Math.abs(alignment.toA(step) - (from + at)) > reach) pairs[at] = -1;
  }
  let [low, high] = [Number.POSITIVE_INFINITY, 0];
  for (const step of pairs) {
    if (step < 0) continue;
    low = Math.min(low, step);
    high = Math.max(high, step + 1);
  }
  const [first, second] = await Promise.all([
    read(a.reads, channelA, from, to, options),
    read(b.reads, channelB, Math.min(low, high), high, options),
  ]);
  return { a: first, b: second, pairs };
}

/** B − A in a view, dimension by dimension; null if the view has too many values. */
export async function differences(
  a: EpisodeModel,
  b: EpisodeModel,
  channels: readonly [ChannelFacts, ChannelFacts],
  alignment: Alignment,
  dims: readonly number[],
  range: Range,
  width: number,
  options: ReadOptions,
): Promise<readonly Reduced[] | null> {
  const [channelA] = channels;
  const [first, last] = stepsIn(range, channelA.length);
  const [from, to] = [Math.max(0, first - 1), Math.min(channelA.length, last + 1)];
  const size = channelA.dimensions;
  if ((to - from) * size > mostDifferences) return null;
  const found = await readPaired(a, b, channels, alignment, from, to, options);
  return dims.map((dimension) => {
    const values = new Float64Array(to - from).fill(Number.NaN);
    for (let at = 0; at < values.length; at++) {
      const step = found.pairs[at] as number;
      if (step < 0) continue;
      const other = found.b.values[(step - found.b.first) * size + dimension];
      const own = found.a.values[at * size + dimension];
      if (other !== undefined && own !== undefined) values[at] = Number(other) - Number(own);
    }
    const samples = samplesOf(values, { first: from });
    return columns({ pyramid: Pyramid.of(samples), samples }, stepClock(to), {
      from: range.start,
      to: range.end,
      width: Math.max(1, Math.round(width)),
    });
  });
}

/** Columns of the second episode at their places on the axis of the first. */
export function moved(line: Reduced, alignment: Alignment): Reduced {
  return { ...line, x: line.x.map((position) => alignment.toA(position)) };
}
