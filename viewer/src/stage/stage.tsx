import { useSignal } from "@preact/signals";
import { useCallback, useMemo, useRef } from "preact/hooks";
import type { EpisodeModel, Subject } from "../model/episode";
import { gutter } from "../panels/panel";
import type { App } from "../state/app";
import type { View } from "../state/view";
import { useWidth } from "../ui/width";
import { words } from "../words";
import { toPixel } from "./axis";
import { Frame, momentWidth } from "./frame";
import { panelOf, usualSubjects } from "./layout";
import { Ruler } from "./ruler";

interface StageProps {
  readonly app: App;
  readonly episode: EpisodeModel;
  readonly view: View;
}

export function Stage({ app, episode, view }: StageProps) {
  const place = useRef<HTMLElement>(null);
  const width = useWidth(place);
  const chosen = useSignal<{ from: number; to: number } | null>(null);
  const box = useCallback((from: number, to: number) => {
    chosen.value = Number.isNaN(from) ? null : { from: Math.min(from, to), to: Math.max(from, to) };
  }, []);
  const usual = useMemo(() => usualSubjects(episode), [episode]);
  const keys = app.shown.value ?? usual;
  const subjects = keys
    .map((key) => episode.subjects.find((one) => one.key === key))
    .filter((one): one is Subject => one !== undefined);
  const isMoment = (subject: Subject) =>
    panelOf(subject, episode, app.choices.value.get(subject.key))?.isOverTime === false;
  const moments = subjects.filter(isMoment);
  const plots = subjects.filter((subject) => !isMoment(subject));
  const hide = (key: string) => {
    app.shown.value = keys.filter((one) => one !== key);
  };
  const frame = (subject: Subject) => (
    <Frame
      key={subject.key}
      app={app}
      episode={episode}
      subject={subject}
      view={view}
      width={width.value}
      moments={moments.length}
      hide={() => hide(subject.key)}
      box={box}
    />
  );
  const more =
    app.shown.value === null
      ? episode.subjects.filter(({ key, channel }) => !keys.includes(key) && channel.lane === "signal").length
      : 0;
  return (
    <main class="stage" ref={place} data-picture>
      {moments.length > 0 && (
        <div
          class="moments"
          style={{ gridTemplateColumns: `repeat(auto-fill, ${momentWidth(width.value, moments.length)}px)` }}
        >
          {moments.map(frame)}
        </div>
      )}
      {plots.length > 0 && (
        <>
          <Ruler episode={episode} view={view} width={width.value} box={box} />
          <div class="plots">
            {plots.map(frame)}
            <Overlay view={view} width={width.value} chosen={chosen.value} />
          </div>
        </>
      )}
      {subjects.length === 0 && <p class="nothing">{words.stage.empty}</p>}
      {more > 0 && <p class="nothing">{words.stage.more(more)}</p>}
    </main>
  );
}

interface OverlayProps {
  readonly view: View;
  readonly width: number;
  readonly chosen: { readonly from: number; readonly to: number } | null;
}

/** The cursor, the pointer and ranges, once for all plots: moving them draws no plot again. */
export function Overlay({ view, width, chosen }: OverlayProps) {
  const range = view.range.value;
  const line = (position: number | null, name: string) => {
    if (position === null || position < range.start || position > range.end) return null;
    return <div class={name} style={{ transform: `translateX(${toPixel(position, range, width)}px)` }} />;
  };
  const span = (part: { start: number; end: number } | null, name: string) => {
    if (part === null) return null;
    const left = Math.max(gutter.left, toPixel(part.start, range, width));
    const right = Math.min(width - gutter.right, toPixel(part.end, range, width));
    if (right <= left) return null;
    return <div class={name} style={{ transform: `translateX(${left}px)`, width: `${right - left}px` }} />;
  };
  return (
    <div class="overlay" aria-hidden="true">
      {span(view.selection.value, "selection")}
      {span(chosen && { start: chosen.from, end: chosen.to }, "zoom-box")}
      {line(view.hover.value, "hover-line")}
      {line(view.cursor.value, "cursor-line")}
    </div>
  );
}
