// A drawing over the shared time axis. It is drawn again when the range, the theme or its inputs change. The stage has
// the cursor and the gestures.

import { effect, useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { gutter } from "../panels/panel";
import { ticksOf } from "../stage/axis";
import type { View } from "../state/view";
import { colour, theme } from "./colours";
import { pixelRatio } from "./pixels";
import { ticks, tickText } from "./ticks";
import "./time-canvas.css";

/** What a drawing gets. Lengths are CSS pixels. */
export interface Scene {
  readonly context: CanvasRenderingContext2D;
  readonly width: number;
  readonly height: number;
  /** The edges of the plot. */
  readonly left: number;
  readonly right: number;
  readonly start: number;
  readonly end: number;
  /** Where a position of the time axis is. */
  readonly x: (position: number) => number;
}

interface Props {
  readonly view: View;
  readonly width: number;
  readonly height: number;
  /** What the drawing shows, in words. */
  readonly label: string;
  readonly draw: (scene: Scene) => void;
  /** What `draw` depends on, beside the signals that it reads. */
  readonly inputs: readonly unknown[];
}

export function TimeCanvas({ view, width, height, label, draw, inputs }: Props): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [left, right] = [gutter.left, Math.max(gutter.left + 1, width - gutter.right)];

  // While the range moves, one drawing a frame is enough, with the new lines if they are there by then.
  const waiting = useRef(0);
  const moved = useSignal(0);
  useLayoutEffect(() => {
    const stop = effect(() => {
      view.range.value;
      view.axisRate.value;
      cancelAnimationFrame(waiting.current);
      waiting.current = requestAnimationFrame(() => {
        moved.value++;
      });
    });
    return () => {
      stop();
      cancelAnimationFrame(waiting.current);
    };
  }, [view]);

  useLayoutEffect(
    () =>
      effect(() => {
        const element = canvas.current;
        const context = element?.getContext("2d");
        if (!element || !context || width <= 0 || height <= 0) return;
        moved.value;
        theme.value;
        cancelAnimationFrame(waiting.current);
        const ratio = pixelRatio.value;
        const { start, end } = view.range.peek();
        const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
        // Setting a size makes new memory, even if it is the same.
        if (element.width !== wide) element.width = wide;
        if (element.height !== high) element.height = high;
        context.setTransform(ratio, 0, 0, ratio, 0, 0);
        context.clearRect(0, 0, width, height);
        context.font = font();
        const scale = (right - left) / Math.max(1e-9, end - start);
        const x = (position: number) => left + (position - start) * scale;
        const scene = { context, width, height, left, right, start, end, x };
        drawTimes(scene, view);
        draw(scene);
      }),
    [view, width, height, ...inputs],
  );

  return (
    <canvas
      ref={canvas}
      class="time-canvas"
      role="img"
      aria-label={label}
      style={{ width: `${width}px`, height: `${height}px` }}
    />
  );
}

/** Lines at the labels of the ruler. */
function drawTimes({ context, left, right, height, x }: Scene, view: View): void {
  context.fillStyle = colour("--grid");
  const width = right - left + gutter.left + gutter.right;
  for (const { position } of ticksOf(view.range.peek(), width, view.axisRate.peek())) {
    context.fillRect(Math.round(x(position)), 0, 1, height);
  }
}

export function font(size = 11): string {
  return `${size}px ${colour("--font")}`;
}

/** A part of a drawing with its own y axis. */
export interface Plot {
  readonly top: number;
  readonly bottom: number;
  readonly min: number;
  readonly max: number;
  readonly y: (value: number) => number;
}

/** The scale from `min` to `max`, a little wider so that lines do not touch the edges. */
export function plotArea(top: number, bottom: number, min: number, max: number, pad = 0.06): Plot {
  let [low, high] = [min, max];
  if (!(low <= high)) [low, high] = [0, 1];
  if (low === high) [low, high] = low === 0 ? [-1, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  const room = (high / 2 - low / 2) * 2 * pad;
  low -= room;
  high += room;
  return {
    top,
    bottom,
    min: low,
    max: high,
    y: (value) => bottom - ((value - low) / (high - low)) * (bottom - top),
  };
}

/** Lines and numbers of a y axis, and its title. */
export function drawAxis(scene: Scene, plot: Plot, title = ""): void {
  const { context, left, right } = scene;
  context.save();
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.lineWidth = 1;
  const size = plot.bottom - plot.top;
  // A low plot needs a number beside 0, too.
  const most = Math.max(2, Math.min(4, Math.floor(size / 12)), Math.floor(size / 18));
  for (const value of ticks(plot.min, plot.max, most)) {
    const y = Math.round(plot.y(value)) + 0.5;
    context.strokeStyle = colour(value === 0 ? "--line-strong" : "--grid");
    context.beginPath();
    context.moveTo(left, y);
    context.lineTo(right, y);
    context.stroke();
    context.fillStyle = colour("--text-faint");
    if (y > plot.top + 4 && y < plot.bottom - 3) context.fillText(tickText(value), left - 8, y);
  }
  if (title !== "") {
    context.translate(11, (plot.top + plot.bottom) / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillStyle = colour("--text-soft");
    context.fillText(title, 0, 0, plot.bottom - plot.top);
  }
  context.restore();
}

/** Draws inside the plot only. */
export function clipped({ context, left, right }: Scene, top: number, bottom: number, draw: () => void): void {
  context.save();
  context.beginPath();
  context.rect(left, top, right - left, bottom - top);
  context.clip();
  draw();
  context.restore();
}
