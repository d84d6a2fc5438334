// The distribution and a summary of what is visible, dimension by dimension.

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { useAnswer } from "../../model/hooks";
import type { Range } from "../../model/reads";
import { type Numbers, samplesOf } from "../../plot-data/samples";
import { type Histogram, histogram, quantiles, type Summary, summarize } from "../../plot-data/summary";
import { shown } from "../../ui/escape";
import { count as countText, value as numberText } from "../../ui/format";
import type { Panel, PanelProps } from "../panel";
import { dimensionNames } from "../series/parts";
import { pieces } from "./pieces";
import { words } from "./words";
import "../../ui/no-time.css";
import "./statistics.css";

/** Values that are read for one table. */
const mostValues = 1 << 20;
const mostDimensions = 64;
const bins = 40;

export const statistics: Panel = {
  name: "statistics",
  title: words.title,
  fits: ({ channel }) => (channel.layout === "dense" && channel.dimensions <= 4096 ? 0.8 : 0),
  height: ({ channel }) => Math.min(380, 70 + 38 * Math.min(mostDimensions, channel.dimensions)),
  // A table needs the whole width, as plots over time do.
  isOverTime: true,
  component: Statistics,
};

interface Row {
  readonly summary: Summary;
  readonly quantiles: readonly number[];
  readonly histogram: Histogram;
}

function Statistics({ episode, subject, view, height, report }: PanelProps): JSX.Element {
  const { channel } = subject;
  const { reads } = episode;
  const selection = view.selection.value;
  const range = view.isMoving.value ? null : (selection ?? view.range.value);
  const { value, error } = useAnswer(
    (options) => (range === null ? null : read(range, options)),
    [reads, channel.key, channel.length, range?.start, range?.end],
  );

  async function read({ start, end }: Range, options: { signal?: AbortSignal }) {
    const [before, last] = await Promise.all([
      reads.entryAt(channel.key, start - 1e-9, options),
      reads.entryAt(channel.key, selection === null ? end : end - 1e-9, options),
    ]);
    const [first, stop] = [before + 1, last + 1];
    const { dimensions } = channel;
    const parts = pieces(first, stop, Math.floor(mostValues / Math.max(1, dimensions)));
    const windows = await Promise.all(parts.map((part) => reads.window(channel.key, part.start, part.end, options)));
    const arrays = windows.flatMap((window) => (window.kind === "dense" ? [window.values as Numbers] : []));
    const all = joined(arrays);
    const steps = dimensions === 0 ? 0 : all.length / dimensions;
    const rows: Row[] = [];
    for (let dimension = 0; dimension < Math.min(dimensions, mostDimensions); dimension++) {
      // The page answers in between.
      await new Promise((done) => setTimeout(done));
      options.signal?.throwIfAborted();
      const samples = samplesOf(all, { width: dimensions, dimension });
      const summary = summarize(samples);
      rows.push({
        summary,
        quantiles: quantiles(samples, [0.05, 0.5, 0.95]).values,
        histogram: histogram(samples, bins, summary.min, summary.max),
      });
    }
    return { rows, steps, all: Math.max(0, stop - first), isSelection: selection !== null, start, end };
  }

  const names = dimensionNames(channel);
  const summary = words.summary(value?.steps ?? 0, channel.dimensions);
  const isPart = value !== undefined && value.steps < value.all;
  const note = value === undefined ? words.reading : isPart ? words.part(value.steps, value.all) : "";
  useEffect(() => {
    report({ summary, ...(note === "" ? {} : { note }), ...(error ? { problem: error.message } : {}) });
  }, [summary, note, error]);

  return (
    <section
      class="statistics no-time"
      data-own-pointer
      style={{ height: `${height}px` }}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: a table that may be wider than its panel is scrolled with keys
      tabIndex={0}
      aria-label={words.title}
    >
      {value && value.steps === 0 && <p class="soft">{words.nothing}</p>}
      {value && value.steps > 0 && (
        <table>
          <caption>
            {value.isSelection ? words.selection : words.visible}:{" "}
            {words.caption(countText(Math.ceil(value.start)), countText(Math.floor(value.end)))}
            {channel.unit !== "" && ` · ${shown(channel.unit)}`}
          </caption>
          <thead>
            <tr>
              <th scope="col">
                <span class="hidden">{words.dimension}</span>
              </th>
              <th scope="col">{words.histogram}</th>
              {[words.mean, words.std, words.min, words.low, words.median, words.high, words.max, words.missing].map(
                (name) => (
                  <th key={name} scope="col" class="statistics-number">
                    {name}
                  </th>
                ),
              )}
            </tr>
          </thead>
          <tbody>
            {value.rows.map((row, dimension) => (
              <StatisticsRow key={dimension} row={row} dimension={dimension} name={shown(names[dimension] ?? "")} />
            ))}
          </tbody>
        </table>
      )}
      {channel.dimensions > mostDimensions && <p class="soft">{words.more(channel.dimensions - mostDimensions)}</p>}
    </section>
  );
}

function StatisticsRow({ row, dimension, name }: { row: Row; dimension: number; name: string }): JSX.Element {
  const { summary, quantiles: [low, median, high] = [], histogram: bars } = row;
  const notFinite = summary.missing + summary.plusInfinite + summary.minusInfinite;
  const cells = [summary.mean, summary.std, summary.min, low, median, high, summary.max];
  return (
    <tr>
      <th scope="row">
        <i style={{ background: `var(--series-${dimension % 8})` }} aria-hidden="true" />
        {name}
      </th>
      <td>
        {summary.constant ? (
          <span class="badge warn">{words.constant}</span>
        ) : (
          <Bars bars={bars} dimension={dimension} name={name} />
        )}
      </td>
      {cells.map((cell, at) => (
        <td key={at} class="statistics-number">
          {cell === undefined || Number.isNaN(cell) ? "–" : numberText(cell)}
        </td>
      ))}
      <td class={`statistics-number ${notFinite > 0 ? "statistics-bad" : ""}`}>{countText(notFinite)}</td>
    </tr>
  );
}

function Bars({
  bars: { counts, min, max },
  dimension,
  name,
}: {
  bars: Histogram;
  dimension: number;
  name: string;
}): JSX.Element {
  const most = counts.reduce((found, count) => Math.max(found, count), 1);
  const path = Array.from(counts, (count, at) => {
    // What is there at all is seen.
    const tall = count === 0 ? 0 : Math.max(1.2, (count / most) * 28);
    return `M${at * 3} 28v${-tall}h2.4v${tall}z`;
  }).join("");
  const label = words.histogramOf(name, numberText(min), numberText(max));
  return (
    <svg width="120" height="28" viewBox="0 0 120 28" role="img" aria-label={label}>
      <path d={path} fill={`var(--series-${dimension % 8})`} />
    </svg>
  );
}

function joined(arrays: readonly Numbers[]): Numbers {
  const [first] = arrays;
  if (first === undefined) return new Float64Array(0);
  if (arrays.length === 1) return first;
  const all = new Float64Array(arrays.reduce((sum, array) => sum + array.length, 0));
  let at = 0;
  for (const array of arrays) for (const value of array) all[at++] = Number(value);
  return all;
}
