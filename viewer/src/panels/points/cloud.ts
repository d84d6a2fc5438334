// Points as the renderer wants them: places and colours. No DOM.

import type { TypedArray } from "@shard-format/core";
import { type ColourMap, colourIndex, colourTable } from "../../plot-data/colours";
import { quantiles } from "../../plot-data/summary";

/** What the colour of a point tells: a column of the data, its height, its distance from the origin, or its own colour. */
export type ColourBy = "height" | "distance" | "own" | `column ${number}`;

/** Which direction is up: that of an axis, or against it. Cameras have y pointing down. */
export const ups = ["z", "y", "-y"] as const;
export type Up = (typeof ups)[number];

export interface Bounds {
  readonly least: readonly [number, number, number];
  readonly largest: readonly [number, number, number];
}

export interface Span {
  readonly min: number;
  readonly max: number;
}

/** Points to draw: three numbers and four bytes each. */
export interface Cloud {
  readonly places: Float32Array;
  readonly colours: Uint8Array;
  readonly count: number;
  /** Every how many-th point is drawn. */
  readonly every: number;
}

/** An entry and how many steps before the cursor it is. */
export interface Cast {
  readonly values: TypedArray;
  readonly age: number;
}

/** More points than this are thinned out. */
export const mostPoints = 1_500_000;

export function pointsIn(values: TypedArray, columns: number): number {
  return Math.floor(values.length / columns);
}

/** Where most points are: without the 1 % that is farthest out on either side. null without a finite point. */
export function boundsOf(values: TypedArray, columns: number): Bounds | null {
  const axes = [0, 1, 2].map((axis) => {
    const length = Math.max(0, pointsIn(values, columns));
    return quantiles({ values, offset: axis, stride: columns, first: 0, length }, [0.01, 0.99], 20_000).values;
  });
  const [x, y, z] = axes as [number[], number[], number[]];
  const at = (end: 0 | 1) => [x[end], y[end], z[end]] as [number, number, number];
  return [...at(0), ...at(1)].every(Number.isFinite) ? { least: at(0), largest: at(1) } : null;
}

/** The height of a point, for the direction that is up. */
export function height(values: TypedArray, at: number, up: Up): number {
  if (up === "z") return Number(values[at + 2]);
  return up === "y" ? Number(values[at + 1]) : -Number(values[at + 1]);
}

/** The number that the colour of a point stands for. */
export function measure(values: TypedArray, at: number, by: ColourBy, up: Up): number {
  if (by === "height") return height(values, at, up);
  if (by === "distance") return Math.hypot(Number(values[at]), Number(values[at + 1]), Number(values[at + 2]));
  return by === "own" ? Number.NaN : Number(values[at + Number(by.slice(7))]);
}

/** The range of what the colours stand for, without the 1 % on either side. */
export function measureSpan(values: TypedArray, columns: number, by: ColourBy, up: Up): Span | null {
  const count = pointsIn(values, columns);
  const every = Math.max(1, Math.ceil(count / 20_000));
  const found = new Float64Array(Math.ceil(count / every));
  for (let i = 0; i < found.length; i++) found[i] = measure(values, i * every * columns, by, up);
  const samples = { values: found, offset: 0, stride: 1, first: 0, length: found.length };
  const [min, max] = quantiles(samples, [0.01, 0.99]).values as [number, number];
  return Number.isFinite(min) ? { min, max } : null;
}

/** Whether three columns after the place look like colours: bytes, or numbers from 0 to 1 or to 255. */
export function ownColourScale(values: TypedArray, columns: number): number | null {
  if (columns < 6) return null;
  let [least, most] = [Infinity, 0];
  let whole = true;
  const count = pointsIn(values, columns);
  const every = Math.max(1, Math.ceil(count / 5000));
  for (let i = 0; i < count; i += every) {
    for (let c = 3; c < 6; c++) {
      const value = Number(values[i * columns + c]);
      least = Math.min(least, value);
      most = Math.max(most, value);
      whole &&= Number.isInteger(value);
    }
  }
  if (count === 0 || !(least >= 0) || !(most <= 255)) return null;
  if (most <= 1) return 255;
  return whole ? 1 : null;
}

interface Look {
  readonly columns: number;
  readonly by: ColourBy;
  readonly up: Up;
  readonly map: ColourMap;
  readonly span: Span;
  /** The colour that older points fade into. */
  readonly ground: readonly [number, number, number];
  /** The number of steps of the trail, the present one included. */
  readonly trail: number;
}

/** The colours of a map, those that are hardly different from the ground made lighter or darker. */
function visibleTable(map: ColourMap, ground: Look["ground"]): Uint8ClampedArray {
  const table = colourTable(map).slice();
  const lightness = (r: number, g: number, b: number) => 0.299 * r + 0.587 * g + 0.114 * b;
  const behind = lightness(...ground);
  const away = behind < 128 ? 255 : 0;
  for (let at = 0; at < table.length; at += 3) {
    const [r, g, b] = table.subarray(at, at + 3) as unknown as [number, number, number];
    const part = 0.45 * Math.max(0, 1 - Math.abs(lightness(r, g, b) - behind) / 35);
    for (let c = 0; c < 3; c++) table[at + c] = (table[at + c] as number) * (1 - part) + away * part;
  }
  return table;
}

/** Points of several steps, the oldest first. Points with a coordinate that is not finite are left out. */
export function cloudOf(casts: readonly Cast[], look: Look): Cloud {
  const { columns, by, up, map, span, ground, trail } = look;
  const all = casts.reduce((sum, { values }) => sum + pointsIn(values, columns), 0);
  const every = Math.max(1, Math.ceil(all / mostPoints));
  const room = Math.ceil(all / every) + casts.length;
  const places = new Float32Array(3 * room);
  const colours = new Uint8Array(4 * room);
  const table = visibleTable(map, ground);
  let count = 0;
  for (const { values, age } of [...casts].sort((a, b) => b.age - a.age)) {
    const own = by === "own" ? ownColourScale(values, columns) : null;
    // The oldest step keeps a fifth of its colour.
    const strength = trail > 1 ? 1 - (0.8 * age) / trail : 1;
    const points = pointsIn(values, columns);
    for (let i = 0; i < points; i += every) {
      const at = i * columns;
      const [x, y, z] = [Number(values[at]), Number(values[at + 1]), Number(values[at + 2])];
      if (!Number.isFinite(x + y + z)) continue;
      places[3 * count] = x;
      places[3 * count + 1] = y;
      places[3 * count + 2] = z;
      for (let c = 0; c < 3; c++) {
        let value = 128;
        if (own !== null) value = Number(values[at + 3 + c]) * own;
        else {
          const index = colourIndex(measure(values, at, by, up), { map, min: span.min, max: span.max });
          if (index >= 0) value = table[3 * index + c] as number;
        }
        colours[4 * count + c] = value * strength + (ground[c] as number) * (1 - strength);
      }
      colours[4 * count + 3] = 255;
      count++;
    }
  }
  return { places, colours, count, every };
}
