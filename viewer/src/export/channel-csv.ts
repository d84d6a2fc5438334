// One channel of the selection as CSV: step, time, truth, prediction, and the edges of its band, at full resolution.

import type { EpisodeModel, Subject } from "../model/episode";
import type { ChannelFacts } from "../model/facts";
import type { Range, Reads } from "../model/reads";
import { uncertaintiesOf } from "../model/uncertainty";
import { comparable, dimensionNames } from "../panels/series/parts";
import type { Numbers } from "../plot-data/samples";
import { type Column, headLine, lines, numberCell, secondsCell, textCell } from "./csv";

/** Values that are read and written at once. */
const piece = 1 << 17;

export interface CsvOptions {
  /** Half the width of the band, in standard deviations. */
  readonly k: number;
  /** Told after each piece: which share is done. */
  readonly progress?: (share: number) => void;
  readonly signal?: AbortSignal;
}

/** The table as pieces of text. */
export async function channelCsv(
  episode: EpisodeModel,
  subject: Subject,
  range: Range,
  { k, progress, signal }: CsvOptions,
): Promise<string[]> {
  const { reads } = episode;
  const { channel } = subject;
  const options = signal ? { signal } : {};
  const [start, end] = await entriesIn(reads, channel, range, options);
  const models = channel.layout === "dense" ? comparable(subject) : [];
  const step = Math.max(1, Math.floor(piece / Math.max(1, channel.dimensions * (1 + 2 * models.length))));
  const parts: string[] = [];
  for (let from = start; from < end || from === start; from += step) {
    const to = Math.min(end, from + step);
    signal?.throwIfAborted();
    const columns = [
      ...(await timeColumns(episode, channel, from, to, options)),
      ...(channel.layout === "text"
        ? await textColumns(reads, channel, from, to, options)
        : await valueColumns(reads, subject, models, from, to, k, options)),
    ];
    if (parts.length === 0) parts.push(headLine(columns));
    parts.push(lines(columns, Math.max(0, to - from)));
    progress?.((to - start) / Math.max(1, end - start));
    if (to >= end) break;
  }
  return parts;
}

type Options = { signal?: AbortSignal };

/** The entries of a channel that are in a range: from its start up to its end. */
async function entriesIn(
  reads: Reads,
  channel: ChannelFacts,
  { start, end }: Range,
  options: Options,
): Promise<[number, number]> {
  if (!channel.hasOwnClock) {
    const clamp = (step: number) => Math.max(0, Math.min(channel.length, Math.ceil(step)));
    return [clamp(start), clamp(end)];
  }
  const before = (position: number) => reads.entryAt(channel.key, position - 1e-9, options);
  const [first, last] = await Promise.all([before(start), before(end)]);
  return [first + 1, last + 1];
}

async function timeColumns(
  { reads, facts }: EpisodeModel,
  channel: ChannelFacts,
  from: number,
  to: number,
  options: Options,
): Promise<Column[]> {
  const positions = channel.hasOwnClock ? await reads.positions(channel.key, from, to, options) : null;
  const at = (row: number) => positions?.[row] ?? from + row;
  const columns: Column[] = [{ title: "step", cell: (row) => numberCell(at(row)) }];
  if (facts.rate === null && !facts.hasTimestamps) return columns;
  const epoch = BigInt(facts.epochNs);
  const first = Math.max(0, Math.floor(at(0)));
  const times = to > from ? await reads.times(first, Math.floor(at(to - from - 1)) + 2, options) : null;
  const time = (row: number): string => {
    const position = at(row);
    const step = Math.floor(position);
    const known = times?.[step - first];
    const next = times?.[step - first + 1];
    if (known !== undefined && position === step) return secondsCell(known - epoch);
    // Between two steps, and after the last one of a regular clock.
    if (known !== undefined && next !== undefined) {
      return secondsCell(known - epoch + BigInt(Math.round((position - step) * Number(next - known))));
    }
    return facts.rate !== null && !facts.hasTimestamps ? numberCell(position / facts.rate) : "";
  };
  return [...columns, { title: "time_s", cell: time }];
}

async function textColumns(
  reads: Reads,
  channel: ChannelFacts,
  from: number,
  to: number,
  options: Options,
): Promise<Column[]> {
  const window = from < to ? await reads.window(channel.key, from, to, options) : null;
  const texts = window?.kind === "text" ? window.texts : [];
  return [{ title: channel.id, cell: (row) => textCell(texts[row] ?? "") }];
}

async function valueColumns(
  reads: Reads,
  subject: Subject,
  models: readonly ChannelFacts[],
  from: number,
  to: number,
  k: number,
  options: Options,
): Promise<Column[]> {
  const { channel } = subject;
  const read = async (key: string, length: number): Promise<Numbers> => {
    const end = Math.min(to, length);
    const window = from < end ? await reads.window(key, from, end, options) : null;
    return window?.kind === "dense" ? (window.values as Numbers) : new Float64Array(0);
  };
  const truth = await read(channel.key, channel.length);
  const names = dimensionNames(channel);
  const columns: Column[] = [];
  const { dimensions } = channel;
  const cells = (values: Numbers, width: number, dimension: number) => {
    const isFloat = values instanceof Float32Array;
    return (row: number) => {
      const value = values[row * width + dimension];
      return value === undefined ? "" : numberCell(value, isFloat);
    };
  };
  for (let dimension = 0; dimension < dimensions; dimension++) {
    const title = dimensions === 1 ? channel.id : `${channel.id}[${names[dimension]}]`;
    columns.push({ title, cell: cells(truth, dimensions, dimension) });
  }
  for (const model of models) {
    const spread = uncertaintiesOf(subject, model).find(({ kind }) => kind !== "line");
    const mean = await read(model.key, model.length);
    const ofBand = spread?.kind === "band" ? [spread.lower, spread.upper] : null;
    const sources = spread?.kind === "std" ? [spread.channel] : (ofBand ?? []);
    const [first, second] = await Promise.all(sources.map(({ key, length }) => read(key, length)));
    const isVariance = spread?.kind === "std" && spread.isVariance;
    for (let dimension = 0; dimension < dimensions; dimension++) {
      const name = `${dimensions === 1 ? channel.id : `${channel.id}[${names[dimension]}]`} ${model.model || "prediction"}`;
      // Of steps with a horizon, the first value is about the step itself.
      columns.push({ title: name, cell: cells(mean, model.dimensions, dimension) });
      if (first === undefined) continue;
      const edge = (sign: number) => (row: number) => {
        const at = row * model.dimensions + dimension;
        const [middle, wide] = [mean[at], first[at]];
        if (middle === undefined || wide === undefined) return "";
        const deviation = isVariance ? Math.sqrt(Number(wide)) : Number(wide);
        return numberCell(Number(middle) + sign * k * deviation, false);
      };
      const stored = second && [first, second].map((values) => cells(values, model.dimensions, dimension));
      const [lower, upper] = stored ?? [edge(-1), edge(1)];
      columns.push({ title: `${name} lower`, cell: lower }, { title: `${name} upper`, cell: upper });
    }
  }
  return columns;
}
