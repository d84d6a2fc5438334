// Round numbers along an axis, and shares as texts.

import { value as numberText } from "./format";

/** At most about `most` round values from `min` to `max`, in order. */
export function ticks(min: number, max: number, most: number): number[] {
  const span = max - min;
  if (!(span > 0) || !Number.isFinite(span) || most < 1) return [];
  const rough = span / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10) * power;
  const first = Math.ceil(min / step);
  const last = Math.floor(max / step);
  if (!Number.isFinite(first) || last - first > 1000) return [];
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, at) => {
    // 3 × 0.1 is 0.30000000000000004: what is shown has as many digits as the step.
    return Number(((first + at) * step).toPrecision(12));
  });
}

/** The number at a tick: short, because the margin is narrow. */
export function tickText(value: number): string {
  const text = numberText(value);
  if (text.length <= 6) return text;
  return value
    .toExponential(2)
    .replace(/\.?0+e/, "e")
    .replace("e+", "e")
    .replaceAll("-", "−");
}

/** A share from 0 to 1 as per cent; only what is everything is 100 %. */
export function shareText(share: number): string {
  if (Number.isNaN(share)) return "–";
  const percent = share * 100;
  if (share < 1 && percent > 99.9) return "> 99.9 %";
  if (share > 0 && percent < 0.1) return "< 0.1 %";
  return `${percent === Math.round(percent) ? percent : percent.toFixed(1)} %`;
}
