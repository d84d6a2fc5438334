// Lines, bands and marks of one plot.

import { infinities, type Reduced } from "../../plot-data/columns";
import type { View } from "../../state/view";
import { colour as colourOf } from "../../ui/colours";
import { type Plot as Area, clipped, drawAxis, plotArea, type Scene, TimeCanvas } from "../../ui/time-canvas";

export interface PlotLine {
  readonly line: Reduced;
  readonly colour: string;
  readonly isDashed?: boolean;
  /** What was predicted at one step about the steps after it. */
  readonly isForecast?: boolean;
  /** Integers and booleans hold until the next sample. */
  readonly isStepped?: boolean;
  /** Is written at the line where there are several. */
  readonly name?: string | undefined;
}

export interface PlotBand {
  readonly upper: Reduced;
  readonly lower: Reduced;
  readonly colour: string;
}

interface PlotProps {
  readonly view: View;
  readonly lines: readonly PlotLine[];
  readonly bands: readonly PlotBand[];
  readonly y: readonly [number, number];
  readonly width: number;
  readonly height: number;
  readonly label: string;
}

/** Room above and below the lines. */
const edge = 6;
/** Of lines. */
const thickness = 1.5;
/** Samples are marked where they are at least so far apart. */
const apart = 10;
/** Points that are drawn together. Without a graphics processor, a path of 2000 steep points takes 36 ms, and pieces of it 2. */
const together = 8;

export function Plot({ view, lines, bands, y, width, height, label }: PlotProps) {
  const draw = (scene: Scene) => {
    const area = plotArea(edge, height - edge, y[0], y[1], 0);
    drawAxis(scene, area);
    clipped(scene, 0, height, () => {
      for (const band of bands) drawBand(scene, area, band);
      for (const line of lines) drawLine(scene, area, line);
      for (const line of lines) drawInfinities(scene, area, line);
      const named = lines.filter(({ name }) => name);
      for (const [at, line] of named.entries()) drawName(scene, area, line, at / named.length, 1 / named.length);
    });
  };
  return (
    <TimeCanvas
      view={view}
      width={width}
      height={height}
      label={label}
      draw={draw}
      inputs={[lines, bands, y[0], y[1]]}
    />
  );
}

/** Runs of places that have a value: each is one piece of a line. Places without samples break nothing. */
function* runs({ min, counts }: Reduced): Generator<number[]> {
  let run: number[] = [];
  for (let at = 0; at < min.length; at++) {
    if (!Number.isNaN(min[at])) run.push(at);
    else if ((counts[at] as number) > 0 && run.length > 0) {
      yield run;
      run = [];
    }
  }
  if (run.length > 0) yield run;
}

export function drawLine(scene: Scene, area: Area, plotLine: PlotLine): void {
  const { context, x } = scene;
  const { y } = area;
  const { line, colour, isDashed, isForecast, isStepped } = plotLine;
  const dash = isForecast ? [2.5, 2.5] : isDashed ? [5, 4] : [];
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = isForecast ? 2.5 : thickness;
  context.lineJoin = "round";
  // Round ends hide where two pieces meet. They would fill the gaps of a dashed line.
  context.lineCap = dash.length > 0 ? "butt" : "round";
  context.setLineDash(dash);
  const alone: number[] = [];
  for (const run of runs(line)) {
    // Columns without samples in between would be gaps.
    if (!line.original && run.length > 1 && (run.at(-1) as number) - (run[0] as number) < run.length) {
      drawColumns(scene, area, plotLine, run);
      continue;
    }
    if (run.length === 1 && line.original) alone.push(run[0] as number);
    let [points, length, left, before] = [0, 0, 0, Number.NaN];
    const to = (right: number, now: number) => {
      if (points > 0) {
        context.lineTo(right, now);
        length += Math.hypot(right - left, now - before);
      }
      if (points++ % together === 0) {
        context.stroke();
        context.beginPath();
        context.moveTo(right, now);
        context.lineDashOffset = length;
      }
      [left, before] = [right, now];
    };
    context.beginPath();
    for (const at of run) {
      const place = x(line.x[at] as number);
      const [low, high] = [y(line.min[at] as number), y(line.max[at] as number)];
      if (isStepped && line.original && points > 0) to(place, before);
      // The end of the column that is nearer comes first.
      const isLowFirst = !(Math.abs(before - low) > Math.abs(before - high));
      to(place, isLowFirst ? low : high);
      if (low !== high) to(place, isLowFirst ? high : low);
    }
    context.stroke();
  }
  context.setLineDash([]);
  const [first, second] = [line.x[0] as number, line.x[1] as number];
  const isSparse = line.original && (line.x.length === 1 || x(second) - x(first) >= apart);
  const marked = isSparse ? Array.from(line.x, (_, at) => at) : alone;
  for (const at of marked) {
    const value = line.min[at] as number;
    if (Number.isNaN(value)) continue;
    context.beginPath();
    context.arc(x(line.x[at] as number), y(value), 2.2, 0, 7);
    context.fill();
  }
}

/**
 * Fills columns of pixels that stand next to each other, which takes a fifth of the time of stroked pieces. They end at
 * pixels of the screen, so that nothing shows between them, and each reaches the one before it.
 */
function drawColumns({ context, x }: Scene, { y }: Area, { line, isDashed }: PlotLine, run: readonly number[]): void {
  const ratio = context.getTransform().a;
  const half = ((line.x[1] as number) - (line.x[0] as number)) / 2;
  const edge = (position: number) => Math.round(x(position) * ratio) / ratio;
  let [top, bottom] = [Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY];
  let right = edge((line.x[run[0] as number] as number) - half);
  for (const at of run) {
    // Where the one before it ended, which is not always what the same sum rounds to.
    const left = right;
    right = edge((line.x[at] as number) + half);
    const [high, low] = [y(line.max[at] as number), y(line.min[at] as number)];
    const from = Math.min(high, bottom);
    const tall = Math.max(low, top) - from;
    [top, bottom] = [high, low];
    // The gaps of a dashed line leave out no spike.
    if (isDashed && at % 9 > 4 && tall < 4) continue;
    context.fillRect(left, from - thickness / 2, Math.max(right - left, 1 / ratio), tall + thickness);
  }
}

/** The name of a line stands on it, each in its own part of the width so that none covers another. */
function drawName(
  { context, start, end, x }: Scene,
  { y }: Area,
  { line, colour, name = "" }: PlotLine,
  from: number,
  share: number,
): void {
  const first = start + (from + share / 3) * (end - start);
  const at = line.x.findIndex((place, at) => place >= first && Number.isFinite(line.max[at]));
  if (at < 0) return;
  context.setLineDash([]);
  context.lineWidth = 3;
  context.strokeStyle = colourOf("--surface");
  context.fillStyle = colour;
  const place = [name, x(line.x[at] as number), y(line.max[at] as number) - 5] as const;
  context.strokeText(...place);
  context.fillText(...place);
}

function drawBand({ context, x }: Scene, { y }: Area, { upper, lower, colour }: PlotBand): void {
  context.fillStyle = colour;
  context.globalAlpha = 0.18;
  for (const run of runs(upper)) {
    for (let from = 0; from < run.length; from += together) {
      const piece = run.slice(from, from + together + 1);
      context.beginPath();
      for (const at of piece) context.lineTo(x(upper.x[at] as number), y(upper.max[at] as number));
      for (const at of piece.reverse()) context.lineTo(x(lower.x[at] as number), y(lower.min[at] as number));
      context.fill();
    }
  }
  context.globalAlpha = 1;
}

/** +∞ and −∞ stand as triangles at the edges. */
function drawInfinities({ context, x }: Scene, { top, bottom }: Area, { line, colour }: PlotLine): void {
  const { plus, minus } = infinities(line);
  context.fillStyle = colour;
  const mark = (position: number, tip: number, base: number) => {
    const at = x(position);
    context.beginPath();
    context.moveTo(at, tip);
    context.lineTo(at - 5, base);
    context.lineTo(at + 5, base);
    context.fill();
  };
  for (const position of plus) mark(position, top - 5, top + 3);
  for (const position of minus) mark(position, bottom + 5, bottom - 3);
}
