// What a panel of lines asks for: truth, predictions, edges of bands and errors, dimension by dimension.

import type { JsonObject } from "@shard-format/core";
import { derivedKey, errorKey } from "../../model/derived";
import type { Subject } from "../../model/episode";
import type { ChannelFacts } from "../../model/facts";
import { type Uncertainty, uncertaintiesOf } from "../../model/uncertainty";

/** The most dimensions in one plot; further dimensions get plots of their own. */
export const dimsPerPlot = 4;
export const mostPlots = 4;

export interface Settings {
  /** The model whose prediction is shown; empty: the first with a band, or the first. */
  readonly model: string;
  /** The uncertainty: half the width of the band in standard deviations, or a name; "0": none; empty: the first. */
  readonly k: string;
  readonly y: "auto" | "fixed" | "linked";
  /** The extent of a fixed axis. */
  readonly fixed: readonly [number, number] | null;
}

export function readSettings(settings: JsonObject): Settings {
  const { model, k, y, fixed } = settings;
  const isExtent = Array.isArray(fixed) && fixed.length === 2 && fixed.every((one) => typeof one === "number");
  return {
    model: typeof model === "string" ? model : "",
    k: typeof k === "string" || typeof k === "number" ? String(k) : "",
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
  /** What can be shown of how sure the prediction is, and what of it is shown. */
  readonly uncertainties: readonly Uncertainty[];
  readonly uncertainty: Uncertainty | null;
  /** Half the width of the band in standard deviations. */
  readonly k: number;
  /** Keys to read; null where there is nothing to read. */
  readonly upper: string | null;
  readonly lower: string | null;
  readonly error: string | null;
  /** An uncertainty without a band: a line of its own. */
  readonly other: string | null;
}

export function partsOf(subject: Subject, { model, k: chosen }: Settings): Parts {
  const { channel } = subject;
  const all = comparable(subject);
  const hasBand = (one: ChannelFacts) => uncertaintiesOf(subject, one).some(({ kind }) => kind !== "line");
  const prediction = all.find((one) => one.model === model) ?? all.find(hasBand) ?? all[0] ?? null;
  const none = { upper: null, lower: null, other: null };
  if (prediction === null) return { ...none, prediction, uncertainties: [], uncertainty: null, k: 1, error: null };
  const error = channel.hasOwnClock ? null : errorKey(prediction.key, channel.key);
  const uncertainties = uncertaintiesOf(subject, prediction);
  const [first = null] = uncertainties;
  const named = uncertainties.find(({ name }) => name === chosen) ?? first;
  const uncertainty = chosen === "0" ? null : /^[123]$/.test(chosen) ? first : named;
  const k = Number(chosen) || 1;
  const parts = { ...none, prediction, uncertainties, uncertainty, k, error };
  if (uncertainty === null) return parts;
  if (uncertainty.kind === "line") return { ...parts, other: uncertainty.channel.key };
  if (uncertainty.kind === "band") return { ...parts, upper: uncertainty.upper.key, lower: uncertainty.lower.key };
  const { channel: spread, isVariance } = uncertainty;
  const edge = (times: number) => derivedKey({ a: prediction.key, b: spread.key, times, isVariance });
  return { ...parts, upper: edge(k), lower: edge(-k) };
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
