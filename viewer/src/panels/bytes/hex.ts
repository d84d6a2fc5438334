// Bytes as lines of hex digits and letters.

export const lineLength = 16;

export interface HexLine {
  readonly offset: string;
  /** 16 pairs of digits in two halves; shorter at the end. */
  readonly hex: string;
  readonly text: string;
}

/** Lines of bytes that begin at `offset`, a multiple of 16, of something of `size` bytes. */
export function hexLines(bytes: Uint8Array, offset: number, size: number): HexLine[] {
  const digits = Math.max(8, size.toString(16).length);
  const lines: HexLine[] = [];
  for (let at = 0; at < bytes.length; at += lineLength) {
    const line = bytes.subarray(at, at + lineLength);
    const pairs = Array.from(line, (byte) => byte.toString(16).padStart(2, "0"));
    const hex = `${pairs.slice(0, 8).join(" ")}  ${pairs.slice(8).join(" ")}`.trimEnd();
    const text = Array.from(line, (byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "·")).join("");
    lines.push({ offset: (offset + at).toString(16).padStart(digits, "0"), hex, text });
  }
  return lines;
}

/** An offset as people type it, decimal or hex; null if it is none. */
export function parseOffset(text: string): number | null {
  const trimmed = text.trim().replace(/[\s_,]/g, "");
  if (!/^(?:0x[0-9a-f]+|[0-9]+)$/i.test(trimmed)) return null;
  const offset = Number(trimmed);
  return Number.isSafeInteger(offset) ? offset : null;
}
