// The metrics of the selection as tables: the better of two is marked, and the worst step is a way to it.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { EpisodeModel, Subject } from "../model/episode";
import type { ChannelFacts } from "../model/facts";
import type { Answer } from "../model/hooks";
import type { ReadOptions } from "../model/reads";
import { type Uncertainty, uncertaintiesOf } from "../model/uncertainty";
import { comparable } from "../panels/series/parts";
import type { Metrics } from "../plot-data/metrics";
import type { View } from "../state/view";
import { shown } from "../ui/escape";
import { count, value as numberText } from "../ui/format";
import { shareText } from "../ui/ticks";
import type { Alignment } from "./alignment";
import { better } from "./metrics";
import { type Measured, measureEpisodes, measureModel, type Tell } from "./reading";
import { useSettledRange } from "./settled";
import { words } from "./words";

interface ModelProps {
  readonly episode: EpisodeModel;
  readonly subject: Subject;
  readonly models: readonly [ChannelFacts, ChannelFacts];
  readonly view: View;
}

export function ModelMetrics({ episode, subject, models: [a, b], view }: ModelProps): JSX.Element {
  const { range, isSelection } = useSettledRange(view);
  const { value, error } = useMeasured(
    [
      (options, tell) => measureModel(episode, subject, a, range, options, tell),
      (options, tell) => measureModel(episode, subject, b, range, options, tell),
    ],
    [episode, subject, a, b, range.start, range.end],
  );
  return (
    <MetricsTable
      names={[a.model, b.model]}
      bands={[bandOf(subject, a), bandOf(subject, b)]}
      measured={value}
      error={error}
      range={range}
      isSelection={isSelection}
      view={view}
    />
  );
}

interface EpisodeProps {
  readonly a: EpisodeModel;
  readonly b: EpisodeModel;
  readonly subject: Subject;
  readonly other: Subject;
  readonly alignment: Alignment;
  readonly view: View;
}

export function EpisodeMetrics({ a, b, subject, other, alignment, view }: EpisodeProps): JSX.Element {
  const { range, isSelection } = useSettledRange(view);
  const difference = useMeasured(
    [(options, tell) => measureEpisodes(a, b, [subject.channel, other.channel], alignment, range, options, tell)],
    [a, b, subject, other, alignment, range.start, range.end],
  );
  const shared = comparable(subject).find(({ model }) => comparable(other).some((one) => one.model === model));
  const second = comparable(other).find(({ model }) => model === shared?.model);
  const otherRange = { start: alignment.toB(range.start), end: alignment.toB(range.end) };
  const predictions = useMeasured(
    shared === undefined || second === undefined
      ? []
      : [
          (options, tell) => measureModel(a, subject, shared, range, options, tell),
          (options, tell) => measureModel(b, other, second, otherRange, options, tell),
        ],
    [a, b, shared, second, alignment, range.start, range.end],
  );
  const about = { range, isSelection, view };
  return (
    <>
      <MetricsTable
        {...about}
        names={[words.difference(a.facts.id, b.facts.id)]}
        measured={difference.value}
        error={difference.error}
      />
      {shared && second && (
        <MetricsTable
          {...about}
          title={words.predictions(shown(shared.model))}
          names={[a.facts.id, b.facts.id]}
          bands={[bandOf(subject, shared), bandOf(other, second)]}
          measured={predictions.value}
          error={predictions.error}
        />
      )}
    </>
  );
}

type Band = Uncertainty & { kind: "band" };

/** The band that a prediction gives by its edges. */
function bandOf(subject: Subject, prediction: ChannelFacts): Band | undefined {
  return uncertaintiesOf(subject, prediction).find((one): one is Band => one.kind === "band");
}

/** The column of the truth inside bands. */
function coveredBy(bands: readonly (Band | undefined)[]): Column {
  const names = new Set(bands.flatMap((band) => band?.name ?? []));
  return { name: words.covered, hint: shown([...names].join(", ")), get: ({ covered }) => covered, text: shareText };
}

/** What is measured, as far as it is known. Each measurement reads on until `inputs` change. */
function useMeasured(
  measure: readonly ((options: ReadOptions, tell: Tell) => Promise<Measured>)[],
  inputs: readonly unknown[],
): Answer<readonly Measured[]> {
  const [state, setState] = useState<Answer<readonly Measured[]>>({ value: undefined, error: undefined });
  useEffect(() => {
    const ending = new AbortController();
    const known: Measured[] = [];
    const told = (at: number) => (measured: Measured) => {
      if (ending.signal.aborted) return;
      known[at] = measured;
      // Sides of different progress are not compared: both are there, or none.
      if (measure.every((_, side) => known[side] !== undefined)) setState({ value: [...known], error: undefined });
    };
    for (const [at, one] of measure.entries()) {
      one({ signal: ending.signal }, told(at)).then(told(at), (error: unknown) => {
        if (ending.signal.aborted) return;
        setState((last) => ({ ...last, error: error instanceof Error ? error : new Error(String(error)) }));
      });
    }
    return () => ending.abort();
  }, inputs);
  return state;
}

interface TableProps {
  readonly title?: string;
  readonly names: readonly string[];
  /** Bands given by their edges, of each name. */
  readonly bands?: readonly (Band | undefined)[];
  readonly measured: readonly Measured[] | undefined;
  readonly error: Error | undefined;
  readonly range: { readonly start: number; readonly end: number };
  readonly isSelection: boolean;
  readonly view: View;
}

interface Column {
  readonly name: string;
  readonly hint?: string;
  readonly get: (metrics: Metrics) => number;
  readonly text: (value: number) => string;
  /** Whether the smaller one is the better one. */
  readonly isLess?: boolean;
}

const general: readonly Column[] = [
  { name: words.mae, get: ({ mae }) => mae, text: plain, isLess: true },
  { name: words.rmse, get: ({ rmse }) => rmse, text: plain, isLess: true },
  { name: words.bias, get: ({ bias }) => bias, text: plain },
  { name: words.worst, get: ({ worst }) => worst, text: plain, isLess: true },
];

const judged: readonly Column[] = [
  ...([0, 1, 2] as const).map((at) => ({
    name: words.inside(at + 1),
    hint: words.ideal(words.expected[at]),
    get: ({ inside }: Metrics) => inside[at],
    text: shareText,
  })),
  { name: words.nll, get: ({ nll }) => nll, text: plain, isLess: true },
];

function plain(value: number): string {
  return Number.isNaN(value) ? "–" : numberText(value);
}

const mostRows = 32;

function heading({ name, hint }: Column): JSX.Element {
  return (
    <th key={name} scope="col" class="number">
      {name}
      {hint && <small>{hint}</small>}
    </th>
  );
}

function MetricsTable({
  title = words.metrics,
  names,
  bands = [],
  measured,
  error,
  range,
  isSelection,
  view,
}: TableProps) {
  if (error) return <p class="nothing bad">{shown(error.message)}</p>;
  if (measured === undefined) return <p class="nothing">{words.reading}</p>;
  const more = [
    ...(measured.some(({ all }) => all.judged > 0) ? judged : []),
    ...(measured.some(({ all }) => all.bounded > 0) ? [coveredBy(bands)] : []),
  ];
  const dimensions = measured[0]?.dimensions.length ?? 0;
  const rows = [
    { name: words.all, of: measured.map(({ all }) => all) },
    ...(dimensions < 2 ? [] : Array.from({ length: Math.min(mostRows, dimensions) }, (_, at) => at)).map((at) => ({
      name: `[${at}]`,
      of: measured.map((one) => one.dimensions[at] as Metrics),
    })),
  ];
  const share = Math.min(...measured.map((one) => one.share));
  const [from, to] = [count(Math.max(0, Math.ceil(range.start))), count(Math.max(0, Math.ceil(range.end) - 1))];
  const pairs = count(measured[0]?.all.count ?? 0);
  return (
    <section class="compare-metrics" aria-label={title}>
      <h3>
        {title} <small class="soft">{(isSelection ? words.selection : words.visible)(from, to, pairs)}</small>
      </h3>
      {share < 1 && <p class="soft">{words.part(shareText(share))}</p>}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a table that may be wider than the page is scrolled with keys */}
      <div class="compare-scroll" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">{words.dimension}</th>
              {names.length > 1 && <th scope="col" />}
              {general.map(heading)}
              <th scope="col" class="number">
                {words.worstStep}
              </th>
              {more.map(heading)}
            </tr>
          </thead>
          {rows.map(({ name, of }) => (
            <tbody key={name}>
              {of.map((metrics, at) => (
                <tr key={names[at]}>
                  {at === 0 && (
                    <th scope="rowgroup" rowSpan={of.length}>
                      {name}
                    </th>
                  )}
                  {names.length > 1 && (
                    <th scope="row" class="compare-name">
                      <i class={`compare-key ${at === 0 ? "compare-a" : "compare-b"}`} /> {shown(names[at] ?? "")}
                    </th>
                  )}
                  {general.map((column) => (
                    <Cell key={column.name} column={column} of={of} at={at} />
                  ))}
                  <td class="number">
                    {metrics.worstStep >= 0 && (
                      <button
                        type="button"
                        class="plain"
                        title={words.goTo(count(metrics.worstStep))}
                        onClick={() => view.seek(metrics.worstStep)}
                      >
                        {count(metrics.worstStep)}
                      </button>
                    )}
                  </td>
                  {more.map((column) => (
                    <Cell key={column.name} column={column} of={of} at={at} />
                  ))}
                </tr>
              ))}
            </tbody>
          ))}
        </table>
      </div>
    </section>
  );
}

function Cell({ column, of, at }: { column: Column; of: readonly Metrics[]; at: number }): JSX.Element {
  const value = column.get(of[at] as Metrics);
  const [a, b] = of.map(column.get);
  const winner = column.isLess && of.length === 2 ? better(a as number, b as number) : null;
  const isBetter = winner === (at === 0 ? "a" : "b");
  return (
    <td class={`number ${isBetter ? "compare-better" : ""}`}>
      {isBetter && (
        <span role="img" aria-label={words.better}>
          ✓{" "}
        </span>
      )}
      {column.text(value)}
    </td>
  );
}
