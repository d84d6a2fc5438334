// The time line at the bottom: all of the episode, which part of it is visible, and playing.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { EpisodeModel } from "../model/episode";
import type { Interval } from "../model/facts";
import { useAnswer, useColumns } from "../model/hooks";
import { valueRange } from "../plot-data/columns";
import type { View } from "../state/view";
import { colour, theme } from "../ui/colours";
import { shown } from "../ui/escape";
import * as format from "../ui/format";
import { listen } from "../ui/listen";
import { plotArea } from "../ui/time-canvas";
import { Tool } from "../ui/tool";
import { useWidth } from "../ui/width";
import { words } from "../words";
import { speeds } from "./play";

interface TimeLineProps {
  readonly episode: EpisodeModel;
  readonly view: View;
  /** Steps at which something was found, for ticks. */
  readonly marks?: readonly number[];
}

const { time } = words;

export function TimeLine({ episode, view, marks = [] }: TimeLineProps) {
  return (
    <section class="time" aria-label={time.heading}>
      <Controls view={view} />
      <Overview episode={episode} view={view} marks={marks} />
      <Readout episode={episode} view={view} />
    </section>
  );
}

function Controls({ view }: { readonly view: View }) {
  const isPlaying = view.isPlaying.value;
  const step = (by: number) => {
    view.isPlaying.value = false;
    view.seek(Math.round(view.cursor.peek()) + by);
  };
  return (
    <div class="play">
      <Tool icon="previous" label={time.back} hint={`${time.back} (←)`} use={() => step(-1)} />
      <Tool
        kind="play-button"
        icon={isPlaying ? "pause" : "play"}
        label={isPlaying ? time.pause : time.play}
        hint={`${isPlaying ? time.pause : time.play} (Space)`}
        use={() => {
          view.isPlaying.value = !isPlaying;
        }}
      />
      <Tool icon="next" label={time.forward} hint={`${time.forward} (→)`} use={() => step(1)} />
      <select
        class="speed"
        aria-label={time.speed}
        value={view.speed.value}
        onChange={(event) => {
          view.speed.value = Number(event.currentTarget.value);
        }}
      >
        {speeds.map((speed) => (
          <option key={speed} value={speed}>
            {speed}×
          </option>
        ))}
      </select>
      <Tool
        icon="loop"
        label={time.loop}
        pressed={view.isLooping.value}
        use={() => {
          view.isLooping.value = !view.isLooping.value;
        }}
      />
    </div>
  );
}

/** Tells people who do not see the page where the cursor is: at most twice a second, and not while it plays. */
function useSpokenCursor(episode: EpisodeModel, view: View): string {
  const spoken = useSignal("");
  const cursor = Math.round(view.cursor.value);
  const isPlaying = view.isPlaying.value;
  useEffect(() => {
    if (isPlaying) return;
    const timer = setTimeout(() => {
      const seconds = episode.seconds(cursor);
      const step = time.step(format.count(cursor));
      spoken.value = seconds === null ? step : `${step}, ${format.duration(seconds)}`;
    }, 500);
    return () => clearTimeout(timer);
  }, [cursor, isPlaying, episode]);
  return spoken.value;
}

function Readout({ episode, view }: { readonly episode: EpisodeModel; readonly view: View }) {
  const cursor = view.cursor.value;
  const seconds = episode.seconds(cursor);
  const last = view.length.value - 1;
  const selection = view.selection.value;
  const spoken = useSpokenCursor(episode, view);
  return (
    <div class="readout">
      <p class="hidden" role="status">
        {spoken}
      </p>
      <span class="now">
        {format.count(Math.round(cursor))}
        <span class="soft"> / {format.count(last)}</span>
      </span>
      {seconds !== null && <span class="soft">{format.duration(seconds)}</span>}
      {selection !== null && (
        <button
          type="button"
          class="plain small"
          title={time.clear}
          onClick={() => {
            view.selection.value = null;
          }}
        >
          {time.selection(format.count(selection.end - selection.start))} ×
        </button>
      )}
    </div>
  );
}

const height = 44;
const labelHeight = 7;

function Overview({ episode, view, marks }: TimeLineProps & { readonly marks: readonly number[] }) {
  const place = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(place);
  const length = view.length.value;
  const [reward] = episode.lane("reward");
  const whole = { start: 0, end: length };
  const { value: columns } = useColumns(
    episode,
    reward?.key ?? "",
    reward?.layout === "dense" && width.value > 0 ? [0] : [],
    whole,
    width.value,
  );
  const lanes = episode.lane("label");
  const { value: labels } = useAnswer<readonly (readonly Interval[])[]>(
    ({ signal }) =>
      lanes.length === 0
        ? null
        : Promise.all(lanes.map(({ key }) => episode.reads.intervals(key, signal ? { signal } : {}).catch(() => []))),
    [episode],
  );
  const shownTheme = theme.value;
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!canvas.current || !context || width.value === 0) return;
    const ratio = devicePixelRatio;
    canvas.current.width = width.value * ratio;
    canvas.current.height = height * ratio;
    context.scale(ratio, ratio);
    const toX = (position: number) => (position / length) * width.value;
    const top = 6;
    const bottom = height - (lanes.length > 0 ? labelHeight + 4 : 4);
    const [line] = columns?.lines ?? [];
    if (line !== undefined) {
      const [low, high] = valueRange([line]) ?? [0, 0];
      const { y: toY } = plotArea(top, bottom, Math.min(0, low), Math.max(0, high), 0);
      context.fillStyle = colour("--overview");
      const zero = toY(0);
      for (let at = 0; at < line.x.length; at++) {
        const [least, most] = [line.min[at] as number, line.max[at] as number];
        if (Number.isNaN(least)) continue;
        const y = Math.min(toY(most), zero);
        const until = Math.max(toY(least), zero);
        const next = line.original ? toX((line.x[at] as number) + 1) : toX(line.x[at] as number) + 1;
        const from = toX(line.x[at] as number);
        context.fillRect(from, y, Math.max(1, next - from), Math.max(1, until - y));
      }
    }
    for (const [number, lane] of (labels ?? []).entries()) {
      for (const [at, { start, end }] of lane.entries()) {
        context.fillStyle = colour(`--series-${(number + at) % 8}`);
        context.globalAlpha = 0.75;
        context.fillRect(toX(start), height - labelHeight, Math.max(1.5, toX(end) - toX(start) - 1), labelHeight - 2);
      }
    }
    context.globalAlpha = 1;
    context.fillStyle = colour("--bad");
    for (const mark of marks) context.fillRect(toX(mark) - 1, 0, 2, 5);
  }, [columns, labels, width.value, length, shownTheme, marks]);
  return (
    <div ref={place} class="overview">
      <canvas ref={canvas} style={{ width: "100%", height: `${height}px` }} />
      <Window view={view} />
      <CursorSlider episode={episode} view={view} />
    </div>
  );
}

/** The visible range: drag its middle or an edge. */
function Window({ view }: { readonly view: View }) {
  const { start, end } = view.range.value;
  const length = view.length.value;
  const drag = (part: "start" | "end" | "both") => (down: PointerEvent) => {
    const bar = (down.currentTarget as HTMLElement).closest<HTMLElement>(".overview");
    if (bar === null || down.button !== 0) return;
    down.stopPropagation();
    down.preventDefault();
    const from = view.range.peek();
    const perPixel = length / bar.clientWidth;
    const move = (event: PointerEvent) => {
      const by = (event.clientX - down.clientX) * perPixel;
      view.isMoving.value = true;
      if (part === "both") view.show({ start: from.start + by, end: from.end + by });
      else if (part === "start") view.show({ start: Math.min(from.start + by, from.end - 4), end: from.end });
      else view.show({ start: from.start, end: Math.max(from.end + by, from.start + 4) });
    };
    const up = () => {
      view.isMoving.value = false;
      stop();
    };
    const stop = listen(window, { pointermove: move, pointerup: up, pointercancel: up });
  };
  // For the mouse only: the handles do the same by keyboard.
  const grip = useRef<HTMLDivElement>(null);
  useEffect(() => {
    return grip.current === null
      ? undefined
      : listen(grip.current, { pointerdown: drag("both"), dblclick: () => view.fit() });
  });
  const nudge = (part: "start" | "end") => (event: KeyboardEvent) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const step = (by * (end - start)) / 20;
    if (part === "start") view.show({ start: Math.min(start + step, end - 4), end });
    else view.show({ start, end: Math.max(end + step, start + 4) });
  };
  const handle = (part: "start" | "end") => (
    <div
      class={`handle ${part}`}
      role="slider"
      tabIndex={0}
      aria-label={time[part]}
      aria-valuemin={0}
      aria-valuemax={length}
      aria-valuenow={Math.round(part === "start" ? start : end)}
      aria-valuetext={time.step(format.count(Math.round(part === "start" ? start : end)))}
      onPointerDown={drag(part)}
      onKeyDown={nudge(part)}
    />
  );
  const isWhole = start <= 0 && end >= length;
  return (
    <>
      <div class="outside" style={{ left: 0, width: `${(start / length) * 100}%` }} />
      <div class="outside" style={{ left: `${(end / length) * 100}%`, right: 0 }} />
      <div
        class={`window ${isWhole ? "is-whole" : ""}`}
        style={{ left: `${(start / length) * 100}%`, width: `${((end - start) / length) * 100}%` }}
      >
        <div ref={grip} class="grip" />
        {handle("start")}
        {handle("end")}
      </div>
    </>
  );
}

function CursorSlider({ episode, view }: { readonly episode: EpisodeModel; readonly view: View }) {
  const cursor = view.cursor.value;
  const length = view.length.value;
  const slider = useRef<HTMLDivElement>(null);
  const scrub = (down: PointerEvent) => {
    const bar = slider.current?.parentElement;
    if (!bar || down.button !== 0) return;
    const seek = (event: PointerEvent) => {
      const { left, width } = bar.getBoundingClientRect();
      view.seek(Math.round(((event.clientX - left) / width) * length));
    };
    seek(down);
    const stop = listen(window, { pointermove: seek, pointerup: () => stop(), pointercancel: () => stop() });
  };
  useEffect(() => {
    const bar = slider.current?.parentElement;
    return bar ? listen(bar, { pointerdown: scrub }) : undefined;
  });
  const seconds = episode.seconds(cursor);
  const step = time.stepOf(format.count(Math.round(cursor)), format.count(length - 1));
  return (
    <div
      ref={slider}
      class="time-cursor"
      role="slider"
      tabIndex={0}
      aria-label={`${time.cursor}: ${shown(episode.facts.id)}`}
      aria-valuemin={0}
      aria-valuemax={length - 1}
      aria-valuenow={Math.round(cursor)}
      aria-valuetext={seconds === null ? step : `${step}, ${format.duration(seconds)}`}
      style={{ left: `${(cursor / length) * 100}%` }}
    />
  );
}
