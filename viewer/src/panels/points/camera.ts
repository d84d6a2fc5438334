// A camera that goes around the points, and matrices as WebGL wants them: columns one after another.

import type { Bounds, Up } from "./cloud";

export type Matrix = Float32Array;
export type Vector = readonly [number, number, number];

/** Where the camera stands: turned around the upward axis and tilted, in radians, and how near. */
export interface Orbit {
  readonly turn: number;
  readonly tilt: number;
  /** 1 shows all of the bounds, 2 half of them. */
  readonly zoom: number;
  /** Where the middle of the picture is from the middle of the bounds, in their size. */
  readonly shift: Vector;
}

export const startingOrbit: Orbit = { turn: 0.55, tilt: 0.45, zoom: 1, shift: [0, 0, 0] };

const fieldOfView = 0.6;

/** The directions right, forward and up of a world, as columns of the data. */
export function basis(up: Up): readonly [Vector, Vector, Vector] {
  if (up === "z")
    return [
      [1, 0, 0],
      [0, 1, 0],
      [0, 0, 1],
    ];
  return up === "y"
    ? [
        [1, 0, 0],
        [0, 0, -1],
        [0, 1, 0],
      ]
    : [
        [1, 0, 0],
        [0, 0, 1],
        [0, -1, 0],
      ];
}

export interface Eye {
  readonly matrix: Matrix;
  /** Directions of the picture in the world: to the right and up. */
  readonly right: Vector;
  readonly above: Vector;
  /** How large the bounds are in the world. */
  readonly size: number;
}

export function eyeOf({ turn, tilt, zoom, shift }: Orbit, bounds: Bounds, up: Up, aspect: number): Eye {
  const { least, largest } = bounds;
  const size = Math.max(1e-9, Math.hypot(...least.map((low, i) => (largest[i] as number) - low)));
  const middle = least.map(
    (low, i) => (low + (largest[i] as number)) / 2 + (shift[i] as number) * size,
  ) as unknown as Vector;
  const [x, y, z] = basis(up);
  const [c, s, ct, st] = [Math.cos(turn), Math.sin(turn), Math.cos(tilt), Math.sin(tilt)];
  const back = sum(sum(scaled(x, s * ct), scaled(y, -c * ct)), scaled(z, st));
  const right = sum(scaled(x, c), scaled(y, s));
  const above = cross(back, right);
  // Far enough that the bounds fit into the narrower side of the picture, from most sides.
  const distance = size / (1.95 * zoom * Math.sin(fieldOfView / 2) * Math.min(1, aspect));
  const place = sum(middle, scaled(back, distance));
  const [near, far] = [Math.max(distance - 2 * size, distance / 100), distance + 2 * size];
  const f = 1 / Math.tan(fieldOfView / 2);
  const view = [right, above, back].flatMap((axis) => [...axis, -dot(axis, place)]);
  const rows = [
    scaledRow(view.slice(0, 4), f / aspect),
    scaledRow(view.slice(4, 8), f),
    [0, 1, 2, 3].map(
      (i) => ((near + far) / (near - far)) * (view[8 + i] as number) + (i === 3 ? (2 * near * far) / (near - far) : 0),
    ),
    scaledRow(view.slice(8, 12), -1),
  ];
  return {
    matrix: Float32Array.from({ length: 16 }, (_, i) => (rows[i % 4] as number[])[i >> 2] as number),
    right,
    above,
    size,
  };
}

/** Where a point of the world is in the picture, in parts of its width and height; null behind the camera. */
export function projected(matrix: Matrix, [x, y, z]: Vector): [number, number] | null {
  const row = (i: number) =>
    (matrix[i] as number) * x +
    (matrix[i + 4] as number) * y +
    (matrix[i + 8] as number) * z +
    (matrix[i + 12] as number);
  const w = row(3);
  return w > 0 ? [(1 + row(0) / w) / 2, (1 - row(1) / w) / 2] : null;
}

export function sum(a: Vector, b: Vector): Vector {
  return [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
}

export function scaled(a: Vector, by: number): Vector {
  return [a[0] * by, a[1] * by, a[2] * by];
}

export function dot(a: Vector, b: Vector): number {
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

function cross(a: Vector, b: Vector): Vector {
  return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
}

function scaledRow(row: readonly number[], by: number): number[] {
  return row.map((value) => value * by);
}

/** A step of 1, 2 or 5 times a power of ten, so that about ten of them make `size`. */
export function gridStep(size: number): number {
  const rough = size / 10;
  const power = 10 ** Math.floor(Math.log10(rough));
  const rest = rough / power;
  return power * (rest < 1.5 ? 1 : rest < 3.5 ? 2 : rest < 7.5 ? 5 : 10);
}

/** A grid below the points and three axes from its corner, as ends of lines with colours. */
export interface Frame {
  readonly places: Float32Array;
  readonly colours: Uint8Array;
  readonly step: number;
  /** Where the names of the axes x, y, z stand. */
  readonly ends: readonly [Vector, Vector, Vector];
}

const axisColours: readonly (readonly [number, number, number])[] = [
  [214, 72, 60],
  [44, 150, 84],
  [60, 110, 220],
];

export function frameOf({ least, largest }: Bounds, up: Up, grid: readonly [number, number, number]): Frame {
  const extents = least.map((low, i) => (largest[i] as number) - low);
  const size = Math.max(1e-9, ...extents);
  const step = gridStep(size);
  const low = least.map((value) => Math.floor(value / step) * step) as unknown as Vector;
  const high = largest.map((value, i) =>
    Math.max(Math.ceil(value / step) * step, (low[i] as number) + step),
  ) as unknown as Vector;
  const vertical = up === "z" ? 2 : 1;
  const flat = [0, 1, 2].filter((axis) => axis !== vertical);
  // The ground is where things fall: against y, that is the largest y.
  const ground = (up === "-y" ? high : low)[vertical] as number;
  const corner = [...low].map((value, axis) => (axis === vertical ? ground : value)) as unknown as Vector;
  const places: number[] = [];
  const colours: number[] = [];
  const line = (a: Vector, b: Vector, colour: readonly number[]) => {
    places.push(...a, ...b);
    for (let i = 0; i < 2; i++) colours.push(...colour, 255);
  };
  for (const [along, across] of [flat, [...flat].reverse()] as [number, number][]) {
    const count = Math.min(200, Math.round(((high[across] as number) - (low[across] as number)) / step));
    for (let i = 0; i <= count; i++) {
      const from = [...corner];
      from[across] = (low[across] as number) + i * step;
      const to = [...from];
      to[along] = high[along] as number;
      line(from as unknown as Vector, to as unknown as Vector, grid);
    }
  }
  const ends = [0, 1, 2].map((axis) => {
    const end = [...corner];
    end[axis] = axis === vertical && up === "-y" ? (low[axis] as number) : (high[axis] as number);
    line(corner, end as unknown as Vector, axisColours[axis] ?? grid);
    return end as unknown as Vector;
  }) as unknown as [Vector, Vector, Vector];
  return { places: Float32Array.from(places), colours: Uint8Array.from(colours), step, ends };
}
