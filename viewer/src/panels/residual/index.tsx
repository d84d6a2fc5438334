// Residuals: where a signal bends as a strip for each dimension, or how far a prediction was off as bars.

import type { JsonObject } from "@shard-format/core";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import type { EpisodeModel, Subject } from "../../model/episode";
import type { ChannelFacts } from "../../model/facts";
import { useAnswer, useSlowly } from "../../model/hooks";
import type { Reads } from "../../model/reads";
import { colour } from "../../ui/colours";
import { shown } from "../../ui/escape";
import { value as numberText } from "../../ui/format";
import { shareText } from "../../ui/ticks";
import { clipped, type Scene, TimeCanvas } from "../../ui/time-canvas";
import { gutter, type Panel, type PanelProps } from "../panel";
import { overTime } from "../table";
import { type Agreement, compareCodes, compareSigns, scaleAt, shares, subject as subjectOf } from "./residuals";
import { words } from "./words";
import "./residual.css";

/** Values that are read and compared one by one; of more, columns are drawn. */
const mostValues = 1 << 20;
const legendHeight = 26;
const leastRow = 14;

export const residual: Panel = {
  name: "residual",
  title: words.title,
  fits: (subject) => (subject.channel.lane === "residual" ? 10 : subject.residuals.length > 0 ? 2 : 0),
  height: (subject) => {
    const dimensions = Math.max(1, ...residualsOf(subject).map((one) => one.dimensions));
    return Math.min(360, legendHeight + 8 + dimensions * 22);
  },
  isOverTime: true,
  component: Residual,
  table: overTime(({ subject, settings }) => {
    const chosen = chosenOf(subject, settings);
    return chosen === undefined ? [] : [{ name: shown(words.of(chosen.type, chosen.model)), key: chosen.key }];
  }),
};

function chosenOf(subject: Subject, settings: JsonObject): ChannelFacts | undefined {
  const all = residualsOf(subject);
  return all.find((one) => one.key === settings["residual"]) ?? all[0];
}

function residualsOf({ channel, residuals }: Subject): readonly ChannelFacts[] {
  return channel.lane === "residual" ? [channel, ...residuals] : residuals;
}

function Residual({ episode, subject, view, width, height, settings, change, report }: PanelProps): JSX.Element | null {
  const all = residualsOf(subject);
  const chosen = chosenOf(subject, settings);
  const range = view.range.value;
  const { value, error } = useResidual(episode, subject, chosen, range, width - gutter.left - gutter.right);
  const cursor = Math.floor(view.cursor.value);
  const isSigns = chosen?.type !== "delta_q";
  const name = isSigns ? words.bends : words.differences;
  const comparison = value?.comparison ?? "";
  const summary = words.summary(name, chosen?.dimensions ?? 0, comparison);
  const problem = chosen?.problem ?? error?.message;
  const reducedBy = value?.factor ?? 1;
  const canvasHeight = Math.max(20, height - legendHeight);
  const dimensions = chosen?.dimensions ?? 0;
  const focused = view.dimension.value;
  const fitting = Math.max(1, Math.min(dimensions, Math.floor((canvasHeight - 4) / leastRow)));
  const first = focused === null ? 0 : Math.max(0, Math.min(focused, dimensions - fitting));
  const note = fitting < dimensions ? words.notShown(fitting, dimensions) : "";

  useEffect(() => {
    report({ reducedBy, summary, ...(note === "" ? {} : { note }), ...(problem ? { problem } : {}) });
  }, [reducedBy, summary, note, problem]);
  if (chosen === undefined) return null;

  let readout = "";
  if (value?.scales && value.codes !== null && cursor >= value.start) {
    const dimension = focused ?? 0;
    const code = value.codes[(cursor - value.start) * dimensions + dimension];
    const scale = scaleAt(value.scales.scales, value.scales.window, dimensions, cursor, dimension);
    if (code !== undefined)
      readout = words.atCursor(
        numberText(code),
        numberText(scale),
        numberText(code * scale),
        shown(subject.channel.unit),
      );
  }

  return (
    <div class="residual">
      <div class="residual-legend" style={{ height: `${legendHeight}px` }}>
        {all.length > 1 && (
          <label>
            <span class="hidden">{words.choose}</span>
            <select
              value={chosen.key}
              onChange={(event) => change({ ...settings, residual: event.currentTarget.value })}
            >
              {all.map((one) => (
                <option key={one.key} value={one.key}>
                  {shown(words.of(one.type, one.model))}
                </option>
              ))}
            </select>
          </label>
        )}
        <span>{name}</span>
        {isSigns && (
          <>
            <span>
              <i class="residual-mark residual-peak" /> {words.peak}
            </span>
            <span>
              <i class="residual-mark residual-dip" /> {words.dip}
            </span>
          </>
        )}
        {readout !== "" && <b>{readout}</b>}
        <span class={value?.agreement && value.agreement.agreeing < value.agreement.compared ? "residual-bad" : ""}>
          {comparison}
        </span>
      </div>
      <TimeCanvas
        view={view}
        width={width}
        height={canvasHeight}
        label={summary}
        draw={(scene) => value && drawResidual(scene, value, dimensions, first, fitting, isSigns)}
        inputs={[value, first, fitting, isSigns]}
      />
    </div>
  );
}

function drawResidual(
  scene: Scene,
  value: Shown,
  dimensions: number,
  first: number,
  count: number,
  isSigns: boolean,
): void {
  const { context, left, right, height, x } = scene;
  const row = Math.min(40, (height - 4) / count);
  const columns = Math.max(1, Math.round(right - left));
  const stepWidth = x(1) - x(0);
  const [up, down, bad] = [colour("--series-1"), colour("--series-0"), colour("--bad")];
  for (let n = 0; n < count; n++) {
    const dimension = first + n;
    const top = 2 + n * row;
    const inner = Math.max(4, row - 4);
    const middle = top + inner / 2;
    context.fillStyle = colour("--text-faint");
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(words.dimension(dimension), left - 8, middle);
    context.fillStyle = colour("--sunken");
    context.fillRect(left, top, right - left, inner);
    clipped(scene, top, top + inner, () => {
      if (value.codes === null && value.scales !== null) {
        drawWindows(scene, value.scales, value.largest, dimensions, dimension, middle, inner);
        return;
      }
      if (value.codes === null) {
        // Least and largest of each column.
        const line = value.lines[dimension];
        for (let i = 0; line && i < line.x.length; i++) {
          const [min, max] = [line.min[i] as number, line.max[i] as number];
          const at = x(line.x[i] as number);
          const high = isSigns ? Math.max(0, max) : Math.max(0, max) / 127;
          const low = isSigns ? Math.min(0, min) : Math.min(0, min) / 127;
          context.fillStyle = up;
          context.fillRect(at - 0.5, middle - (high * inner) / 2, 1, (high * inner) / 2);
          context.fillStyle = down;
          context.fillRect(at - 0.5, middle, 1, (-low * inner) / 2);
        }
        return;
      }
      const steps = value.codes.length / dimensions;
      if (isSigns && stepWidth < 2) {
        const share = shares(value.codes, dimensions, dimension, (step) => x(value.start + step) - left, columns);
        for (let column = 0; column < columns; column++) {
          const plus = share[column] as number;
          if (Number.isNaN(plus)) continue;
          context.fillStyle = up;
          context.fillRect(left + column, middle - (plus * inner) / 2, 1, (plus * inner) / 2);
          context.fillStyle = down;
          context.fillRect(left + column, middle, 1, ((1 - plus) * inner) / 2);
        }
      } else {
        const wide = Math.max(1, stepWidth - (stepWidth > 5 ? 1 : 0));
        for (let step = 0; step < steps; step++) {
          const code = value.codes[step * dimensions + dimension] as number;
          if (code === 0) continue;
          const size = isSigns ? 1 : Math.abs(code) / 127;
          const at = x(value.start + step) - wide / 2;
          // A peak stands above the middle and a dip below it, so they differ by more than colour.
          context.fillStyle = code > 0 ? up : down;
          const tall = Math.max(1, (size * inner) / 2);
          context.fillRect(at, code > 0 ? middle - tall : middle, wide, tall);
        }
      }
      if (value.agreement !== null) {
        context.fillStyle = bad;
        context.strokeStyle = colour("--surface");
        for (let step = 0; step < steps; step++) {
          if (value.agreement.differs[step * dimensions + dimension] !== 1) continue;
          const at = x(value.start + step);
          context.beginPath();
          context.moveTo(at - 5, top);
          context.lineTo(at + 5, top);
          context.lineTo(at, top + Math.min(9, inner));
          context.closePath();
          context.fill();
          context.stroke();
        }
      }
    });
    context.fillStyle = colour("--line-strong");
    context.fillRect(left, Math.round(middle), right - left, 1);
  }
}

/** The largest difference of each window, which its scale tells: 127 times as much. */
function drawWindows(
  { context, start, end, x }: Scene,
  { scales, window }: { scales: Float32Array; window: number },
  largest: number,
  dimensions: number,
  dimension: number,
  middle: number,
  inner: number,
): void {
  context.fillStyle = colour("--series-0");
  const last = Math.min(scales.length / Math.max(1, dimensions) - 1, Math.ceil(end / window));
  for (let at = Math.max(0, Math.floor(start / window)); at <= last; at++) {
    const size = ((scales[at * dimensions + dimension] as number) / largest) * (inner / 2);
    if (!(size > 0)) continue;
    context.fillRect(x(at * window), middle - size, Math.max(1, x((at + 1) * window) - x(at * window)), 2 * size);
  }
}

interface Shown {
  /** The largest scale of all dimensions. */
  readonly largest: number;
  /** The first step of `codes`. */
  readonly start: number;
  /** Signs or codes, one by one; null if there are too many. */
  readonly codes: Int8Array | null;
  readonly lines: Awaited<ReturnType<Reads["columns"]>>["lines"];
  readonly factor: number;
  readonly scales: { scales: Float32Array; window: number } | null;
  readonly agreement: Agreement | null;
  readonly comparison: string;
}

function useResidual(
  { reads }: EpisodeModel,
  subject: Subject,
  chosen: ChannelFacts | undefined,
  range: { start: number; end: number },
  width: number,
) {
  const key = chosen?.key ?? "";
  const start = Math.max(0, Math.floor(range.start) - 1);
  const end = Math.min(chosen?.length ?? 0, Math.ceil(range.end) + 1);
  const columns = Math.max(1, Math.round(width));
  const arrived = useSlowly(reads.arrived(key).value);
  return useAnswer(
    async (options): Promise<Shown | null> => {
      if (chosen === undefined || chosen.problem !== null || start >= end) return null;
      const { dimensions } = chosen;
      const isSigns = chosen.type !== "delta_q";
      const scales = isSigns ? null : await reads.scales(key, options);
      const largest = scales?.scales.reduce((most, scale) => Math.max(most, scale), 0) ?? 0;
      const blank = { start, codes: null, lines: [], factor: 1, scales, largest, agreement: null, comparison: "" };
      if ((end - start) * dimensions > mostValues && scales !== null) {
        const factor = Math.max(1, Math.round((end - start) / columns));
        return { ...blank, factor, comparison: words.windows(numberText(127 * largest)) };
      }
      if ((end - start) * dimensions > mostValues) {
        const dims = Array.from({ length: Math.min(dimensions, 64) }, (_, dimension) => dimension);
        const { lines, factor } = await reads.columns(key, dims, range, columns, options);
        return { ...blank, lines, factor, comparison: words.zoomIn };
      }
      const window = await reads.window(key, start, end, options);
      if (window.kind !== "dense") return null;
      const codes = window.values as Int8Array;
      const found = { ...blank, codes };
      const { channel } = subject;
      const omen = subject.predictions.find((one) => one.model === chosen.model);
      const needsOmen = chosen.model !== "";
      const isComparable =
        channel.lane !== "residual" &&
        channel.layout === "dense" &&
        channel.problem === null &&
        channel.dimensions === dimensions &&
        (!needsOmen || (omen?.dimensions === dimensions && omen.problem === null));
      if (!isComparable) return { ...found, comparison: words.noSignal };
      // A bend needs the step before and the one after; the observation after the last action has no residual.
      const first = Math.max(0, start - 1);
      const last = Math.min(chosen.length, end + 1);
      const [signal, predicted] = await Promise.all([
        reads.window(channel.key, first, last, options),
        needsOmen && omen ? reads.window(omen.key, first, last, options) : null,
      ]);
      if (signal.kind !== "dense") return { ...found, comparison: words.noSignal };
      const values = subjectOf(signal.values, predicted?.kind === "dense" ? predicted.values : undefined);
      const agreement =
        scales === null
          ? compareSigns(codes, start, values, first, dimensions)
          : compareCodes(
              codes,
              start,
              values.subarray((start - first) * dimensions),
              scales.scales,
              scales.window,
              dimensions,
            );
      const share = shareText(agreement.compared === 0 ? Number.NaN : agreement.agreeing / agreement.compared);
      const comparison = (isSigns ? words.agreement : words.within)(share, agreement.compared);
      return { ...found, agreement, comparison };
    },
    [reads, key, start, end, columns, arrived],
  );
}
