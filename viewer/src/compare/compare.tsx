// Two models of one episode, or two episodes, on one axis: lines, differences and metrics.

import { useSignal } from "@preact/signals";
import type { JsonObject } from "@shard-format/core";
import type { JSX } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { EpisodeModel, Subject } from "../model/episode";
import type { Interval } from "../model/facts";
import { useAnswer } from "../model/hooks";
import { gutter } from "../panels/panel";
import { comparable } from "../panels/series/parts";
import { commonLabels, labelShift } from "../plot-data/alignment";
import { useGestures } from "../stage/gestures";
import { Ruler } from "../stage/ruler";
import { Overlay } from "../stage/stage";
import type { App } from "../state/app";
import type { View } from "../state/view";
import { shown } from "../ui/escape";
import { count } from "../ui/format";
import { type Alignment, byStep, byTime, regularTimes, storedTimes, type Times } from "./alignment";
import { EpisodeMetrics, ModelMetrics } from "./metrics-table";
import { EpisodePlots, ModelPlots } from "./plots";
import { words } from "./words";
import "./compare.css";
import { listen } from "../ui/listen";
import { Tool } from "../ui/tool";
import { useWidth } from "../ui/width";

interface Props {
  readonly app: App;
  readonly episode: EpisodeModel;
  readonly view: View;
  /** What the user chose. It is part of the link. */
  readonly settings: JsonObject;
}

interface Choices {
  readonly settings: JsonObject;
  readonly change: (settings: JsonObject) => void;
}

/** Subjects with at least two predictions of their values. */
function modelSubjects(episode: EpisodeModel): Subject[] {
  return episode.subjects.filter((subject) => isPlottable(subject) && comparable(subject).length > 1);
}

function isPlottable({ channel }: Subject): boolean {
  return (
    channel.layout === "dense" &&
    channel.problem === null &&
    !channel.hasOwnClock &&
    channel.dimensions <= 256 &&
    channel.lane !== "extra"
  );
}

export function Compare({ app, episode, view, settings }: Props): JSX.Element {
  const others = app.library.rows.value.filter(
    ({ number, kind, problem }) => number !== episode.facts.row && kind !== "container" && problem === null,
  );
  const hasModels = useMemo(() => modelSubjects(episode).length > 0, [episode]);
  const wanted = others.find(({ name }) => name === settings["with"]);
  const row = wanted?.number ?? (hasModels ? null : (others[0]?.number ?? null));
  const change = (more: JsonObject) => {
    app.compare.value = { ...app.compare.peek(), ...more };
  };
  const close = () => {
    app.compare.value = null;
  };
  const partner = useOther(app, row);
  const place = useRef<HTMLElement>(null);
  const width = useWidth(place);
  return (
    <main class="stage compare" ref={place} data-picture aria-label={words.heading}>
      <header class="compare-head">
        <h2>{words.heading}</h2>
        <label>
          <span class="soft">{words.with}</span>
          <select
            value={row ?? ""}
            onChange={(event) => {
              const { value } = event.currentTarget;
              const other = others.find(({ number }) => String(number) === value);
              // What was chosen for one comparison means nothing in another.
              app.compare.value = other === undefined ? {} : { with: other.name };
            }}
          >
            <option value="" disabled={!hasModels}>
              {words.models}
            </option>
            {others.length > 0 && (
              <optgroup label={words.others}>
                {others.map(({ number, id, name }) => (
                  <option key={number} value={number}>
                    {shown(id || name)}
                  </option>
                ))}
              </optgroup>
            )}
          </select>
        </label>
        <Tool kind="compare-close" icon="close" label={words.close} use={close} />
      </header>
      {row === null && !hasModels && <p class="nothing">{words.nothing}</p>}
      {row === null && hasModels && (
        <Models episode={episode} view={view} width={width.value} settings={settings} change={change} />
      )}
      {row !== null && partner.error && <p class="nothing bad">{shown(partner.error.message)}</p>}
      {row !== null && !partner.value && !partner.error && <p class="nothing">{words.opening}</p>}
      {row !== null && partner.value && (
        <Episodes
          key={row}
          a={episode}
          b={partner.value}
          view={view}
          width={width.value}
          settings={settings}
          change={change}
        />
      )}
    </main>
  );
}

/** Opens a row of the table for as long as it is compared with. */
function useOther(app: App, row: number | null): { value?: EpisodeModel; error?: Error } {
  const [state, setState] = useState<{ row?: number; value?: EpisodeModel; error?: Error }>({});
  useEffect(() => {
    if (row === null) return;
    let isEnded = false;
    let end = () => {};
    app.library.open(row).then(
      (opened) => {
        if (isEnded) opened.close();
        else {
          end = opened.close;
          setState({ row, value: opened.episode });
        }
      },
      (error: unknown) => {
        if (!isEnded) setState({ row, error: error instanceof Error ? error : new Error(String(error)) });
      },
    );
    return () => {
      isEnded = true;
      end();
    };
  }, [app, row]);
  return state.row === row ? state : {};
}

// --- two models

function Models({
  episode,
  view,
  width,
  settings,
  change,
}: Choices & { episode: EpisodeModel; view: View; width: number }): JSX.Element {
  const subjects = useMemo(() => modelSubjects(episode), [episode]);
  const subject = subjects.find((one) => one.key === settings["channel"]) ?? (subjects[0] as Subject);
  const models = comparable(subject);
  const first = models.find(({ model }) => model === settings["a"]) ?? models[0];
  const second =
    models.find(({ model }) => model === settings["b"] && model !== first?.model) ??
    models.find((one) => one !== first);
  const choose = (at: 0 | 1) => (event: Event) => {
    const { value } = event.currentTarget as HTMLSelectElement;
    const now: [string, string] = [first?.model ?? "", second?.model ?? ""];
    // Choosing the other one's model exchanges them.
    if (now[1 - at] === value) now.reverse();
    else now[at] = value;
    change({ a: now[0], b: now[1] });
  };
  if (first === undefined || second === undefined) return <p class="nothing">{words.nothing}</p>;
  // Lines and metrics of other models must not stand under these names while the new ones are read.
  const about = { key: `${first.key} ${second.key}`, episode, subject, view, models: [first, second] as const };
  return (
    <>
      <div class="compare-controls">
        <ChannelChoice subjects={subjects} chosen={subject} choose={(channel) => change({ channel })} />
        {([first, second] as const).map((model, at) => (
          <label key={at === 0 ? "a" : "b"}>
            <i class={`compare-key ${at === 0 ? "compare-a" : "compare-b"}`} />
            <select
              aria-label={at === 0 ? words.modelA : words.modelB}
              value={model.model}
              onChange={choose(at === 0 ? 0 : 1)}
            >
              {models.map((one) => (
                <option key={one.key} value={one.model}>
                  {shown(one.model || one.key)}
                </option>
              ))}
            </select>
          </label>
        ))}
        <span class="soft">
          <i class="compare-key compare-truth" /> {words.recorded}
        </span>
      </div>
      <Plots episode={episode} view={view} width={width}>
        <ModelPlots {...about} width={width} />
      </Plots>
      <ModelMetrics {...about} />
    </>
  );
}

function ChannelChoice({
  subjects,
  chosen,
  choose,
}: {
  subjects: readonly Subject[];
  chosen: Subject;
  choose: (key: string) => void;
}): JSX.Element {
  return (
    <label>
      <span class="soft">{words.channel}</span>
      <select value={chosen.key} onChange={(event) => choose(event.currentTarget.value)}>
        {subjects.map(({ key }) => (
          <option key={key} value={key}>
            {shown(key)}
          </option>
        ))}
      </select>
    </label>
  );
}

// --- two episodes

/** Alignments are `step`, `time`, or the text of a label after this. */
const labelMark = "label ";

function Episodes({
  a,
  b,
  view,
  width,
  settings,
  change,
}: Choices & { a: EpisodeModel; b: EpisodeModel; view: View; width: number }): JSX.Element {
  const subjects = useMemo(
    () =>
      a.subjects.filter(
        (one) => isPlottable(one) && b.subjects.some((other) => other.key === one.key && isPlottable(other)),
      ),
    [a, b],
  );
  // What models predict is what people look at first.
  const usual =
    subjects.find((one) => one.predictions.length > 0) ?? subjects.find(({ channel }) => channel.lane === "signal");
  const subject = subjects.find((one) => one.key === settings["channel"]) ?? usual ?? subjects[0];
  const other = b.subjects.find((one) => one.key === subject?.key);
  const alignName = typeof settings["align"] === "string" ? settings["align"] : "step";
  const offset = Math.round(Number(settings["offset"]) || 0);
  const setOffset = (to: number) => change({ offset: to });
  const labels = useLabels(a, b);
  const times = useTimes(a, b);
  const alignment = useMemo((): Alignment => {
    if (alignName === "time" && times) return byTime(times[0], times[1], offset);
    if (alignName.startsWith(labelMark)) {
      return byStep((labels.shift(alignName.slice(labelMark.length)) ?? 0) + offset);
    }
    return byStep(offset);
  }, [alignName, offset, labels, times]);
  if (subject === undefined || other === undefined) return <p class="nothing">{words.noChannel}</p>;
  const hasSameShape = subject.channel.dimensions === other.channel.dimensions;
  const about = { key: subject.key, a, b, subject, other, alignment, view };
  return (
    <>
      <div class="compare-controls">
        <ChannelChoice subjects={subjects} chosen={subject} choose={(channel) => change({ channel })} />
        <label>
          <span class="soft">{words.align}</span>
          <select value={alignName} onChange={(event) => change({ align: event.currentTarget.value, offset: 0 })}>
            <option value="step">{words.byStep}</option>
            {times && <option value="time">{words.byTime}</option>}
            {labels.common.map((text) => (
              <option key={text} value={`${labelMark}${text}`}>
                {words.byLabel(shown(text))}
              </option>
            ))}
          </select>
        </label>
        <label>
          <span class="soft">{words.offset}</span>
          <input
            type="number"
            step={1}
            value={offset}
            onInput={(event) => setOffset(Math.round(Number(event.currentTarget.value) || 0))}
          />
        </label>
        <span>
          <i class="compare-key compare-a" /> {shown(a.facts.id)}
        </span>
        <span>
          <i class="compare-key compare-b" /> {shown(b.facts.id)}
        </span>
      </div>
      <Plots
        episode={a}
        view={view}
        width={width}
        head={<Extent b={b} view={view} width={width} alignment={alignment} offset={offset} change={setOffset} />}
      >
        <EpisodePlots {...about} width={width} />
      </Plots>
      {hasSameShape ? <EpisodeMetrics {...about} /> : <p class="nothing">{words.otherShape}</p>}
    </>
  );
}

function useLabels(a: EpisodeModel, b: EpisodeModel) {
  const { value } = useAnswer(
    async (options) => {
      const all = async (episode: EpisodeModel): Promise<Interval[]> => {
        const lanes = episode.lane("label");
        return (await Promise.all(lanes.map(({ key }) => episode.reads.intervals(key, options)))).flat();
      };
      return Promise.all([all(a), all(b)]);
    },
    [a, b],
  );
  return useMemo(() => {
    const spans = (intervals: readonly Interval[]) =>
      intervals.map(({ start, end, text }) => ({ from: start, to: end, text }));
    const [first, second] = [spans(value?.[0] ?? []), spans(value?.[1] ?? [])];
    return {
      common: commonLabels(first, second).slice(0, 100),
      shift: (text: string) => labelShift(first, second, text),
    };
  }, [value]);
}

/** Steps whose times are read to align by time. */
const mostTimes = 1 << 22;

function useTimes(a: EpisodeModel, b: EpisodeModel): readonly [Times, Times] | null {
  const { value } = useAnswer(
    async (options) => {
      const of = async ({ facts, reads }: EpisodeModel): Promise<Times | null> => {
        if (!facts.hasTimestamps) return facts.rate === null || facts.rate <= 0 ? null : regularTimes(facts.rate);
        if (facts.length > mostTimes) return null;
        const times = await reads.times(0, facts.length, options);
        return times === null ? null : storedTimes(times);
      };
      const [first, second] = await Promise.all([of(a), of(b)]);
      return first && second ? ([first, second] as const) : null;
    },
    [a, b],
  );
  return value ?? null;
}

/** Where the second episode lies on the axis: a bar to drag. */
function Extent({
  b,
  view,
  width,
  alignment,
  offset,
  change,
}: {
  b: EpisodeModel;
  view: View;
  width: number;
  alignment: Alignment;
  offset: number;
  change: (offset: number) => void;
}): JSX.Element {
  const range = view.range.value;
  const inner = Math.max(1, width - gutter.left - gutter.right);
  const scale = inner / (range.end - range.start);
  const from = (alignment.toA(0) - range.start) * scale;
  const to = (alignment.toA(b.facts.length) - range.start) * scale;
  const [left, right] = [Math.max(0, Math.min(inner - 24, from)), Math.max(24, Math.min(inner, to))];
  const start = (down: PointerEvent) => {
    if (down.button !== 0) return;
    down.preventDefault();
    const target = down.currentTarget as HTMLElement;
    target.setPointerCapture(down.pointerId);
    const move = (event: PointerEvent) => change(offset + Math.round((event.clientX - down.clientX) / scale));
    const stop = listen(target, { pointermove: move, pointerup: () => stop(), pointercancel: () => stop() });
  };
  const press = (event: KeyboardEvent) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    change(offset + by * (event.shiftKey ? 10 : 1));
  };
  const text = words.offsetOf(`${offset > 0 ? "+" : ""}${count(offset)}`);
  return (
    <div class="compare-extent" style={{ margin: `0 ${gutter.right}px 0 ${gutter.left}px` }}>
      <div
        class="compare-bar"
        role="slider"
        tabIndex={0}
        aria-label={words.offset}
        aria-valuemin={-b.facts.length}
        aria-valuemax={view.length.value}
        aria-valuenow={offset}
        aria-valuetext={text}
        title={words.drag}
        data-own-pointer
        style={{ transform: `translateX(${left}px)`, width: `${Math.max(24, right - left)}px` }}
        onPointerDown={start}
        onKeyDown={press}
      >
        ⟷ {shown(b.facts.id)} <b>{text}</b>
      </div>
    </div>
  );
}

// --- what both have

interface PlotsProps {
  readonly episode: EpisodeModel;
  readonly view: View;
  readonly width: number;
  readonly head?: JSX.Element;
  readonly children: JSX.Element;
}

/** The ruler, the plots with the gestures of the stage, and the cursor over them. */
function Plots({ episode, view, width, head, children }: PlotsProps): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const chosen = useSignal<{ from: number; to: number } | null>(null);
  const box = useCallback((from: number, to: number) => {
    chosen.value = Number.isNaN(from) ? null : { from: Math.min(from, to), to: Math.max(from, to) };
  }, []);
  useGestures(place, view, { box });
  return (
    <>
      <Ruler episode={episode} view={view} width={width} box={box} />
      {head}
      <div class="plots" ref={place}>
        {children}
        <Overlay view={view} width={width} chosen={chosen.value} />
      </div>
    </>
  );
}
