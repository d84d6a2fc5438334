// The shared axis: from steps to pixels and back, and where its labels are.

import type { Range } from "../model/reads";
import { gutter } from "../panels/panel";
import * as format from "../ui/format";

/** Where a position is in a plot, in pixels. */
export function toPixel(position: number, range: Range, width: number): number {
  const inner = Math.max(1, width - gutter.left - gutter.right);
  return gutter.left + ((position - range.start) / (range.end - range.start)) * inner;
}

export function toPosition(pixel: number, range: Range, width: number): number {
  const inner = Math.max(1, width - gutter.left - gutter.right);
  return range.start + ((pixel - gutter.left) / inner) * (range.end - range.start);
}

export interface Tick {
  readonly position: number;
  readonly label: string;
}

/** Round positions about `apart` pixels from each other. `rate`: labels are seconds; null: steps. */
export function ticksOf(range: Range, width: number, rate: number | null, apart = 96): Tick[] {
  const inner = Math.max(1, width - gutter.left - gutter.right);
  const scale = rate ?? 1;
  const least = ((range.end - range.start) / scale) * (apart / inner);
  let step = 10 ** Math.floor(Math.log10(least));
  for (const factor of [1, 2, 5, 10]) {
    if (step * factor >= least) {
      step *= factor;
      break;
    }
  }
  if (rate === null) step = Math.max(1, step);
  const ticks: Tick[] = [];
  const last = Math.floor(range.end / scale / step);
  for (let at = Math.ceil(range.start / scale / step); at <= last && ticks.length < 100; at++) {
    const value = at * step;
    ticks.push({ position: value * scale, label: rate === null ? format.count(value) : seconds(value, step) });
  }
  return ticks;
}

function seconds(value: number, step: number): string {
  if (Math.abs(value) >= 60 && step >= 1) return format.duration(value).replace(/\.0$/, "");
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return `${value.toFixed(digits).replace("-", "−")} s`;
}
