// What a drawing shows as a table: for people who do not see it, and for those who want the numbers. The frame of the
// panel has the button; a panel only says which lines or which values it draws.

import type { TypedArray } from "@shard-format/core";
import { entriesOf } from "../model/entries";
import type { EpisodeModel, Subject } from "../model/episode";
import type { ChannelFacts } from "../model/facts";
import type { ReadOptions } from "../model/reads";
import type { Reduced } from "../plot-data/columns";
import { Extent, MINUS, MISSING, PLUS, UNREAD } from "../plot-data/extent";
import type { Numbers } from "../plot-data/samples";
import { summarize } from "../plot-data/summary";
import { shown } from "../ui/escape";
import * as format from "../ui/format";
import { words } from "../words";
import type { PanelProps } from "./panel";
import { dimensionNames } from "./series/parts";

export type TableQuestion = Pick<PanelProps, "episode" | "subject" | "view" | "settings">;

export interface Table {
  /** What the rows are, and what is left out. */
  readonly about: string;
  readonly columns: readonly string[];
  readonly rows: readonly TableRow[];
}

export interface TableRow {
  /** The place on the axis that the row is about; null: the cursor. */
  readonly position: number | null;
  /** As many as there are columns; the first names the row. */
  readonly cells: readonly string[];
}

export type MakeTable = (question: TableQuestion, options: ReadOptions) => Promise<Table>;

/** Below this many entries in view, each has a row; otherwise half as many rows have the least and the largest of several. */
const mostRows = 100;
const mostColumns = 40;

/** A line of a drawing over time, with all dimensions. */
export interface TableLine {
  readonly name: string;
  readonly key: string;
}

/** The lines in the visible range. */
export function overTime(linesOf: (question: TableQuestion) => readonly TableLine[]): MakeTable {
  return async (question, options) => {
    const { episode, subject, view } = question;
    const lines = linesOf(question);
    const range = view.range.peek();
    const { dimensions } = subject.channel;
    const focused = view.dimension.peek();
    const most = Math.max(1, Math.floor(mostColumns / Math.max(1, lines.length)));
    const dims =
      focused !== null && focused < dimensions
        ? [focused]
        : Array.from({ length: Math.min(dimensions, most) }, (_, dim) => dim);
    const found = await Promise.all(
      lines.map(({ key }) => episode.reads.columns(key, dims, range, mostRows / 2, options)),
    );
    const names = dimensionNames(subject.channel);
    const all = dims.flatMap((dim, at) =>
      lines.map(({ name }, number) => ({
        title: dimensions === 1 ? name : `${shown(names[dim] ?? String(dim))} ${name}`.trim(),
        line: found[number]?.lines[at],
      })),
    );
    const first = found[0]?.lines[0];
    const [places, isExact] = first === undefined ? [[], true] : placesOf(first, range);
    const seconds = await secondsOf(episode, subject, places, isExact, options);
    const is64 = /64|[iu]32/.test(subject.channel.dtype);
    const text = isExact ? (value: number) => exact(value, is64) : format.value;
    const { numbers } = words;
    return {
      about: [
        isExact ? numbers.exact : numbers.reduced(format.count(places.length)),
        ...(dims.length < dimensions && focused === null ? [numbers.dimensions(dims.length, dimensions)] : []),
      ].join(" "),
      columns: [numbers.step, ...(seconds === null ? [] : [numbers.time]), ...all.map(({ title }) => title)],
      rows: places.map((place, at) => ({
        position: place[0],
        cells: [
          isExact
            ? format.value(place[0])
            : numbers.between(format.count(Math.ceil(place[0])), format.count(Math.ceil(place[1]) - 1)),
          ...(seconds === null ? [] : [seconds[at] === undefined ? "" : format.duration(seconds[at])]),
          ...all.map(({ line }) => (line === undefined ? "" : cell(line, place, text))),
        ],
      })),
    };
  };
}

/** The values of the channel alone. */
export const values = overTime(({ subject: { channel } }) => [
  { name: channel.dimensions === 1 ? words.numbers.value : "", key: channel.key },
]);

type Place = readonly [from: number, to: number];

/** The parts of the axis that the rows are about: entries, or columns that have some. */
function placesOf(
  { original, x, counts }: Reduced,
  { start, end }: { start: number; end: number },
): [Place[], boolean] {
  const width = (end - start) / x.length;
  const places = Array.from(x, (at, i): Place => {
    return original ? [at, x[i + 1] ?? at + 1] : [start + i * width, start + (i + 1) * width];
  });
  return [
    places.filter(([from, to], i) => (counts[i] ?? 0) > 0 && from >= start && from < Math.min(to, end)),
    original,
  ];
}

/** What a line is between two positions: a value, or the least and the largest. */
function cell({ x, min, max, flags, counts }: Reduced, [from, to]: Place, text: (value: number) => string): string {
  const found = new Extent();
  let count = 0;
  for (let i = 0; i < x.length; i++) {
    if ((x[i] as number) < from || (x[i] as number) >= to) continue;
    found.merge(min[i] as number, max[i] as number, flags[i] as number);
    count += counts[i] as number;
  }
  if (count === 0) return "";
  const [low, high] = [text(found.min), text(found.max)];
  const others = [
    [MINUS, "−∞"],
    [PLUS, "+∞"],
    [MISSING, "NaN"],
    [UNREAD, "…"],
  ] as const;
  return [
    ...(Number.isNaN(found.min) ? [] : [low === high ? low : words.numbers.between(low, high)]),
    ...others.flatMap(([flag, name]) => (found.flags & flag ? [name] : [])),
  ].join(", ");
}

/** The shortest text that is this value, of 32 bits or of 64. */
function exact(value: number, is64: boolean): string {
  const same = is64 ? (one: number) => one === value : (one: number) => Math.fround(one) === Math.fround(value);
  const digits = [5, 6, 7, 8, 9].find((one) => same(Number(value.toPrecision(one))));
  return String(digits === undefined ? value : Number(value.toPrecision(digits)));
}

/** Seconds since the episode began, where they are known. */
async function secondsOf(
  episode: EpisodeModel,
  { channel }: Subject,
  places: readonly Place[],
  isExact: boolean,
  options: ReadOptions,
): Promise<readonly number[] | null> {
  const { reads, facts } = episode;
  if (episode.seconds(0) !== null) return places.map(([from]) => episode.seconds(from) as number);
  const [[first] = [0]] = places;
  const times = isExact && !channel.hasOwnClock ? await reads.times(first, first + places.length, options) : null;
  return times && Array.from(times, (time) => Number(time - BigInt(facts.epochNs)) / 1e9);
}

/** What an entry consists of: x, y and z of points, or the colours of a picture. */
export interface TableParts {
  readonly names: readonly string[];
  /** Values a point or a pixel, if there are more than names. */
  readonly width?: number;
  /** Whether all values of one part stand together. */
  readonly isPlanar?: boolean;
}

/** What the values at the cursor are like, of the channel and of what was predicted. */
export function atCursor(partsOf: (channel: ChannelFacts) => TableParts): MakeTable {
  return async ({ episode, subject, view }, options) => {
    const { numbers } = words;
    const cursor = Math.floor(view.cursor.peek() + 1e-6);
    const rows: TableRow[] = [];
    const add = (who: string, channel: ChannelFacts, all: TypedArray) => {
      const { names, width = names.length, isPlanar = false } = partsOf(channel);
      const length = Math.floor(all.length / width);
      for (const [at, name] of names.entries()) {
        const place = isPlanar ? { offset: at * length, stride: 1 } : { offset: at, stride: width };
        const { min, max, mean, missing } = summarize({ ...place, values: all as Numbers, first: 0, length });
        rows.push({
          position: null,
          cells: [`${who} ${name}`, ...[min, mean, max].map(format.value), format.count(missing)],
        });
      }
    };
    let truth: TypedArray | undefined;
    for (const channel of [subject.channel, ...subject.predictions]) {
      const entry = await episode.reads.entryAt(channel.key, cursor, options);
      if (entry < 0 || channel.problem !== null) continue;
      const found = await entriesOf(episode).load(channel, entry);
      const isTruth = channel === subject.channel;
      add(isTruth ? numbers.recorded : numbers.predicted(shown(channel.model)), channel, found);
      if (truth?.length === found.length) {
        const recorded = truth;
        const error = Float64Array.from(found as Float64Array, (value, at) => Number(value) - Number(recorded[at]));
        add(numbers.error, channel, error);
      }
      if (isTruth) truth = found;
    }
    return {
      about: numbers.at(format.count(cursor)),
      columns: ["", numbers.least, numbers.mean, numbers.largest, numbers.missing],
      rows,
    };
  };
}
