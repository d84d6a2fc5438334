import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Subject } from "../../model/episode";
import type { ChannelFacts } from "../../model/facts";
import { useAnswer, useSlowly } from "../../model/hooks";
import type { Columns } from "../../model/reads";
import { stepClock } from "../../plot-data/clocks";
import { columns, type Reduced, valueRange } from "../../plot-data/columns";
import { Pyramid } from "../../plot-data/pyramid";
import { samplesOf } from "../../plot-data/samples";
import { seriesColour, theme } from "../../ui/colours";
import { shown } from "../../ui/escape";
import * as format from "../../ui/format";
import { words as common } from "../../words";
import { findingsOf } from "../findings/found";
import { gutter, type Panel, type PanelProps } from "../panel";
import { overTime } from "../table";
import { comparable, dimensionNames, groupsOf, type Parts, partsOf, readSettings } from "./parts";
import { Plot, type PlotBand, type PlotLine } from "./plot";
import { Values } from "./values";
import { words } from "./words";
import "./series.css";

const plotHeight = 132;
const errorHeight = 64;
const legendHeight = 26;

export const series: Panel = {
  name: "series",
  title: words.title,
  isOverTime: true,
  fits({ channel }) {
    if (channel.layout !== "dense" || channel.lane === "extra" || channel.dimensions === 0) return 0;
    if (channel.dimensions <= 16 && channel.shape.length <= 1) return 5;
    return channel.dimensions <= 256 ? 2 : 0;
  },
  height(subject, settings) {
    const { error, other } = partsOf(subject, readSettings(settings));
    const plots = groupsOf(subject.channel.dimensions, null).length;
    return legendHeight + plots * plotHeight + stripsHeight(error, other);
  },
  component: Series,
  table: overTime(({ subject, settings }) => {
    const { prediction, upper, lower, error, other, uncertainty } = partsOf(subject, readSettings(settings));
    const { numbers } = common;
    const lines = [
      [numbers.recorded, subject.channel.key],
      [numbers.predicted(shown(prediction?.model ?? "")), prediction?.key],
      [numbers.lower, lower],
      [numbers.upper, upper],
      [numbers.error, error],
      [shown(uncertainty?.name ?? ""), other],
    ] as const;
    return lines.flatMap(([name, key]) => (key ? [{ name, key }] : []));
  }),
};

/** Strips below the plots, by the keys of what they show. */
function stripsHeight(...keys: readonly (string | null)[]): number {
  return errorHeight * keys.filter((key) => key !== null).length;
}

/** What is drawn of one moment: all lines of one range. */
interface Drawn {
  /** The dimensions of the lines. */
  readonly dims: readonly number[];
  readonly truth: Columns;
  readonly prediction: Columns | null;
  readonly upper: Columns | null;
  readonly lower: Columns | null;
  readonly error: Columns | null;
  readonly other: Columns | null;
}

function Series({ episode, subject, view, width, height, settings, change, report }: PanelProps) {
  const { channel } = subject;
  const chosen = readSettings(settings);
  const parts = useMemo(() => partsOf(subject, chosen), [subject, chosen.model, chosen.k]);
  const groups = groupsOf(channel.dimensions, view.dimension.value);
  const dims = groups.flat();
  const range = view.range.value;
  const wide = Math.max(1, width - gutter.left - gutter.right);
  const hasBand = view.band.value && parts.upper !== null;
  const hasError = view.error.value && parts.error !== null;
  const wanted = {
    truth: channel.key,
    prediction: parts.prediction?.key ?? null,
    upper: hasBand ? parts.upper : null,
    lower: hasBand ? parts.lower : null,
    error: hasError ? parts.error : null,
    other: view.band.value ? parts.other : null,
  };
  const counts = Object.values(wanted).map((key) => (key === null ? 0 : episode.reads.arrived(key).value));
  const arrived = useSlowly(counts.reduce((sum, count) => sum + count));
  const { value: drawn, error } = useAnswer<Drawn>(
    async (options) => {
      const ask = (key: string | null) =>
        key === null ? null : episode.reads.columns(key, dims, range, wide, options);
      const keys = [wanted.truth, wanted.prediction, wanted.upper, wanted.lower, wanted.error, wanted.other];
      const [truth, prediction, upper, lower, strip, other] = await Promise.all(keys.map(ask));
      return { dims, truth: truth as Columns, prediction, upper, lower, error: strip, other } as Drawn;
    },
    [episode, ...Object.values(wanted), dims.join(), range.start, range.end, wide, arrived],
  );
  const fan = useFan(episode, subject, view, hasBand ? parts : { ...parts, uncertainty: null });
  useEffect(() => {
    if (drawn !== undefined) findingsOf(episode).see(channel, drawn.truth);
    report(statusOf(subject, drawn, error, episode.facts.length, fan));
  }, [drawn, error, fan]);
  const shownTheme = theme.value;
  // Bands cost most where frames are slow: they are left out while the range moves.
  const slow = useSlowFrames(view.isMoving.value);
  const plots = useMemo(
    () => (drawn === undefined ? [] : groups.map((group) => plotOf(channel, group, drawn, fan))),
    [drawn, fan, dims.join(), shownTheme],
  );
  const strips = useMemo(() => {
    const of = drawn?.dims ?? [];
    const names = namesOf(channel, of);
    const linesOf = (found: Columns | null | undefined) =>
      found?.lines.map((line, at) => ({ line, colour: seriesColour(of[at] ?? 0), name: names[at] })) ?? [];
    const [errors, others] = [linesOf(drawn?.error), linesOf(drawn?.other)];
    return [
      { name: words.error, lines: errors, y: around(extentOf(errors.map(({ line }) => line))) },
      { name: shown(parts.uncertainty?.name ?? ""), lines: others, y: extentOf(others.map(({ line }) => line)) },
    ].filter(({ lines }) => lines.length > 0);
  }, [drawn, shownTheme]);
  const linked = chosen.y === "linked" ? wholeExtent(plots) : null;
  const fixed = chosen.y === "fixed" ? chosen.fixed : null;
  const each = Math.max(
    64,
    (height - legendHeight - stripsHeight(wanted.error, wanted.other)) / Math.max(1, groups.length),
  );
  const models = comparable(subject);
  return (
    <div class="series">
      <div class="series-legend" style={{ paddingLeft: `${gutter.left}px`, height: `${legendHeight}px` }}>
        <Values episode={episode} subject={subject} parts={parts} view={view} dims={dims} />
        <span class="panel-tools series-tools">
          {models.length > 1 && (
            <select
              aria-label={words.model}
              value={parts.prediction?.model}
              onChange={(event) => change({ ...settings, model: event.currentTarget.value })}
            >
              {models.map(({ model }) => (
                <option key={model} value={model}>
                  {shown(model)}
                </option>
              ))}
            </select>
          )}
          {parts.uncertainties.length > 0 && (
            <select
              aria-label={words.band}
              value={
                parts.uncertainty === null ? "0" : parts.uncertainty.kind === "std" ? parts.k : parts.uncertainty.name
              }
              onChange={({ currentTarget: { value } }) =>
                change({ ...settings, k: /^\d$/.test(value) ? Number(value) : value })
              }
            >
              {parts.uncertainties
                .flatMap(({ kind, name }, at) =>
                  kind !== "std"
                    ? [{ value: name, text: kind === "band" ? name : words.other(name) }]
                    : at > 0
                      ? []
                      : [1, 2, 3].map((k) => ({ value: String(k), text: words.bandOf(k) })),
                )
                .map(({ value, text }) => (
                  <option key={value} value={value}>
                    {shown(text)}
                  </option>
                ))}
              <option value="0">{words.noBand}</option>
            </select>
          )}
          <select
            aria-label={words.yAxis}
            value={chosen.y}
            onChange={(event) => {
              const y = event.currentTarget.value;
              const now = wholeExtent(plots);
              const { fixed: _, ...others } = settings;
              change(y === "fixed" ? { ...others, y, fixed: [...now] } : { ...others, y });
            }}
          >
            <option value="auto">{words.auto}</option>
            <option value="linked">{words.linked}</option>
            <option value="fixed">{words.fixed}</option>
          </select>
        </span>
      </div>
      {plots.map((plot, at) => (
        <Plot
          key={`${at} of ${groups.length}`}
          view={view}
          lines={plot.lines}
          bands={slow ? noBands : plot.bands}
          y={fixed ?? linked ?? extentOfPlot(plot)}
          width={width}
          height={each}
          label={`${shown(channel.id)} ${at + 1}`}
        />
      ))}
      {strips.map(({ name, lines, y }) => (
        <div key={name} class="error-strip">
          <span class="strip-name">{name}</span>
          <Plot
            view={view}
            lines={lines}
            bands={noBands}
            y={y}
            width={width}
            height={errorHeight}
            label={`${shown(channel.id)}: ${name}`}
          />
        </div>
      ))}
    </div>
  );
}

interface Drawing {
  readonly lines: readonly PlotLine[];
  readonly bands: readonly PlotBand[];
}

const noBands: readonly PlotBand[] = [];

function plotOf(channel: ChannelFacts, group: readonly number[], drawn: Drawn, fan: Fan | undefined): Drawing {
  const isStepped = !channel.dtype.includes("f");
  const bands: PlotBand[] = [];
  const names = namesOf(channel, group);
  const truths: PlotLine[] = [];
  const predictions: PlotLine[] = [];
  for (const [number, dim] of group.entries()) {
    const at = drawn.dims.indexOf(dim);
    const colour = seriesColour(dim);
    const [upper, lower] = [drawn.upper?.lines[at], drawn.lower?.lines[at]];
    if (upper !== undefined && lower !== undefined) bands.push({ upper, lower, colour });
    const truth = drawn.truth.lines[at];
    if (truth !== undefined) truths.push({ line: truth, colour, isStepped, name: names[number] });
    const prediction = drawn.prediction?.lines[at];
    if (prediction !== undefined) predictions.push({ line: prediction, colour, isDashed: true, isStepped });
    const { start, end } = drawn.truth.range;
    if (fan === undefined || fan.from > end || fan.from + fan.steps < start) continue;
    const [line, low, high] = fan.lines(dim);
    if (line !== undefined) predictions.push({ line, colour, isForecast: true, isStepped });
    if (low !== undefined && high !== undefined) bands.push({ upper: high, lower: low, colour });
  }
  return { lines: [...truths, ...predictions], bands };
}

/** What tells lines of one plot apart besides their colours. */
function namesOf(channel: ChannelFacts, group: readonly number[]): readonly (string | undefined)[] {
  const names = dimensionNames(channel);
  return group.length > 1 ? group.map((dim) => shown(names[dim] ?? "")) : [];
}

function linesIn({ lines, bands }: Drawing): Reduced[] {
  return [...lines.map(({ line }) => line), ...bands.flatMap(({ upper, lower }) => [upper, lower])];
}

function extentOfPlot(plot: Drawing): readonly [number, number] {
  return extentOf(linesIn(plot));
}

function wholeExtent(plots: readonly Drawing[]): readonly [number, number] {
  return extentOf(plots.flatMap(linesIn));
}

/** The extent of lines with room above and below. */
export function extentOf(lines: readonly Reduced[]): readonly [number, number] {
  const found = valueRange(lines);
  if (found === undefined) return [0, 1];
  const [low, high] = found;
  if (low === high) {
    const room = Math.abs(low) * 0.1 || 1;
    return [low - room, high + room];
  }
  const room = (high - low) * 0.06;
  return [low - room, high + room];
}

/** As far above zero as below. */
function around([low, high]: readonly [number, number]): readonly [number, number] {
  const far = Math.max(Math.abs(low), Math.abs(high));
  return [-far, far];
}

function statusOf(
  subject: Subject,
  drawn: Drawn | undefined,
  error: Error | undefined,
  length: number,
  fan: Fan | undefined,
) {
  const { channel } = subject;
  if (error !== undefined && drawn === undefined) return { problem: error.message };
  if (drawn === undefined) return { note: common.stage.reading };
  const { truth } = drawn;
  const name = shown(channel.id);
  const names = dimensionNames(channel);
  const range = [Math.max(0, truth.range.start), Math.min(length, truth.range.end)].map((one) =>
    format.count(Math.round(one)),
  );
  const parts = [words.summary(name, range[0] ?? "", range[1] ?? "")];
  for (const [at, line] of truth.lines.slice(0, 8).entries()) {
    const dim = drawn.dims[at] ?? 0;
    parts.push(extremes(channel.dimensions === 1 ? name : shown(names[dim] ?? ""), [line]) ?? words.nothing);
  }
  if (drawn.error) parts.push(extremes(words.error, drawn.error.lines) ?? "");
  if (fan !== undefined) parts.push(words.forecast(fan.steps, fan.from));
  const factor = Math.max(truth.factor, drawn.prediction?.factor ?? 1);
  return {
    reducedBy: factor,
    summary: parts.join(" "),
    ...(error !== undefined
      ? { note: error.message }
      : truth.read < 1
        ? { note: common.stage.readingPart(truth.read) }
        : truth.timesOff > 0
          ? { note: words.timesOff(format.value(Number(truth.timesOff.toPrecision(2)))) }
          : {}),
  };
}

/** The extremes of lines and where they are, in words; null if there is no finite value. */
function extremes(name: string, lines: readonly Reduced[]): string | null {
  const found = valueRange(lines);
  if (found === undefined) return null;
  const where = (value: number, side: "min" | "max") => {
    const line = lines.find((one) => one[side].includes(value));
    return format.count(Math.round(line?.x[line[side].indexOf(value)] ?? 0));
  };
  const [low, high] = found;
  return words.extremes(name, format.value(low), where(low, "min"), format.value(high), where(high, "max"));
}

/** What was predicted at one step about the steps after it, as lines of their own. */
interface Fan {
  readonly from: number;
  readonly steps: number;
  /** Of a dimension: the prediction, and the lower and the upper edge of its band if it has one. */
  readonly lines: (dim: number) => readonly Reduced[];
}

/** The forecast of a prediction with a horizon, from the step of the cursor on. */
function useFan(
  { reads }: PanelProps["episode"],
  { channel: { dimensions } }: Subject,
  view: PanelProps["view"],
  { prediction, uncertainty, k }: Parts,
): Fan | undefined {
  const steps = prediction === null || prediction.hasOwnClock ? null : prediction.horizon;
  const from = steps === null ? 0 : Math.floor(view.cursor.value + 1e-6);
  const { value } = useAnswer(
    async (options): Promise<Fan | undefined> => {
      if (prediction === null || steps === null || from >= prediction.length) return undefined;
      const read = async (one: ChannelFacts) => {
        const window = from < one.length ? await reads.window(one.key, from, from + 1, options) : null;
        return window?.kind === "dense"
          ? Float64Array.from(window.values as Float64Array, Number)
          : new Float64Array(0);
      };
      const middle = await read(prediction);
      let edges: readonly Float64Array[] = [];
      if (uncertainty?.kind === "band") edges = await Promise.all([uncertainty.lower, uncertainty.upper].map(read));
      if (uncertainty?.kind === "std") {
        const { isVariance, channel } = uncertainty;
        const wide = (await read(channel)).map((one) => k * (isVariance ? Math.sqrt(one) : one));
        edges = [-1, 1].map((sign) => middle.map((one, at) => one + sign * (wide[at] ?? Number.NaN)));
      }
      const view = { from, to: from + steps, width: steps };
      const lines = (dimension: number) =>
        [middle, ...edges].map((values) => {
          const samples = samplesOf(values, { width: dimensions, dimension });
          return columns({ pyramid: Pyramid.of(samples), samples }, stepClock(samples.length, from), view);
        });
      return { from, steps, lines };
    },
    [reads, prediction, uncertainty, k, from],
  );
  return value;
}

/** Whether frames took longer than 20 ms while something moved. */
function useSlowFrames(isMoving: boolean): boolean {
  const isSlow = useRef(false);
  useEffect(() => {
    if (!isMoving) {
      isSlow.current = false;
      return;
    }
    let last = performance.now();
    let late = 0;
    let frame = requestAnimationFrame(function next(now) {
      late = now - last > 20 ? late + 1 : 0;
      if (late > 3) isSlow.current = true;
      last = now;
      frame = requestAnimationFrame(next);
    });
    return () => cancelAnimationFrame(frame);
  }, [isMoving]);
  return isMoving && isSlow.current;
}
