// Round numbers along an axis, and numbers as texts.

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

/** A number as it stands beside others: short, and exact enough to tell neighbours apart. */
export function short(value: number, digits = 4): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e7 || size < 1e-4)) return value.toExponential(digits - 2).replace("-", "−");
  if (Number.isInteger(value)) return value.toLocaleString("en").replace("-", "−");
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

const units = ["bytes", "KB", "MB", "GB", "TB"];

/** A number of bytes in words: `1.5 MB`. */
export function sizeText(bytes: number): string {
  let unit = 0;
  let value = bytes;
  for (; value >= 1000 && unit < units.length - 1; unit++) value /= 1000;
  const digits = unit === 0 || value >= 100 ? 0 : 1;
  return `${value.toFixed(digits)} ${bytes === 1 ? "byte" : units[unit]}`;
}

/** A share from 0 to 1 as per cent; only what is everything is 100 %. */
export function shareText(share: number): string {
  if (Number.isNaN(share)) return "–";
  const percent = share * 100;
  if (share < 1 && percent > 99.9) return "> 99.9 %";
  if (share > 0 && percent < 0.1) return "< 0.1 %";
  return `${percent === Math.round(percent) ? percent : percent.toFixed(1)} %`;
}
