import type { JsonObject } from "@shard-format/core";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { useAnswer, useSlowly } from "../../model/hooks";
import type { Columns } from "../../model/reads";
import { colourMaps } from "../../plot-data/colours";
import { Extent } from "../../plot-data/extent";
import { colour } from "../../ui/colours";
import { shown } from "../../ui/escape";
import { count, value as formatted } from "../../ui/format";
import { canvasSize, pixelRatio } from "../../ui/pixels";
import { ColourBar, ColourMenu, Controls, controlsHeight, Menu } from "../controls";
import { findingsOf } from "../findings/found";
import { gutter, type PanelProps } from "../panel";
import { type Kind, kinds, outermost, paintRows, placesIn, type Row, rowOf, type Span } from "./cells";
import { words } from "./words";
import "./heatmap.css";

export const mostDimensions = 1024;
const rangeKinds = ["all", "visible", "rows"] as const;
/** Rows of fewer pixels of the screen than this show no halves. */
const halves = 6;

type HeatmapProps = Pick<
  PanelProps,
  "episode" | "subject" | "view" | "width" | "height" | "settings" | "change" | "report"
>;

export function Heatmap({ episode, subject, view, width, height, settings, change, report }: HeatmapProps) {
  const { channel } = subject;
  const dimensions = channel.dimensions;
  const dims = useMemo(() => Array.from({ length: Math.min(dimensions, mostDimensions) }, (_, i) => i), [dimensions]);
  const range = view.range.value;
  const inner = {
    width: Math.max(1, Math.round(width - gutter.left - gutter.right)),
    height: Math.max(20, height - controlsHeight),
  };
  const map = colourMaps.find((one) => one === settings["map"]) ?? "viridis";
  const kind: Kind = kinds.find((one) => one === settings["cells"]) ?? "both";
  const rangeKind = rangeKinds.find((one) => one === settings["range"]) ?? "all";
  const arrived = useSlowly(episode.reads.arrived(channel.key).value);
  const fits = dimensions <= mostDimensions;
  const answer = useAnswer<Columns>(
    (options) => (fits ? episode.reads.columns(channel.key, dims, range, inner.width, options) : null),
    [episode, channel, range.start, range.end, inner.width, arrived],
  );
  const extents = useAnswer(
    (options) => (fits ? episode.reads.extent(channel.key, dims, options) : null),
    [episode, channel, arrived],
  ).value;
  const drawn = answer.value;

  const spans = useMemo((): readonly Span[] => {
    const rows =
      rangeKind === "visible" && drawn !== undefined
        ? drawn.lines.map(({ min, max }) => {
            const extent = new Extent();
            for (let i = 0; i < min.length; i++) extent.merge(min[i] as number, max[i] as number, 0);
            return extent;
          })
        : (extents ?? []);
    if (rangeKind === "rows") return rows.map(({ min, max }) => ({ min, max }));
    const all = new Extent();
    for (const { min, max } of rows) all.merge(min, max, 0);
    return rows.map(() => ({ min: all.min, max: all.max }));
  }, [drawn, extents, rangeKind]);
  const legend = spans[0] ?? { min: Number.NaN, max: Number.NaN };

  const canvas = useRef<HTMLCanvasElement>(null);
  const ground = [colour("--sunken"), colour("--text-faint"), colour("--line-strong")] as const;
  const ratio = pixelRatio.value;
  // Dimensions that share a row of pixels, if there are more dimensions than rows.
  const shared = Math.max(1, Math.ceil(dimensions / (inner.height * ratio)));

  useEffect(() => {
    if (!fits) return report({ problem: words.tooMany(count(dimensions)) });
    if (answer.error !== undefined) return report({ problem: answer.error.message });
    if (drawn === undefined) return report({ note: words.reading("0 %") });
    findingsOf(episode).see(channel, drawn);
    report({
      summary: words.summary(count(dimensions), formatted(legend.min), formatted(legend.max)),
      ...(drawn.factor > 1 ? { reducedBy: Math.round(drawn.factor) } : {}),
      ...(drawn.read < 1
        ? { note: words.reading(`${Math.floor(drawn.read * 100)} %`) }
        : shared > 1
          ? { note: words.shared(shared) }
          : {}),
    });
  }, [drawn, answer.error, legend.min, legend.max, shared]);

  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, inner.height);
    context.fillStyle = ground[0];
    context.fillRect(gutter.left, 0, inner.width, inner.height);
    if (drawn === undefined || drawn.lines.length === 0) return;
    // What is there belongs to the range that it was asked for, until columns of the new one arrive.
    const scale = inner.width / (range.end - range.start);
    const left = gutter.left + (drawn.range.start - range.start) * scale;
    const wide = (drawn.range.end - drawn.range.start) * scale;
    const rowHeight = (inner.height * ratio) / drawn.lines.length;
    const rows: Row[] = [];
    let group: Row[] = [];
    for (const [dimension, line] of drawn.lines.entries()) {
      const places = placesIn(line, drawn.range.start, drawn.range.end, inner.width);
      const pair = rowOf(line, places, spans[dimension] ?? legend, map, line.original ? "largest" : kind);
      if (rowHeight >= halves) rows.push(...pair);
      else {
        group.push(...pair);
        if ((dimension + 1) % shared === 0 || dimension === drawn.lines.length - 1) {
          rows.push(outermost(group));
          group = [];
        }
      }
    }
    const image = context.createImageData(inner.width, rows.length);
    paintRows(rows, map, image.data);
    const cells = new OffscreenCanvas(inner.width, rows.length);
    cells.getContext("2d")?.putImageData(image, 0, 0);
    context.save();
    context.beginPath();
    context.rect(gutter.left, 0, inner.width, inner.height);
    context.clip();
    context.imageSmoothingEnabled = false;
    context.drawImage(cells, left, 0, wide, inner.height);
    context.restore();
    drawDimensions(context, drawn.lines.length, inner.height, ground[1]);
  }, [drawn, spans, map, kind, range.start, range.end, width, inner.height, ...ground, ratio]);

  const set = (changes: JsonObject) => change({ ...settings, ...changes });
  const hover = useRef<HTMLDivElement>(null);
  const tell = (event: MouseEvent) => {
    const box = hover.current;
    const bounds = canvas.current?.getBoundingClientRect();
    if (box === null || bounds === undefined || drawn === undefined) return;
    const [x, y] = [event.clientX - bounds.left - gutter.left, event.clientY - bounds.top];
    const dimension = Math.floor((y / inner.height) * drawn.lines.length);
    const line = drawn.lines[dimension];
    const places = line && placesIn(line, drawn.range.start, drawn.range.end, inner.width);
    const place = places?.[Math.floor(x)] ?? -1;
    if (line === undefined || place < 0 || x < 0) {
      box.textContent = "";
      return;
    }
    const [min, max] = [line.min[place] as number, line.max[place] as number];
    const text = Number.isNaN(min)
      ? words.noValue
      : min === max
        ? formatted(min)
        : words.between(formatted(min), formatted(max));
    const unit = channel.unit === "" || Number.isNaN(min) ? "" : ` ${shown(channel.unit)}`;
    box.textContent = `${words.dimension(dimension)}  ${text}${unit}`;
  };

  return (
    <div class="heatmap">
      <div class="heatmap-place" style={{ height: `${inner.height}px` }}>
        <canvas
          ref={canvas}
          role="img"
          aria-label={words.title}
          {...canvasSize(width, inner.height)}
          onPointerMove={tell}
          onPointerLeave={() => {
            if (hover.current) hover.current.textContent = "";
          }}
        />
        <div class="panel-readout" ref={hover} />
        {rangeKind !== "rows" && (
          <ColourBar map={map} min={formatted(legend.min)} max={formatted(legend.max)} unit={shown(channel.unit)} />
        )}
      </div>
      <Controls>
        <Menu
          label={words.range}
          value={rangeKind}
          options={rangeKinds.map((value) => ({ value, text: words.ranges[value] }))}
          choose={(value) => set({ range: value })}
        />
        <Menu
          label={words.cells}
          value={kind}
          options={kinds.map((value) => ({ value, text: words.kinds[value] }))}
          choose={(value) => set({ cells: value })}
        />
        <ColourMenu label={words.colours} map={map} set={set} />
      </Controls>
    </div>
  );
}

/** Numbers of dimensions at the left edge, at least 16 pixels from each other. */
function drawDimensions(context: CanvasRenderingContext2D, dimensions: number, height: number, ink: string): void {
  const row = height / dimensions;
  let step = 1;
  while (step * row < 16) step *= 2;
  context.fillStyle = ink;
  context.font = "11px ui-sans-serif, system-ui, sans-serif";
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (let dimension = 0; dimension < dimensions; dimension += step) {
    const y = Math.min(Math.max((dimension + 0.5) * row, 6), height - 6);
    context.fillText(String(dimension), gutter.left - 8, y);
  }
}
