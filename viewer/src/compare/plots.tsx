// The lines of a comparison, one plot for each dimension, and below each how far they are apart.

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { errorKey } from "../model/derived";
import type { EpisodeModel, Subject } from "../model/episode";
import type { ChannelFacts } from "../model/facts";
import { useAnswer, useSlowly } from "../model/hooks";
import { gutter } from "../panels/panel";
import { extentOf } from "../panels/series";
import { dimensionNames } from "../panels/series/parts";
import { Plot, type PlotBand, type PlotLine } from "../panels/series/plot";
import type { Reduced } from "../plot-data/columns";
import type { View } from "../state/view";
import { colour, theme } from "../ui/colours";
import { shown } from "../ui/escape";
import { value as numberText } from "../ui/format";
import type { Alignment } from "./alignment";
import { differences, moved } from "./reading";
import { words } from "./words";

const plotHeight = 104;
const stripHeight = 56;
/** Dimensions that are shown; the keys 1 to 9 choose one. */
const mostPlots = 6;

function dimsOf({ dimensions }: ChannelFacts, view: View): number[] {
  const only = view.dimension.value;
  if (only !== null && only < dimensions) return [only];
  return Array.from({ length: Math.min(dimensions, mostPlots) }, (_, dimension) => dimension);
}

interface Lines {
  readonly dims: readonly number[];
  readonly truth: readonly Reduced[];
  readonly a: readonly Reduced[];
  readonly b: readonly Reduced[];
  readonly errorA: readonly Reduced[];
  readonly errorB: readonly Reduced[];
}

interface ModelProps {
  readonly episode: EpisodeModel;
  readonly subject: Subject;
  readonly models: readonly [ChannelFacts, ChannelFacts];
  readonly view: View;
  readonly width: number;
}

export function ModelPlots({ episode, subject, models: [a, b], view, width }: ModelProps): JSX.Element {
  const { channel } = subject;
  const { reads } = episode;
  const dims = dimsOf(channel, view);
  const range = view.range.value;
  const wide = Math.max(1, width - gutter.left - gutter.right);
  const keys = [channel.key, a.key, b.key, errorKey(a.key, channel.key), errorKey(b.key, channel.key)];
  const arrived = useSlowly(keys.reduce((sum, key) => sum + reads.arrived(key).value, 0));
  const { value, error } = useAnswer<Lines>(
    async (options) => {
      const found = await Promise.all(keys.map((key) => reads.columns(key, dims, range, wide, options)));
      const [truth = [], first = [], second = [], errorA = [], errorB = []] = found.map(({ lines }) => lines);
      return { dims, truth, a: first, b: second, errorA, errorB };
    },
    [reads, ...keys, dims.join(), range.start, range.end, wide, arrived],
  );
  const shownTheme = theme.value;
  const ink = useMemo(() => inks(), [shownTheme]);
  if (error) return <p class="nothing bad">{shown(error.message)}</p>;
  if (value === undefined || width === 0) return <p class="nothing">{words.reading}</p>;
  const [nameA, nameB] = [shown(a.model), shown(b.model)];
  return (
    <>
      {value.dims.map((dimension, at) => (
        <Pair
          key={dimension}
          name={nameOf(channel, dimension)}
          view={view}
          width={width}
          lines={[
            line(value.truth[at], ink.truth, false, words.recorded),
            line(value.a[at], ink.a, false, nameA),
            line(value.b[at], ink.b, true, nameB),
          ].flat()}
          strip={[line(value.errorA[at], ink.a), line(value.errorB[at], ink.b, true)].flat()}
          stripName={words.error}
        />
      ))}
    </>
  );
}

interface EpisodeProps {
  readonly a: EpisodeModel;
  readonly b: EpisodeModel;
  readonly subject: Subject;
  readonly other: Subject;
  readonly alignment: Alignment;
  readonly view: View;
  readonly width: number;
}

export function EpisodePlots({ a, b, subject, other, alignment, view, width }: EpisodeProps): JSX.Element {
  const { channel } = subject;
  const dims = dimsOf(channel, view);
  const range = view.range.value;
  const wide = Math.max(1, width - gutter.left - gutter.right);
  const arrived = useSlowly(a.reads.arrived(channel.key).value + b.reads.arrived(other.channel.key).value);
  const { value, error } = useAnswer(
    async (options) => {
      const otherRange = { start: alignment.toB(range.start), end: alignment.toB(range.end) };
      const otherDims = dims.filter((dimension) => dimension < other.channel.dimensions);
      const hasSameShape = channel.dimensions === other.channel.dimensions;
      const [first, second, difference] = await Promise.all([
        a.reads.columns(channel.key, dims, range, wide, options),
        b.reads.columns(other.channel.key, otherDims, otherRange, wide, options),
        hasSameShape
          ? differences(a, b, [channel, other.channel], alignment, dims, range, wide, options)
          : ("none" as const),
      ]);
      return { dims, a: first.lines, b: second.lines.map((one) => moved(one, alignment)), difference };
    },
    [a, b, channel.key, dims.join(), range.start, range.end, wide, alignment, arrived],
  );
  const shownTheme = theme.value;
  const ink = useMemo(() => inks(), [shownTheme]);
  if (error) return <p class="nothing bad">{shown(error.message)}</p>;
  if (value === undefined || width === 0) return <p class="nothing">{words.reading}</p>;
  const { difference } = value;
  return (
    <>
      {difference === null && <p class="nothing">{words.zoomIn}</p>}
      {value.dims.map((dimension, at) => (
        <Pair
          key={dimension}
          name={nameOf(channel, dimension)}
          view={view}
          width={width}
          lines={[line(value.a[at], ink.a), line(value.b[at], ink.b, true)].flat()}
          strip={difference === null || difference === "none" ? [] : line(difference[at], ink.difference)}
          stripName={words.difference(shown(a.facts.id), shown(b.facts.id))}
        />
      ))}
    </>
  );
}

interface PairProps {
  readonly name: string;
  readonly view: View;
  readonly width: number;
  readonly lines: readonly PlotLine[];
  readonly strip: readonly PlotLine[];
  readonly stripName: string;
}

const noBands: readonly PlotBand[] = [];

function Pair({ name, view, width, lines, strip, stripName }: PairProps): JSX.Element {
  const shared = { view, width, bands: noBands };
  const [low, high] = extentOf(strip.map((one) => one.line));
  const far = Math.max(Math.abs(low), Math.abs(high));
  return (
    <section class="compare-pair" aria-label={name}>
      <h3>{name}</h3>
      <Plot {...shared} lines={lines} y={extentOf(lines.map((one) => one.line))} height={plotHeight} label={name} />
      {strip.length > 0 && view.error.value && (
        <>
          <p class="compare-strip">{words.upTo(stripName, numberText(Number(far.toPrecision(2))))}</p>
          <Plot {...shared} lines={strip} y={[-far, far]} height={stripHeight} label={`${name}: ${stripName}`} />
        </>
      )}
    </section>
  );
}

function inks() {
  return {
    truth: colour("--text-faint"),
    a: colour("--series-0"),
    b: colour("--series-1"),
    difference: colour("--series-7"),
  };
}

function line(found: Reduced | undefined, stroke: string, isDashed = false, name = ""): PlotLine[] {
  return found === undefined ? [] : [{ line: found, colour: stroke, isDashed, name }];
}

function nameOf(channel: ChannelFacts, dimension: number): string {
  const unit = channel.unit === "" ? "" : ` (${shown(channel.unit)})`;
  if (channel.dimensions === 1) return shown(channel.id) + unit;
  return `${shown(channel.id)}[${shown(dimensionNames(channel)[dimension] ?? String(dimension))}]${unit}`;
}
