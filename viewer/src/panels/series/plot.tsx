// One uPlot chart: lines over the shared axis. It draws; the stage has the cursor and the gestures.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import type { Range } from "../../model/reads";
import { infinities, type Reduced, toPlot } from "../../plot-data/columns";
import { ticksOf } from "../../stage/axis";
import { colour, theme } from "../../ui/colours";
import * as format from "../../ui/format";
import { gutter } from "../panel";

export interface PlotLine {
  readonly line: Reduced;
  readonly colour: string;
  readonly isDashed?: boolean;
  /** Integers and booleans hold until the next sample. */
  readonly isStepped?: boolean;
  /** An edge of a band: it is not drawn, only what is between it and the next line. */
  readonly isEdge?: boolean;
}

interface PlotProps {
  readonly lines: readonly PlotLine[];
  readonly range: Range;
  readonly y: readonly [number, number];
  readonly width: number;
  readonly height: number;
  /** Steps per second, if the labels of the axis are seconds. */
  readonly rate: number | null;
  readonly label: string;
  /** A line at zero. */
  readonly hasZero?: boolean;
}

export function Plot(props: PlotProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const now = useRef(props);
  now.current = props;
  const { lines, width, height, range, y } = props;
  const shownTheme = theme.value;
  const form = lines.map(({ colour: stroke, isDashed, isStepped, isEdge, line }) =>
    [stroke, isDashed, isStepped && line.original, isEdge].join(),
  );
  // A new chart where other lines, other colours or another way to draw them ask for one.
  useEffect(() => {
    if (place.current === null) return;
    plot.current = new uPlot(
      optionsOf(now),
      toPlot(now.current.lines.map(({ line }) => line)) as uPlot.AlignedData,
      place.current,
    );
    return () => {
      plot.current?.destroy();
      plot.current = null;
    };
  }, [form.join(";"), shownTheme]);
  useEffect(() => {
    plot.current?.setSize({ width, height });
  }, [width, height]);
  useEffect(() => {
    plot.current?.setData(toPlot(lines.map(({ line }) => line)) as uPlot.AlignedData, false);
    plot.current?.redraw(false, true);
  }, [lines]);
  useEffect(() => {
    const chart = plot.current;
    if (chart === null) return;
    chart.batch(() => {
      chart.setScale("x", { min: range.start, max: range.end });
      chart.setScale("y", { min: y[0], max: y[1] });
    });
  });
  return <div ref={place} class="plot" role="img" aria-label={props.label} style={{ height: `${height}px` }} />;
}

function optionsOf(now: { readonly current: PlotProps }): uPlot.Options {
  const { lines, width, height } = now.current;
  const grid = colour("--grid");
  const text = colour("--text-faint");
  const edges = lines.map(({ isEdge }, at) => (isEdge ? at + 1 : 0)).filter((at) => at > 0);
  const bands: uPlot.Band[] = [];
  for (let at = 0; at + 1 < edges.length; at += 2) {
    const [upper, lower] = [edges[at] as number, edges[at + 1] as number];
    bands.push({ series: [upper, lower], fill: lines[upper - 1]?.colour ?? text });
  }
  const stepped = uPlot.paths.stepped?.({ align: 1 });
  return {
    width,
    height,
    padding: [6, gutter.right, 6, 0],
    cursor: { show: false },
    legend: { show: false },
    scales: {
      x: { time: false, range: () => [now.current.range.start, now.current.range.end] },
      y: { range: () => [now.current.y[0], now.current.y[1]] },
    },
    axes: [
      { show: false },
      {
        size: gutter.left,
        stroke: text,
        font: `11px ${getComputedStyle(document.body).fontFamily}`,
        gap: 6,
        space: 26,
        grid: { stroke: grid, width: 1 },
        ticks: { show: false },
        values: (_plot, splits) => splits.map((one) => (one === null ? "" : format.value(Number(one.toPrecision(8))))),
      },
    ],
    series: [
      {},
      ...lines.map(({ colour: stroke, isDashed, isStepped, isEdge, line }): uPlot.Series => {
        const series: uPlot.Series = {
          stroke: isEdge ? "transparent" : stroke,
          width: isEdge ? 0 : 1.5,
          spanGaps: false,
          points: { show: !isEdge && showPoints(now), size: 4, fill: stroke },
        };
        if (isDashed) series.dash = [5, 4];
        if (isStepped && line.original && stepped) series.paths = stepped;
        return series;
      }),
    ],
    bands,
    hooks: {
      drawClear: [(chart) => drawGrid(chart, now.current, grid)],
      draw: [(chart) => drawInfinities(chart, now.current)],
    },
  };
}

/** Single samples are marked where they stand far enough from each other, or alone between gaps. */
function showPoints(now: { readonly current: PlotProps }) {
  return (_plot: uPlot, series: number): boolean => {
    const { lines, width } = now.current;
    const line = lines[series - 1]?.line;
    return line?.original === true && line.x.length * 10 < width;
  };
}

function drawGrid(chart: uPlot, { range, width, rate, hasZero }: PlotProps, stroke: string): void {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.strokeStyle = stroke;
  ctx.lineWidth = devicePixelRatio;
  ctx.beginPath();
  for (const { position } of ticksOf(range, width, rate)) {
    const x = Math.round(chart.valToPos(position, "x", true)) + 0.5;
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
  }
  ctx.stroke();
  if (hasZero) {
    ctx.strokeStyle = colour("--line-strong");
    ctx.beginPath();
    const y = Math.round(chart.valToPos(0, "y", true)) + 0.5;
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
  }
  ctx.restore();
}

/** +∞ and −∞ stand as triangles at the edges. */
function drawInfinities(chart: uPlot, { lines }: PlotProps): void {
  const { ctx, bbox } = chart;
  const size = 5 * devicePixelRatio;
  ctx.save();
  for (const { line, colour: fill, isEdge } of lines) {
    if (isEdge) continue;
    const { plus, minus } = infinities(line);
    ctx.fillStyle = fill;
    const mark = (position: number, y: number, direction: number) => {
      const x = chart.valToPos(position, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) return;
      ctx.beginPath();
      ctx.moveTo(x, y);
      ctx.lineTo(x - size, y + direction * size * 1.6);
      ctx.lineTo(x + size, y + direction * size * 1.6);
      ctx.fill();
    };
    for (const position of plus) mark(position, bbox.top, 1);
    for (const position of minus) mark(position, bbox.top + bbox.height, -1);
  }
  ctx.restore();
}
