// Numbers, sizes and times as people read them.

/** A value with enough digits to tell it from its neighbours in a plot. */
export function value(number: number): string {
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "+∞" : "−∞";
  if (Number.isInteger(number) && Math.abs(number) < 1e9) return minus(String(number));
  const size = Math.abs(number);
  return minus(size < 1e-3 || size >= 1e6 ? number.toExponential(3) : number.toPrecision(5).replace(/\.?0+$/, ""));
}

/** A value of a typed array, without loss: for readouts of exact values. */
export function exact(number: number | bigint): string {
  return typeof number === "bigint" ? minus(String(number)) : value(number);
}

function minus(text: string): string {
  return text.replace(/^-/, "−").replace(/e-/, "e−").replace(/e\+/, "e");
}

export function count(number: number): string {
  return number.toLocaleString("en");
}

const units = ["B", "KB", "MB", "GB", "TB"];

export function bytes(size: number): string {
  let unit = 0;
  let rest = size;
  for (; rest >= 1000 && unit < units.length - 1; unit++) rest /= 1000;
  return `${unit === 0 || rest >= 100 ? Math.round(rest) : rest.toFixed(1)} ${units[unit]}`;
}

/** Seconds as `12.34 s`, `3:07.5` or `1:02:03`. */
export function duration(seconds: number): string {
  const size = Math.abs(seconds);
  if (size < 60) return `${seconds.toFixed(size < 10 ? 2 : 1)} s`;
  const hours = Math.floor(size / 3600);
  const minutes = Math.floor((size % 3600) / 60);
  const rest = size % 60;
  const sign = seconds < 0 ? "−" : "";
  if (hours === 0) return `${sign}${minutes}:${rest.toFixed(1).padStart(4, "0")}`;
  return `${sign}${hours}:${String(minutes).padStart(2, "0")}:${String(Math.floor(rest)).padStart(2, "0")}`;
}

export function shape(sizes: readonly number[]): string {
  return sizes.length === 0 ? "" : `[${sizes.join(", ")}]`;
}
