// Entries as pictures: what the shape says, and numbers as colours. No DOM.

import type { JsonObject, TypedArray } from "@shard-format/core";
import type { ChannelFacts } from "../../model/facts";
import { type ColourMap, paint, type Scale } from "../../plot-data/colours";
import { copyTo, forPieces, type Samples, samplesOf } from "../../plot-data/samples";
import { quantiles } from "../../plot-data/summary";

/** How the values of an entry are laid out as pixels. */
export interface Picture {
  readonly height: number;
  readonly width: number;
  /** Values a pixel: 1, 3 or 4. */
  readonly planes: number;
  /** Whether all values of one colour stand together. */
  readonly channelFirst: boolean;
  /** Pictures in an entry: more than one in a channel with a horizon. */
  readonly count: number;
}

/** Whether the description says that colours stand before rows: in words of its own, or as a list of axes. */
function saysChannelFirst(row: JsonObject): boolean {
  const texts = ["semantics", "modality", "content_type", "description", "axes", "layout_order"].map((field) => {
    const value = row[field];
    return Array.isArray(value) ? value.join("") : typeof value === "string" ? value : "";
  });
  return texts.some((text) => /\bt?chw\b|channels?[-_ ]?first/i.test(text));
}

const planes = (size: number | undefined) => size === 1 || size === 3 || size === 4;

/** The picture that an entry is; null if its shape is not that of a picture. `guess`: the description does not say that colours come first. */
export function pictureOf(facts: ChannelFacts): (Picture & { guess: boolean }) | null {
  const shape = facts.horizon === null ? facts.shape : facts.shape.slice(1);
  const count = facts.horizon ?? 1;
  const [a = 0, b = 0, c = 0] = shape;
  if (shape.some((size) => size === 0)) return null;
  // Decoders give four bytes a pixel, whatever the stream has; only 16-bit PNG images keep their one value.
  if (facts.layout === "video") {
    return { height: a, width: b, planes: facts.dtype === "u16" ? 1 : 4, channelFirst: false, count: 1, guess: false };
  }
  if (shape.length === 2) return { height: a, width: b, planes: 1, channelFirst: false, count, guess: false };
  if (shape.length !== 3) return null;
  const said = saysChannelFirst(facts.row) && planes(a);
  if (!said && planes(c)) return { height: a, width: b, planes: c, channelFirst: false, count, guess: false };
  if (planes(a)) return { height: b, width: c, planes: a, channelFirst: true, count, guess: !said };
  return null;
}

/** Whether values are distances from the camera, of which 0 is none: the description says so, or the unit is a length. */
export function isDepth({ row, unit, dtype }: ChannelFacts, picture: Picture): boolean {
  if (picture.planes !== 1 || dtype === "bool") return false;
  const said = [row["modality"], row["semantics"]].some(
    (text) => typeof text === "string" && /depth|range|disparity/i.test(text),
  );
  return said || (dtype !== "u8" && /^(m|cm|mm|um|µm|met(er|re)s?|millimet(er|re)s?)$/i.test(unit));
}

/** Whether values are colours as they are: bytes, three or four a pixel. */
export function isColour({ dtype }: ChannelFacts, picture: Picture): boolean {
  return picture.planes > 1 && dtype === "u8";
}

/** The range that colours are for. */
export interface Range {
  readonly min: number;
  readonly max: number;
}

/** The least and the largest finite value of one picture. */
export function frameRange(values: TypedArray, none?: number): Range {
  let [min, max] = [Infinity, -Infinity];
  forPieces(samplesOf(values), (piece) => {
    for (let i = 0; i < piece.length; i++) {
      const value = piece[i] as number;
      if (value === none || !Number.isFinite(value)) continue;
      if (value < min) min = value;
      if (value > max) max = value;
    }
  });
  return min <= max ? { min, max } : { min: 0, max: 1 };
}

/** Pixels of a picture that its percentiles are taken from, at most. */
const mostSampled = 20_000;

/** The range from the 1st to the 99th percentile of a picture, so that a few wild pixels do not take all colours. */
export function percentileRange(values: TypedArray, none?: number): Range {
  const all = samplesOf(values);
  const stride = Math.max(1, Math.ceil(values.length / mostSampled));
  const sampled: Samples = { ...all, stride, length: Math.ceil(values.length / stride) };
  const known = copyTo(new Float64Array(sampled.length), sampled).filter((value) => value !== none);
  const [min = Number.NaN, max = Number.NaN] = quantiles(samplesOf(known), [0.01, 0.99]).values;
  return min <= max ? { min, max } : { min: 0, max: 1 };
}

/** Colours as numbers are from 0 to 1, from −1 to 1, or from 0 to 255: what they fit into, or the range itself. */
export function colourRange(range: Range): Range {
  const usual = [
    { min: 0, max: 1 },
    { min: -1, max: 1 },
    { min: 0, max: 255 },
  ];
  return usual.find(({ min, max }) => range.min >= min && range.max <= max) ?? range;
}

/** The range of a type of values whose colours need no choice. */
export function usualRange(facts: ChannelFacts): Range | null {
  if (facts.dtype === "u8") return { min: 0, max: 255 };
  if (facts.dtype === "bool") return { min: 0, max: 1 };
  return null;
}

/** The values of one of the pictures of an entry. */
export function pictureAt(values: TypedArray, picture: Picture, number: number): TypedArray {
  const size = picture.height * picture.width * picture.planes;
  return values.subarray(number * size, (number + 1) * size);
}

/** How values become colours. */
export interface Look {
  readonly map: ColourMap;
  readonly range: Range;
  readonly none: number | undefined;
}

/** A picture as pixels: red, green, blue, opacity. */
export function paintPicture(values: TypedArray, picture: Picture, look: Look, out: Uint8ClampedArray): void {
  const { planes, channelFirst } = picture;
  const count = picture.height * picture.width;
  if (planes === 1) {
    paint(values, { map: look.map, ...look.range, none: look.none } satisfies Scale, out);
    return;
  }
  if (values instanceof Uint8Array && !channelFirst) {
    paintBytes(values, planes, count, out);
    return;
  }
  const direct = values instanceof Uint8Array;
  const { min, max } = look.range;
  const factor = max > min ? 255 / (max - min) : 0;
  const [step, plane] = channelFirst ? [1, count] : [planes, 1];
  for (let i = 0, at = 0, from = 0; i < count; i++, at += 4, from += step) {
    let missing = false;
    for (let c = 0; c < 3; c++) {
      const value = values[from + c * plane] as number;
      if (direct) out[at + c] = value;
      else {
        const number = Number(value);
        missing ||= Number.isNaN(number);
        out[at + c] = (number - min) * factor;
      }
    }
    const opacity =
      planes === 4
        ? direct
          ? (values[from + 3 * plane] as number)
          : (Number(values[from + 3 * plane]) - min) * factor
        : 255;
    out[at + 3] = missing ? 0 : opacity;
  }
}

/** Bytes as they are, the fast way: cameras are played. */
function paintBytes(values: Uint8Array, planes: number, count: number, out: Uint8ClampedArray): void {
  if (planes === 4) {
    out.set(values.subarray(0, 4 * count));
    return;
  }
  for (let i = 0, at = 0, from = 0; i < count; i++, at += 4, from += 3) {
    out[at] = values[from] as number;
    out[at + 1] = values[from + 1] as number;
    out[at + 2] = values[from + 2] as number;
    out[at + 3] = 255;
  }
}

/** For each pixel, how far the prediction is from the truth: of the colour that differs most, without opacity. */
export function differences(
  truth: TypedArray,
  a: Picture,
  prediction: TypedArray,
  b: Picture,
  none?: number,
): Float32Array {
  const count = a.height * a.width;
  const out = new Float32Array(count);
  const colours = Math.min(3, a.planes, b.planes);
  const at = (picture: Picture, i: number, c: number) =>
    picture.channelFirst ? c * count + i : i * picture.planes + c;
  for (let i = 0; i < count; i++) {
    let most = 0;
    for (let c = 0; c < colours; c++) {
      const [x, y] = [Number(truth[at(a, i, c)]), Number(prediction[at(b, i, c)])];
      const difference = x === none || y === none ? Number.NaN : Math.abs(y - x);
      if (!(difference <= most)) most = difference;
    }
    out[i] = most;
  }
  return out;
}

/** The values of a pixel. */
export function pixelAt(values: TypedArray, picture: Picture, x: number, y: number): number[] {
  const count = picture.height * picture.width;
  const pixel = y * picture.width + x;
  return Array.from({ length: picture.planes }, (_, c) =>
    Number(values[picture.channelFirst ? c * count + pixel : pixel * picture.planes + c]),
  );
}
