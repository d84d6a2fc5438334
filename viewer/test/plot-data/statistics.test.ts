import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { codeColour, colourIndex, colourMaps, colourTable, paint } from "../../src/plot-data/colours";
import { metrics } from "../../src/plot-data/metrics";
import { project } from "../../src/plot-data/pca";
import { samplesOf } from "../../src/plot-data/samples";
import { codeCounts, histogram, quantiles, summarize } from "../../src/plot-data/summary";

const samples = (...values: number[]) => samplesOf(Float64Array.from(values));
const all = fc.array(
  fc.oneof({ weight: 9, arbitrary: fc.double() }, fc.constantFrom(Number.NaN, Infinity, -Infinity)),
  {
    maxLength: 300,
  },
);

describe("the metrics of a prediction", () => {
  test("are those of the textbook", () => {
    const found = metrics(samples(0, 0, 0, 0), { mean: samples(1, -1, 2, -4), std: samples(1, 1, 1, 1) }, 0, 4);
    const nll = 0.5 * Math.log(2 * Math.PI) + (0.5 * (1 + 1 + 4 + 16)) / 4;
    expect(found).toEqual({
      count: 4,
      leftOut: 0,
      mae: 2,
      rmse: expect.closeTo(Math.sqrt(22 / 4), 12),
      bias: expect.closeTo(-0.5, 12),
      worst: 4,
      worstStep: 3,
      inside: [0.5, 0.75, 0.75],
      nll: expect.closeTo(nll, 12),
      judged: 4,
      covered: Number.NaN,
      bounded: 0,
    });
  });

  test("count the truth between the edges of a band, edges included, and only where both are there", () => {
    const edges = [samples(0, 1, 2, Number.NaN, -Infinity), samples(1, 1, 3, 5, 0)] as const;
    const found = metrics(samples(1, 1, 4, 4, -9), { mean: samples(0, 0, 0, 0, 0), edges }, 0, 5);
    expect(found).toMatchObject({
      covered: 3 / 4,
      bounded: 4,
      judged: 0,
      inside: [Number.NaN, Number.NaN, Number.NaN],
    });
  });

  test("leave out what is missing, infinite or without a deviation, and count it", () => {
    const truth = samples(1, Number.NaN, 3, Infinity, 5);
    const found = metrics(truth, { mean: samples(1, 2, 4, 4, 7), std: samples(0, 1, 1, 1, Number.NaN) }, 0, 5);
    expect(found).toMatchObject({ count: 3, leftOut: 2, mae: 1, judged: 1, inside: [1, 1, 1], worst: 2, worstStep: 4 });
    const none = metrics(truth, { mean: samples() }, 0, 5);
    expect(none).toMatchObject({
      count: 0,
      leftOut: 5,
      mae: Number.NaN,
      rmse: Number.NaN,
      nll: Number.NaN,
      worstStep: -1,
    });
  });

  test("hold for errors whose squares are infinite or 0", () => {
    for (const size of [1e-200, 1e200]) {
      const found = metrics(samples(0, 0), { mean: samples(3 * size, 4 * size) }, 0, 2);
      expect(found.rmse / size).toBeCloseTo(Math.sqrt(12.5), 10);
    }
  });

  test("compare pairs of steps of two clocks", () => {
    const found = metrics(samples(1, 2, 3), { mean: samples(2, 3, 9) }, 1, 3, Int32Array.of(0, -1));
    expect(found).toMatchObject({ count: 1, leftOut: 1, mae: 0 });
  });
});

describe("the summary of a dimension", () => {
  test("counts every value once and agrees with the slow way", () => {
    fc.assert(
      fc.property(all, (list) => {
        const finite = list.filter(Number.isFinite);
        const found = summarize(samplesOf(Float64Array.from(list)));
        expect(found.count + found.missing + found.plusInfinite + found.minusInfinite).toBe(list.length);
        expect(found.count).toBe(finite.length);
        if (finite.length === 0) return;
        expect([found.min, found.max].map((one) => one + 0)).toEqual([
          Math.min(...finite) + 0,
          Math.max(...finite) + 0,
        ]);
        expect(found.mean).toBeGreaterThanOrEqual(found.min - Math.abs(found.min) * 1e-9);
        expect(found.mean).toBeLessThanOrEqual(found.max + Math.abs(found.max) * 1e-9);
        expect(found.std).toBeGreaterThanOrEqual(0);
        expect(found.std).toBeLessThan(Infinity);
      }),
    );
  });

  test("keeps a small spread of values far from 0, and that of the largest doubles", () => {
    expect(summarize(samples(1e9 + 1, 1e9 + 2, 1e9 + 3)).std).toBeCloseTo(Math.sqrt(2 / 3), 12);
    expect(summarize(samples(1.5e308, -1.5e308)).std / 1.5e308).toBeCloseTo(1, 12);
    expect([summarize(samples(2, 2)).constant, summarize(samples(2, 3)).constant]).toEqual([true, false]);
  });

  test("has a histogram with every finite value in one bin", () => {
    fc.assert(
      fc.property(all, fc.integer({ min: 1, max: 40 }), (list, bins) => {
        const values = samplesOf(Float64Array.from(list));
        const { min, max, count } = summarize(values);
        const { counts } = histogram(values, bins, min, max);
        expect(counts.reduce((sum, one) => sum + one, 0)).toBe(count);
      }),
    );
    expect(Array.from(histogram(samples(0, 1, 2, 3, 4), 2, 0, 4).counts)).toEqual([2, 3]);
  });

  test("has quantiles, and says of how many values they are", () => {
    const list = samplesOf(Float64Array.from({ length: 1001 }, (_, i) => 1000 - i));
    expect(quantiles(list, [0, 0.25, 0.5, 1])).toEqual({ values: [0, 250, 500, 1000], sampled: 1001 });
    expect(quantiles(list, [0.5], 101)).toEqual({ values: [500], sampled: 101 });
    expect(quantiles(samples(Number.NaN), [0.5]).values).toEqual([Number.NaN]);
  });

  test("counts the codes of a codebook", () => {
    const codes = samplesOf(Uint16Array.of(3, 7, 7, 1, 1, 7));
    expect(codeCounts(codes, 0, 6)).toEqual([
      { code: 7, count: 3 },
      { code: 1, count: 2 },
      { code: 3, count: 1 },
    ]);
    expect(codeCounts(codes, 4, 99)).toEqual([
      { code: 1, count: 1 },
      { code: 7, count: 1 },
    ]);
  });
});

describe("the projection of embeddings", () => {
  test("shows the plane in which they lie, the longer direction first", () => {
    const width = 40;
    const rows = 200;
    const axis = (i: number, step: number) => Math.sin((i + 1) * step);
    const values = new Float32Array(rows * width);
    for (let row = 0; row < rows; row++) {
      const [a, b] = [Math.cos((row / rows) * 2 * Math.PI) * 10, Math.sin((row / rows) * 2 * Math.PI) * 3];
      for (let i = 0; i < width; i++) values[row * width + i] = 100 + a * axis(i, 0.7) + b * axis(i, 1.9);
    }
    const { points, shares } = project(values, width);
    expect(shares[0] + shares[1]).toBeCloseTo(1, 4);
    expect(shares[0]).toBeGreaterThan(0.8);
    // Distances in the plane are those between the vectors.
    const distance = (list: ArrayLike<number>, size: number, a: number, b: number) =>
      Math.hypot(
        ...Array.from({ length: size }, (_, i) => (list[a * size + i] as number) - (list[b * size + i] as number)),
      );
    for (const [a, b] of [
      [0, 100],
      [50, 150],
      [3, 77],
    ] as [number, number][]) {
      expect(distance(points, 2, a, b) / distance(values, width, a, b)).toBeCloseTo(1, 3);
    }
    expect(project(values, width)).toEqual({ points, shares, sampled: rows });
  });

  test("holds for vectors that are all the same, have no finite value, are huge, or are not there", () => {
    expect(Array.from(project(new Float32Array(12).fill(5), 3).points)).toEqual([0, 0, 0, 0, 0, 0, 0, 0]);
    const { points, sampled } = project(Float32Array.of(0, 0, Number.NaN, 1, 1, 1), 2);
    expect(sampled).toBe(2);
    expect(Array.from(points.subarray(2, 4))).toEqual([Number.NaN, Number.NaN]);
    expect(project(Float32Array.of(1e38, 0, -1e38, 0), 2).shares[0]).toBeCloseTo(1, 9);
    expect(project(new Float32Array(0), 4).points.length).toBe(0);
    expect(Array.from(project(Float32Array.of(1, 3), 1).shares)).toEqual([1, 0]);
  });
});

describe("colours", () => {
  test("begin and end as the maps are known for", () => {
    const ends = colourMaps.map((map) => {
      const table = colourTable(map);
      return [...table.subarray(0, 3), ...table.subarray(765)];
    });
    expect(ends).toEqual([
      [68, 1, 84, 253, 231, 37],
      [0, 0, 0, 255, 255, 255],
      [48, 18, 59, 122, 4, 3],
    ]);
  });

  test("of viridis and grey grow lighter from each value to the next", () => {
    for (const map of ["viridis", "grey"] as const) {
      const table = colourTable(map);
      for (let i = 1; i < 256; i++) {
        const light = (n: number) =>
          0.299 * (table[3 * n] as number) +
          0.587 * (table[3 * n + 1] as number) +
          0.114 * (table[3 * n + 2] as number);
        expect(light(i)).toBeGreaterThan(light(i - 1) - 0.7);
      }
    }
  });

  test("show no value as transparent, infinities as the ends, and a range of no width in the middle", () => {
    const scale = { map: "grey", min: 1, max: 3, none: 0 } as const;
    const pixels = paint(Float32Array.of(1, 3, 0, Number.NaN, Infinity, -Infinity), scale);
    expect(Array.from({ length: 6 }, (_, i) => Array.from(pixels.subarray(4 * i, 4 * i + 4)))).toEqual([
      [0, 0, 0, 255],
      [255, 255, 255, 255],
      [0, 0, 0, 0],
      [0, 0, 0, 0],
      [255, 255, 255, 255],
      [0, 0, 0, 255],
    ]);
    expect(colourIndex(5, { map: "grey", min: 5, max: 5 })).toBe(128);
    expect(colourIndex(0, { map: "grey", min: -1.7e308, max: 1.7e308 })).toBe(127);
  });

  test("painted the fast way are those of each value", () => {
    const ends = fc.tuple(fc.double({ noNaN: true }), fc.double({ noNaN: true }));
    fc.assert(
      fc.property(all, ends, fc.boolean(), (list, [a, b], hasNone) => {
        const values = Float64Array.from(list);
        const scale = {
          map: "grey",
          min: Math.min(a, b),
          max: Math.max(a, b),
          ...(hasNone ? { none: values[0] } : {}),
        } as const;
        const pixels = paint(values, scale);
        const wanted = list.map((value) => colourIndex(value, scale));
        // In the middle of two colours, either is right.
        for (const [i, index] of wanted.entries()) {
          expect(pixels[4 * i + 3]).toBe(index < 0 ? 0 : 255);
          if (index >= 0) expect(Math.abs((pixels[4 * i] as number) - index)).toBeLessThanOrEqual(1);
        }
      }),
    );
  });

  test("of the first 64 codes differ from each other", () => {
    expect(new Set(Array.from({ length: 64 }, (_, code) => codeColour(code).join())).size).toBe(64);
  });
});
