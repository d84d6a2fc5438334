// Colour maps, and numbers as pixels.

import { forPieces, type Numbers } from "./samples";

export const colourMaps = ["viridis", "grey", "turbo"] as const;

/** Viridis for measurements, grey for pictures; turbo has no order of lightness and stands last. */
export type ColourMap = (typeof colourMaps)[number];

// Colours at equal distances; those between them lie on smooth curves.
const anchors: Record<ColourMap, string> = {
  viridis: "440154 482878 3e4a89 31688e 26828e 1f9e89 35b779 6dcd59 b4de2c fde725",
  grey: "000000 ffffff",
  turbo: "30123b 4662d7 36aaf9 1ae4b6 72fe5e c8ef34 faba39 f66b19 ca2a04 7a0403",
};

const tables = new Map<ColourMap, Uint8ClampedArray>();

/** 256 colours of a map, red, green and blue. */
export function colourTable(map: ColourMap): Uint8ClampedArray {
  const known = tables.get(map);
  if (known !== undefined) return known;
  const colours = anchors[map]
    .split(" ")
    .map((hex) => [0, 2, 4].map((at) => Number.parseInt(hex.slice(at, at + 2), 16)));
  const table = new Uint8ClampedArray(256 * 3);
  const last = colours.length - 1;
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * last;
    const left = Math.min(last - 1, Math.floor(place));
    for (let channel = 0; channel < 3; channel++) {
      const at = (n: number) => {
        // Beyond the ends, the curve goes on straight.
        if (n < 0) return 2 * at0(0) - at0(1);
        return n > last ? 2 * at0(last) - at0(last - 1) : at0(n);
      };
      const at0 = (n: number) => (colours[n] as number[])[channel] as number;
      table[3 * i + channel] = between(at(left - 1), at(left), at(left + 1), at(left + 2), place - left);
    }
  }
  tables.set(map, table);
  return table;
}

/** A point of the curve of Catmull and Rom from b to c. */
function between(a: number, b: number, c: number, d: number, t: number): number {
  const slopeB = (c - a) / 2;
  const slopeC = (d - b) / 2;
  const [t2, t3] = [t * t, t * t * t];
  return (2 * t3 - 3 * t2 + 1) * b + (t3 - 2 * t2 + t) * slopeB + (3 * t2 - 2 * t3) * c + (t3 - t2) * slopeC;
}

/** Almost 256: the largest value has the last colour. */
const COLOURS = 255.999;

/** How numbers become colours. */
export interface Scale {
  readonly map: ColourMap;
  readonly min: number;
  readonly max: number;
  /** A value that stands for "no value": 0 of depth cameras. It is transparent, and so is NaN. */
  readonly none?: number | undefined;
}

/** Which of the 256 colours a value has; −1 for no value. Infinities have the colours of the ends. */
export function colourIndex(value: number, { min, max, none }: Scale): number {
  if (Number.isNaN(value) || value === none) return -1;
  if (value >= max) return max > min || value > max ? 255 : 128;
  if (value <= min) return 0;
  // Half of each: the width of the range of all doubles is infinite.
  const index = Math.floor(((value / 2 - min / 2) / (max / 2 - min / 2)) * COLOURS);
  // A range with an infinite end, or narrower than what can be halved, has no places between its ends.
  return Number.isNaN(index) ? 128 : Math.min(index, 255);
}

/** Numbers as pixels: red, green, blue, opacity. */
export function paint(
  values: Numbers,
  scale: Scale,
  out: Uint8ClampedArray = new Uint8ClampedArray(values.length * 4),
): Uint8ClampedArray {
  const { min, max, none } = scale;
  const palette = paletteOf(scale.map);
  const pixels = new Uint32Array(out.buffer, out.byteOffset, values.length);
  const factor = COLOURS / (max - min);
  // Where the width of the range is 0 or infinite, the slow way knows what to do.
  const isPlain = Number.isFinite(factor) && factor > 0;
  forPieces({ values, offset: 0, stride: 1, first: 0, length: values.length }, (piece, first) => {
    for (let i = 0; i < piece.length; i++) {
      const value = piece[i] as number;
      let index = -1;
      if (!isPlain) index = colourIndex(value, scale);
      else if (value >= max) index = value === none ? -1 : 255;
      else if (value >= min) index = value === none ? -1 : ((value - min) * factor) | 0;
      else if (value < min) index = value === none ? -1 : 0;
      pixels[first + i] = index < 0 ? 0 : (palette[index] as number);
    }
  });
  return out;
}

/** The colours of a map as pixels, in the order of bytes of this machine. */
function paletteOf(map: ColourMap): Uint32Array {
  const table = colourTable(map);
  const bytes = new Uint8Array(4 * 256).fill(255);
  for (let i = 0; i < 256; i++) bytes.set(table.subarray(3 * i, 3 * i + 3), 4 * i);
  return new Uint32Array(bytes.buffer);
}

/** A colour for each code of a codebook. Neighbouring codes differ in hue; each fourth one in lightness, too. */
export function codeColour(code: number): [number, number, number] {
  // Steps of the golden angle never come back to the same hue.
  const hue = (((code * 137.50776405) % 360) + 360) % 360;
  const lightness = 0.45 + 0.1 * (((code % 4) + 4) % 4) * 0.75;
  const chroma = 0.62 * (1 - Math.abs(2 * lightness - 1));
  const part = (offset: number) => {
    const k = (offset + hue / 30) % 12;
    return Math.round(255 * (lightness - (chroma / 2) * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [part(0), part(8), part(4)];
}
