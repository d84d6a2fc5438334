// Metrics of selections that are read piece by piece, and of several dimensions together.

import type { Metrics } from "../plot-data/metrics";

/** The metrics of two sets of pairs together. */
export function joinMetrics(a: Metrics, b: Metrics): Metrics {
  const count = a.count + b.count;
  const judged = a.judged + b.judged;
  const mean = (x: number, xs: number, y: number, ys: number) => {
    if (xs === 0) return y;
    return ys === 0 ? x : x + (y - x) * (ys / (xs + ys));
  };
  const both = (get: (one: Metrics) => number) => mean(get(a), a.count, get(b), b.count);
  const inside = (k: 0 | 1 | 2) => mean(a.inside[k], a.judged, b.inside[k], b.judged);
  const isWorse = !(a.worst >= b.worst);
  // Scaled by the larger one, squares of large errors stay finite.
  const scale = Math.max(a.count === 0 ? 0 : a.rmse, b.count === 0 ? 0 : b.rmse) || 1;
  return {
    count,
    leftOut: a.leftOut + b.leftOut,
    mae: both(({ mae }) => mae),
    rmse: count === 0 ? Number.NaN : scale * Math.sqrt(both(({ rmse }) => (rmse / scale) ** 2)),
    bias: both(({ bias }) => bias),
    worst: isWorse && b.count > 0 ? b.worst : a.worst,
    worstStep: isWorse && b.count > 0 ? b.worstStep : a.worstStep,
    inside: [inside(0), inside(1), inside(2)],
    nll: mean(a.nll, a.judged, b.nll, b.judged),
    judged,
    covered: mean(a.covered, a.bounded, b.covered, b.bounded),
    bounded: a.bounded + b.bounded,
  };
}

export const noMetrics: Metrics = {
  count: 0,
  leftOut: 0,
  mae: Number.NaN,
  rmse: Number.NaN,
  bias: Number.NaN,
  worst: Number.NaN,
  worstStep: -1,
  inside: [Number.NaN, Number.NaN, Number.NaN],
  nll: Number.NaN,
  judged: 0,
  covered: Number.NaN,
  bounded: 0,
};

/** Which of two is smaller by more than rounding; null if neither is, or one of them is missing. */
export function better(a: number, b: number): "a" | "b" | null {
  if (!Number.isFinite(a) || !Number.isFinite(b)) return null;
  if (Math.abs(a - b) <= 1e-9 * Math.max(Math.abs(a), Math.abs(b))) return null;
  return a < b ? "a" : "b";
}
