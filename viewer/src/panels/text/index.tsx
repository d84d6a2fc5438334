// Labels and text channels: tracks over time, what holds at the cursor, and a list to search.

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import type { Interval } from "../../model/facts";
import { type Answer, useAnswer } from "../../model/hooks";
import { colour, seriesColour } from "../../ui/colours";
import { shown } from "../../ui/escape";
import { clipped, type Scene, TimeCanvas } from "../../ui/time-canvas";
import type { Panel, PanelProps } from "../panel";
import { coloursOf, rowsOf, search, spansAt, spansOf } from "./spans";
import { words } from "./words";
import "./text.css";

/** Entries of a text channel that are read. */
const mostEntries = 50_000;
const piece = 5_000;
const mostListed = 300;

export const text: Panel = {
  name: "text",
  title: words.title,
  fits: ({ channel }) => (channel.layout === "label" || channel.layout === "text" ? 10 : 0),
  height: () => 188,
  isOverTime: true,
  component: TextPanel,
};

function TextPanel({ episode, subject, view, width, height, report }: PanelProps): JSX.Element {
  const { value, error } = useSpans({ episode, subject });
  const spans = value?.spans ?? noSpans;
  const { rows, count } = useMemo(() => rowsOf(spans), [spans]);
  const colours = useMemo(() => coloursOf(spans), [spans]);
  const [wanted, setWanted] = useState("");
  const found = useMemo(() => search(spans, wanted), [spans, wanted]);
  const cursor = view.cursor.value;
  const here = useMemo(() => spansAt(spans, cursor), [spans, cursor]);
  const summary = words.summary(spans.length, shown(spans[0]?.text ?? ""));
  const isCut = value !== undefined && value.read < value.length;
  const note = isCut ? words.cut(value.read, value.length) : "";

  useEffect(() => {
    report({ summary, ...(note === "" ? {} : { note }), ...(error ? { problem: error.message } : {}) });
  }, [summary, note, error]);

  const rowHeight = Math.max(7, Math.min(24, (height * 0.4) / Math.max(1, count)));
  const trackHeight = Math.round(Math.min(height * 0.45, Math.max(1, count) * (rowHeight + 2)) + 6);
  const draw = (scene: Scene) => drawSpans(scene, spans, rows, colours, rowHeight);

  return (
    <div class="text-panel" style={{ height: `${height}px` }}>
      <TimeCanvas
        view={view}
        width={width}
        height={trackHeight}
        label={summary}
        draw={draw}
        inputs={[spans, rows, rowHeight]}
      />
      <div class="text-below" data-own-pointer>
        <section class="text-here" aria-label={words.atCursor}>
          <h4>{words.atCursor}</h4>
          {here.length === 0 ? (
            <p class="soft">{words.nothingHere}</p>
          ) : (
            here
              .slice(0, 20)
              .map((span) => (
                <SpanText key={`${span.start} ${span.text}`} span={span} colour={colours.get(span.text) ?? 0} />
              ))
          )}
        </section>
        <section class="text-list" aria-label={words.list}>
          <div class="text-search">
            <input
              type="search"
              placeholder={words.searchHint}
              aria-label={words.search}
              value={wanted}
              onInput={(event) => setWanted(event.currentTarget.value)}
            />
            <span class="soft">{words.found(found.length, spans.length)}</span>
          </div>
          <ul>
            {found.slice(0, mostListed).map((span, at) => (
              <li key={`${at} ${span.start}`}>
                <button
                  type="button"
                  aria-current={here.includes(span)}
                  onClick={() => {
                    view.seek(span.start);
                  }}
                >
                  <span class="text-step">{words.steps(Math.ceil(span.start), Math.ceil(span.end))}</span>
                  <SpanText span={span} colour={colours.get(span.text) ?? 0} />
                </button>
              </li>
            ))}
          </ul>
          {found.length > mostListed && <p class="soft">{words.more(found.length - mostListed)}</p>}
          {found.length === 0 && spans.length > 0 && <p class="soft">{words.none}</p>}
        </section>
      </div>
    </div>
  );
}

function SpanText({ span, colour: number }: { span: Interval; colour: number }): JSX.Element {
  return (
    <span class="text-span">
      <i style={{ background: `var(--series-${number})` }} aria-hidden="true" />
      <span>{span.text === "" ? words.empty : shown(span.text)}</span>
      {(span.source !== "" || span.confidence !== null) && (
        <small>
          {[
            span.source === "" ? "" : words.source(shown(span.source)),
            span.confidence === null ? "" : words.confidence(span.confidence),
          ]
            .filter(Boolean)
            .join(", ")}
        </small>
      )}
    </span>
  );
}

const noSpans: readonly Interval[] = [];

function drawSpans(
  scene: Scene,
  spans: readonly Interval[],
  rows: Int32Array,
  colours: ReadonlyMap<string, number>,
  rowHeight: number,
): void {
  const { context, left, right, height, start, end, x } = scene;
  clipped(scene, 0, height, () => {
    context.textBaseline = "middle";
    // Spans narrower than a pixel are drawn once for each pixel and row.
    const drawn = new Set<number>();
    for (let at = 0; at < spans.length; at++) {
      const span = spans[at] as Interval;
      if (span.end < start || span.start > end) continue;
      const from = Math.max(left - 2, x(span.start));
      const to = Math.min(right + 2, x(span.end));
      const row = rows[at] as number;
      if (to - from < 1) {
        const place = row * 100_000 + Math.round(from);
        if (drawn.has(place)) continue;
        drawn.add(place);
      }
      const top = 3 + row * (rowHeight + 2);
      const wide = Math.max(2, to - from - 1);
      const ink = seriesColour(colours.get(span.text) ?? 0);
      // The surer, the fuller.
      const isNarrow = wide < 8;
      context.globalAlpha = (isNarrow ? 0.3 : 0.1) + 0.16 * (span.confidence ?? 1);
      context.fillStyle = ink;
      context.beginPath();
      context.roundRect(from, top, wide, rowHeight, Math.min(4, wide / 2));
      context.fill();
      context.globalAlpha = 1;
      if (!isNarrow) context.fillRect(from, top, 3, rowHeight);
      if (wide < 26 || rowHeight < 11) continue;
      context.save();
      context.beginPath();
      context.rect(from, top, wide - 3, rowHeight);
      context.clip();
      context.fillStyle = colour("--text");
      context.fillText(shown(span.text.slice(0, 300)), Math.max(from, left) + 8, top + rowHeight / 2 + 0.5);
      context.restore();
    }
  });
}

interface Spans {
  readonly spans: readonly Interval[];
  readonly read: number;
  readonly length: number;
}

function useSpans({ episode, subject }: Pick<PanelProps, "episode" | "subject">): Answer<Spans> {
  const { channel } = subject;
  const { reads } = episode;
  const arrived = reads.arrived(channel.key).value;
  return useAnswer(
    async (options) => {
      if (channel.layout === "label") {
        const spans = await reads.intervals(channel.key, options);
        return { spans, read: spans.length, length: spans.length };
      }
      const read = Math.min(channel.length, mostEntries);
      const texts: string[] = [];
      for (let start = 0; start < read; start += piece) {
        const window = await reads.window(channel.key, start, Math.min(read, start + piece), options);
        if (window.kind === "text") texts.push(...window.texts);
      }
      const positions = await reads.positions(channel.key, 0, texts.length, options);
      const end =
        read < channel.length ? (positions.at(-1) ?? 0) : Math.max(episode.facts.length, positions.at(-1) ?? 0);
      return { spans: spansOf(texts, positions, end), read, length: channel.length };
    },
    [reads, channel.key, channel.length, arrived],
  );
}
