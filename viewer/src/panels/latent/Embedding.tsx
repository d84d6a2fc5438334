import type { TypedArray } from "@shard-format/core";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { useAnswer } from "../../model/hooks";
import { colourTable } from "../../plot-data/colours";
import type { Projection } from "../../plot-data/pca";
import { colour } from "../../ui/colours";
import { count } from "../../ui/format";
import { canvasSize, drawInFrames, pixelRatio } from "../../ui/pixels";
import { startWorker } from "../../worker/start";
import { useEntriesAt } from "../entry-at";
import { Heatmap } from "../heatmap/Heatmap";
import type { PanelProps, PanelStatus } from "../panel";
import { words } from "./words";

const mostValues = 16_000_000;
/** Steps of the path that are drawn before the cursor. */
const pathSteps = 300;
const mostDots = 20_000;
const margin = 28;
export const projectionHeight = 250;

/** Embeddings as a heat map, and as points in a plane with the path up to the cursor. */
export function Embedding(props: PanelProps) {
  const { episode, subject, view, width, height, report } = props;
  const { channel } = subject;
  const fits = channel.length * channel.dimensions <= mostValues;
  const answer = useAnswer<Projection>(
    (options) => (fits ? readProjection(props, options.signal) : null),
    [episode, channel, fits],
  );
  const projection = answer.value;
  const [entryAt] = useEntriesAt(episode, [channel]);

  // Both parts have something to tell: what is wrong with one of them stands as a note beside the other.
  const told = useRef<PanelStatus>({});
  const tell = (status: PanelStatus) => {
    told.current = status;
    const error = answer.error === undefined ? undefined : answer.error.message || words.failed;
    const note = !fits
      ? words.tooLarge(count(channel.length * channel.dimensions))
      : (error ?? (projection === undefined ? words.projecting : undefined));
    report(note === undefined || status.note !== undefined ? status : { ...status, note });
  };
  useEffect(() => tell(told.current), [projection, answer.error]);

  const canvas = useRef<HTMLCanvasElement>(null);
  const label = useRef<HTMLDivElement>(null);
  const place = useMemo(() => (projection ? placing(projection.points, width) : null), [projection, width]);
  const ratio = pixelRatio.value;
  const inks = [colour("--surface"), colour("--text-faint"), colour("--cursor"), colour("--line")] as const;

  const dots = useMemo(() => {
    if (!projection || !place) return null;
    const layer = new OffscreenCanvas(Math.round(width * ratio), Math.round(projectionHeight * ratio));
    const context = layer.getContext("2d");
    if (context === null) return null;
    context.scale(ratio, ratio);
    context.fillStyle = inks[1];
    context.globalAlpha = 0.35;
    const length = projection.points.length / 2;
    const every = Math.max(1, Math.ceil(length / mostDots));
    for (let i = 0; i < length; i += every) {
      const [x, y] = place(i);
      if (Number.isFinite(x)) context.fillRect(x - 1, y - 1, 2, 2);
    }
    return layer;
  }, [projection, place, inks.join(), ratio]);

  useEffect(() => {
    if (!projection || !place || !entryAt) return;
    const table = colourTable("viridis");
    const draw = (position: number) => {
      const context = canvas.current?.getContext("2d");
      if (!context) return;
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.clearRect(0, 0, width * ratio, projectionHeight * ratio);
      if (dots !== null) context.drawImage(dots, 0, 0);
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      const last = entryAt(position);
      const first = Math.max(0, last - pathSteps);
      context.lineWidth = 2;
      context.lineCap = "round";
      for (let i = first + 1; i <= last; i++) {
        const [ax, ay] = place(i - 1);
        const [bx, by] = place(i);
        if (!Number.isFinite(ax + bx)) continue;
        const at = 3 * Math.round(40 + (215 * (i - first)) / Math.max(1, last - first));
        context.strokeStyle = `rgb(${table[at]} ${table[at + 1]} ${table[at + 2]})`;
        context.beginPath();
        context.moveTo(ax, ay);
        context.lineTo(bx, by);
        context.stroke();
      }
      const [x, y] = last >= 0 ? place(last) : [Number.NaN, Number.NaN];
      if (!Number.isFinite(x)) return;
      context.beginPath();
      context.arc(x, y, 5, 0, 2 * Math.PI);
      context.fillStyle = inks[2];
      context.fill();
      context.lineWidth = 2;
      context.strokeStyle = inks[0];
      context.stroke();
    };
    return drawInFrames(() => view.cursor.value, draw);
  }, [projection, place, entryAt, dots, ...inks, ratio]);

  /** The entry whose point is nearest to the pointer, within 20 pixels. */
  const nearest = (event: MouseEvent): number => {
    const bounds = canvas.current?.getBoundingClientRect();
    if (!projection || !place || bounds === undefined) return -1;
    let [found, best] = [-1, 400];
    for (let i = 0; i < projection.points.length / 2; i++) {
      const [x, y] = place(i);
      const distance = (x - event.clientX + bounds.left) ** 2 + (y - event.clientY + bounds.top) ** 2;
      if (distance < best) [found, best] = [i, distance];
    }
    return found;
  };
  const percent = (share: number) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
  return (
    <div class="latent-embedding">
      <Heatmap {...props} height={height - projectionHeight} report={tell} />
      <div class="latent-projection" data-own-pointer style={{ height: `${projectionHeight}px` }}>
        <canvas
          ref={canvas}
          {...canvasSize(width, projectionHeight)}
          role="img"
          aria-label={words.projection}
          title={words.projection}
          onPointerMove={(event) => {
            const entry = nearest(event);
            if (label.current) label.current.textContent = entry < 0 ? "" : words.step(count(entry));
          }}
          onClick={(event) => {
            const entry = nearest(event);
            if (entry < 0) return;
            if (!channel.hasOwnClock) view.seek(entry);
            else
              void episode.reads
                .positions(channel.key, entry, entry + 1)
                .then(([position]) => view.seek(position ?? 0));
          }}
        />
        {projection !== undefined && (
          <>
            <span class="component across">{words.component(1, percent(projection.shares[0]))}</span>
            <span class="component up">{words.component(2, percent(projection.shares[1]))}</span>
            {projection.sampled < channel.length && (
              <span class="component from">{words.sampled(count(projection.sampled))}</span>
            )}
          </>
        )}
        <div class="panel-readout" ref={label} />
      </div>
    </div>
  );
}

async function readProjection({ episode, subject }: PanelProps, signal: AbortSignal | undefined): Promise<Projection> {
  const { channel } = subject;
  const options = signal === undefined ? {} : { signal };
  const window = await episode.reads.window(channel.key, 0, channel.length, options);
  if (window.kind !== "dense") throw new Error(words.failed);
  return inWorker(window.values, channel.dimensions, signal);
}

async function inWorker(values: TypedArray, width: number, signal: AbortSignal | undefined): Promise<Projection> {
  const worker = startWorker("project");
  try {
    return await new Promise((resolve, reject) => {
      signal?.addEventListener("abort", () => reject(new DOMException("cancelled", "AbortError")));
      worker.onmessage = ({ data }: MessageEvent<Projection>) => resolve(data);
      worker.onerror = () => reject(new Error(words.failed));
      worker.postMessage({ values, width });
    });
  } finally {
    worker.terminate();
  }
}

/** Where the point of an entry is, with the same scale in both directions. */
function placing(points: Float32Array, width: number): (entry: number) => [number, number] {
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  for (let i = 0; i < points.length; i += 2) {
    const [x, y] = [points[i] as number, points[i + 1] as number];
    if (!Number.isFinite(x + y)) continue;
    left = Math.min(left, x);
    right = Math.max(right, x);
    low = Math.min(low, y);
    high = Math.max(high, y);
  }
  const scale = Math.min(
    (width - 2 * margin) / Math.max(right - left, 1e-30),
    (projectionHeight - 2 * margin) / Math.max(high - low, 1e-30),
  );
  const [x0, y0] = [(left + right) / 2, (low + high) / 2];
  return (entry) => [
    width / 2 + ((points[2 * entry] as number) - x0) * scale,
    projectionHeight / 2 - ((points[2 * entry + 1] as number) - y0) * scale,
  ];
}
