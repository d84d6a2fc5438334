// How far a prediction is from the truth, over a selection.

import { type Samples, valueAt } from "./samples";

/** A prediction of one dimension. `std` is its standard deviation, `edges` are those of a band, if the model gives them. */
export interface Prediction {
  readonly mean: Samples;
  readonly std?: Samples | undefined;
  readonly edges?: readonly [lower: Samples, upper: Samples] | undefined;
}

/** What a selection comes to. What has no value is NaN: of no samples, or without a standard deviation. */
export interface Metrics {
  /** Steps where truth and prediction are both finite. */
  readonly count: number;
  /** Steps left out because one of them is missing or infinite. */
  readonly leftOut: number;
  readonly mae: number;
  readonly rmse: number;
  /** Mean of prediction − truth. */
  readonly bias: number;
  /** The largest error, and the step where it is; −1 if there is none. */
  readonly worst: number;
  readonly worstStep: number;
  /** The share of truth within 1, 2 and 3 standard deviations of the mean. */
  readonly inside: readonly [number, number, number];
  /** The mean negative log-likelihood of the truth, in nats, for a normal distribution. */
  readonly nll: number;
  /** Steps with a standard deviation above 0, which `inside` and `nll` are about. */
  readonly judged: number;
  /** The share of truth between the edges of the band, of the steps that have both: `bounded`. */
  readonly covered: number;
  readonly bounded: number;
}

/**
 * The metrics of the steps from `from` to `to`. With `pairs`, step `from + i` of the truth is compared with step
 * `pairs[i]` of the prediction, and −1 leaves it out.
 */
export function metrics(
  truth: Samples,
  { mean, std, edges }: Prediction,
  from: number,
  to: number,
  pairs?: Int32Array,
): Metrics {
  let count = 0;
  let sum = 0;
  let sumOfErrors = 0;
  let worst = Number.NaN;
  let worstStep = -1;
  // The sum of squares is kept as scale² · squares: the square of a large error would be infinite.
  let scale = 0;
  let squares = 0;
  let judged = 0;
  let likelihood = 0;
  const within = [0, 0, 0];
  let [bounded, covered] = [0, 0];
  for (let step = from; step < to; step++) {
    const other = pairs === undefined ? step : (pairs[step - from] ?? -1);
    const error = valueAt(mean, other) - valueAt(truth, step);
    if (!Number.isFinite(error)) continue;
    const size = Math.abs(error);
    count++;
    sum += (size - sum) / count;
    sumOfErrors += (error - sumOfErrors) / count;
    if (size > scale) {
      squares = squares * (scale / size) ** 2 + 1;
      scale = size;
    } else if (size > 0) {
      squares += (size / scale) ** 2;
    }
    if (!(size <= worst)) {
      worst = size;
      worstStep = step;
    }
    if (edges !== undefined) {
      const [low, high] = [valueAt(edges[0], other), valueAt(edges[1], other)];
      const value = valueAt(truth, step);
      // An infinite edge is an edge.
      if (!Number.isNaN(low) && !Number.isNaN(high)) bounded++;
      if (low <= value && value <= high) covered++;
    }
    const deviation = std === undefined ? Number.NaN : valueAt(std, other);
    if (!(deviation > 0 && deviation < Infinity)) continue;
    judged++;
    for (let k = 1; k <= 3; k++) if (size <= k * deviation) within[k - 1] = (within[k - 1] as number) + 1;
    const nll = Math.log(deviation) + 0.5 * Math.log(2 * Math.PI) + 0.5 * (size / deviation) ** 2;
    likelihood += (nll - likelihood) / judged;
  }
  const share = (k: number) => (judged === 0 ? Number.NaN : (within[k] as number) / judged);
  return {
    count,
    leftOut: Math.max(0, to - from) - count,
    mae: count === 0 ? Number.NaN : sum,
    rmse: count === 0 ? Number.NaN : scale * Math.sqrt(squares / count),
    bias: count === 0 ? Number.NaN : sumOfErrors,
    worst,
    worstStep,
    inside: [share(0), share(1), share(2)],
    nll: judged === 0 ? Number.NaN : likelihood,
    judged,
    covered: bounded === 0 ? Number.NaN : covered / bounded,
    bounded,
  };
}
