// Tables as CSV: every number can be read back as it was, and no text becomes a formula.

/** A cell of text. What a spreadsheet would take for a formula begins with an apostrophe. */
export function textCell(text: string): string {
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return safe !== text || /[",\r\n]/.test(safe) || safe !== safe.trim() ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** The shortest number that is read back as the same value; `is32`: as the same 32-bit float. */
export function numberCell(value: number | bigint, is32 = false): string {
  if (typeof value === "bigint") return String(value);
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (is32 && !Number.isInteger(value)) {
    for (let digits = 6; digits < 10; digits++) {
      const short = Number(value.toPrecision(digits));
      if (Math.fround(short) === value) return String(short);
    }
  }
  return Object.is(value, -0) ? "-0" : String(value);
}

/** Nanoseconds as seconds, exactly. */
export function secondsCell(nanoseconds: bigint): string {
  const size = nanoseconds < 0n ? -nanoseconds : nanoseconds;
  const rest = String(size % 1_000_000_000n)
    .padStart(9, "0")
    .replace(/0+$/, "");
  return `${nanoseconds < 0n ? "-" : ""}${size / 1_000_000_000n}${rest === "" ? "" : `.${rest}`}`;
}

/** A column of a table: its title, and the cell of each row. */
export interface Column {
  readonly title: string;
  readonly cell: (row: number) => string;
}

/** The line with the titles. */
export function headLine(columns: readonly Column[]): string {
  return `${columns.map(({ title }) => textCell(title)).join(",")}\r\n`;
}

/** The lines of `rows` rows. */
export function lines(columns: readonly Column[], rows: number): string {
  let text = "";
  for (let row = 0; row < rows; row++) {
    for (let at = 0; at < columns.length; at++) text += (at === 0 ? "" : ",") + (columns[at] as Column).cell(row);
    text += "\r\n";
  }
  return text;
}
