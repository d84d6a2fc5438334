// What a panel of lines asks for: truth, predictions, edges of bands and errors, dimension by dimension.

import type { JsonObject } from "@shard-format/core";
import { derivedKey, errorKey } from "../../model/derived";
import type { Subject } from "../../model/episode";
import type { ChannelFacts } from "../../model/facts";

/** The most dimensions in one plot; further dimensions get plots of their own. */
export const dimsPerPlot = 4;
export const mostPlots = 4;

export interface Settings {
  /** The model whose prediction is shown; empty: the first. */
  readonly model: string;
  /** Half the width of the band in standard deviations; 0: none. */
  readonly k: 0 | 1 | 2 | 3;
  readonly y: "auto" | "fixed" | "linked";
  /** The extent of a fixed axis. */
  readonly fixed: readonly [number, number] | null;
}

export function readSettings(settings: JsonObject): Settings {
  const { model, k, y, fixed } = settings;
  const isExtent = Array.isArray(fixed) && fixed.length === 2 && fixed.every((one) => typeof one === "number");
  return {
    model: typeof model === "string" ? model : "",
    k: k === 0 || k === 1 || k === 2 || k === 3 ? k : 1,
    y: y === "fixed" || y === "linked" ? y : "auto",
    fixed: isExtent ? (fixed as [number, number]) : null,
  };
}

/** Predictions that can stand in the plot of the truth: the same values on the same clock. */
export function comparable({ channel, predictions }: Subject): readonly ChannelFacts[] {
  return predictions.filter(
    (one) =>
      one.layout === "dense" &&
      one.problem === null &&
      one.hasOwnClock === channel.hasOwnClock &&
      (!channel.hasOwnClock || one.length === channel.length) &&
      (one.dimensions === channel.dimensions || one.dimensions === channel.dimensions * (one.horizon ?? 0)),
  );
}

export interface Parts {
  readonly prediction: ChannelFacts | null;
  /** The standard deviation or the variance of the prediction. */
  readonly spread: ChannelFacts | null;
  /** Keys to read; null where there is nothing to read. */
  readonly upper: string | null;
  readonly lower: string | null;
  readonly error: string | null;
}

export function partsOf(subject: Subject, { model, k }: Settings): Parts {
  const { channel, uncertainties } = subject;
  const all = comparable(subject);
  const prediction = all.find((one) => one.model === model) ?? all[0] ?? null;
  const none = { prediction, spread: null, upper: null, lower: null };
  if (prediction === null) return { ...none, error: null };
  const error = channel.hasOwnClock ? null : errorKey(prediction.key, channel.key);
  const spread = uncertainties.find(
    (one) =>
      (one.model === prediction.model || one.model === "") &&
      /^(std|stddev|sigma|variance|var)$/.test(one.type) &&
      one.layout === "dense" &&
      one.problem === null &&
      one.dimensions === prediction.dimensions &&
      !one.hasOwnClock,
  );
  if (spread === undefined || k === 0 || prediction.horizon !== null) return { ...none, spread: spread ?? null, error };
  const isVariance = spread.type.startsWith("var");
  const edge = (times: number) => derivedKey({ a: prediction.key, b: spread.key, times, isVariance });
  return { prediction, spread, upper: edge(k), lower: edge(-k), error };
}

/** Groups of dimensions, one for each plot. */
export function groupsOf(dimensions: number, only: number | null): number[][] {
  if (only !== null && only < dimensions) return [[only]];
  const groups: number[][] = [];
  for (let first = 0; first < dimensions && groups.length < mostPlots; first += dimsPerPlot) {
    groups.push(Array.from({ length: Math.min(dimsPerPlot, dimensions - first) }, (_, at) => first + at));
  }
  return groups;
}

/** Names of dimensions, where the description has them. */
export function dimensionNames({ row, dimensions }: ChannelFacts): readonly string[] {
  const { names } = row;
  const isList = Array.isArray(names) && names.length === dimensions && names.every((one) => typeof one === "string");
  return isList ? (names as string[]) : Array.from({ length: dimensions }, (_, at) => String(at));
}
