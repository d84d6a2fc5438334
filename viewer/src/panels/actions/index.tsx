// The values of one step as bars: what an actuator does at the cursor, and what a model said it would do.

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { useAnswer, useEntryAt, useSlowly, useWindow } from "../../model/hooks";
import { shown } from "../../ui/escape";
import { value as numberText } from "../../ui/format";
import type { Panel, PanelProps } from "../panel";
import { dimensionNames } from "../series/parts";
import { words } from "./words";
import "./actions.css";

const mostBars = 64;

export const actions: Panel = {
  name: "actions",
  title: words.title,
  fits: ({ channel }) =>
    channel.layout === "dense" && channel.dimensions <= mostBars && channel.lane !== "residual"
      ? channel.lane === "action"
        ? 4
        : 1
      : 0,
  height: ({ channel }) => Math.min(420, 40 + 26 * channel.dimensions),
  isOverTime: false,
  component: Actions,
};

/** Where a value is between the least and the largest, with 0 inside: 0 to 1. */
export function place(value: number, min: number, max: number): number {
  const [low, high] = [Math.min(0, min), Math.max(0, max)];
  if (!(high > low)) return 0.5;
  return Math.min(1, Math.max(0, (value / 2 - low / 2) / (high / 2 - low / 2)));
}

function Actions({ episode, subject, view, height, report }: PanelProps): JSX.Element {
  const { channel } = subject;
  const dims = Array.from({ length: Math.min(mostBars, channel.dimensions) }, (_, dimension) => dimension);
  const names = dimensionNames(channel);
  const cursor = view.cursor.value;
  const entry = useEntryAt(episode, channel.key, cursor) ?? -1;
  const { value: window, error } = useWindow(episode, channel.key, Math.max(0, entry), entry + 1);
  const arrived = useSlowly(episode.reads.arrived(channel.key).value);
  const extents = useAnswer(
    (options) => episode.reads.extent(channel.key, dims, options),
    [episode, channel.key, arrived],
  ).value;
  const model = subject.predictions.find((one) => one.dimensions === channel.dimensions && one.horizon === null);
  const modelEntry = useEntryAt(episode, model?.key ?? channel.key, cursor) ?? -1;
  const predicted = useWindow(episode, model?.key ?? "", Math.max(0, modelEntry), model ? modelEntry + 1 : 0).value;
  const values = window?.kind === "dense" ? window.values : null;
  const others = predicted?.kind === "dense" ? predicted.values : null;
  const summary = words.summary(dims.length, entry);
  useEffect(() => report({ summary, ...(error ? { problem: error.message } : {}) }), [summary, error]);

  return (
    <div class="bars" style={{ height: `${height}px` }}>
      <p class="soft">
        {entry < 0 ? words.none : words.step(entry)}
        {channel.unit !== "" && ` · ${shown(channel.unit)}`}
        {model && (
          <>
            {" · "}
            <i class="bars-key" /> {shown(words.predicted(model.model))}
          </>
        )}
      </p>
      <ul>
        {dims.map((dimension) => {
          const value = Number(values?.[dimension] ?? Number.NaN);
          const extent = extents?.[dimension];
          const [min, max] = [extent?.min ?? value, extent?.max ?? value];
          const zero = place(0, min, max);
          const at = Number.isFinite(value) ? place(value, min, max) : zero;
          const other = Number(others?.[dimension] ?? Number.NaN);
          return (
            <li key={dimension}>
              <span class="bars-name">{shown(names[dimension] ?? "")}</span>
              <span class="bars-track" aria-hidden="true">
                <i
                  class="bars-bar"
                  style={{
                    left: `${100 * Math.min(zero, at)}%`,
                    width: `${100 * Math.abs(at - zero)}%`,
                    background: `var(--series-${dimension % 8})`,
                  }}
                />
                <i class="bars-zero" style={{ left: `${100 * zero}%` }} />
                {Number.isFinite(other) && (
                  <i class="bars-other" style={{ left: `${100 * place(other, min, max)}%` }} />
                )}
              </span>
              <span class="bars-value">{values === null ? "–" : numberText(value)}</span>
            </li>
          );
        })}
      </ul>
      {channel.dimensions > mostBars && <p class="soft">{words.more(channel.dimensions - mostBars)}</p>}
    </div>
  );
}
