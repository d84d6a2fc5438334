import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type Clock, regularClock, secondsClock, stepClock } from "../../src/plot-data/clocks";
import { columns, infinities, valueRange } from "../../src/plot-data/columns";
import { Extent, MINUS, MISSING, PLUS, UNREAD } from "../../src/plot-data/extent";
import { type Line, Pyramid, reduceRange } from "../../src/plot-data/pyramid";
import { type Numbers, samplesOf, valueAt } from "../../src/plot-data/samples";

/** Lengths that end before, at and after the bounds of buckets, and values that plots cannot draw. */
const values = fc
  .array(fc.oneof({ weight: 8, arbitrary: fc.double() }, fc.constantFrom(Number.NaN, Infinity, -Infinity, 0, -0)), {
    maxLength: 700,
  })
  .map((list) => Float64Array.from(list));

const clocks = (length: number): fc.Arbitrary<Clock> =>
  fc.oneof(
    fc.constant(stepClock(length)),
    fc.double({ min: 0.01, max: 1e5, noNaN: true }).map((hz) => regularClock(length, hz, 3)),
    fc
      .array(fc.double({ min: 0, max: 10, noNaN: true }), { minLength: length, maxLength: length })
      .map((gaps) =>
        secondsClock(Float64Array.from(gaps).map((_, i, all) => all.slice(0, i).reduce((a, b) => a + b, 0))),
      ),
  );

const lines = values.chain((list) => fc.record({ list: fc.constant(list), clock: clocks(list.length) }));

/** The extremes and the flags, the slow way. */
function slowly(list: Iterable<number>): Extent {
  const extent = new Extent();
  for (const value of list) {
    if (Number.isFinite(value)) {
      extent.min = Number.isNaN(extent.min) ? value : Math.min(extent.min, value);
      extent.max = Number.isNaN(extent.max) ? value : Math.max(extent.max, value);
    } else extent.flags |= Number.isNaN(value) ? MISSING : value > 0 ? PLUS : MINUS;
  }
  return extent;
}

/** -0 and 0 are one value of a plot. */
const plain = ({ min, max, flags }: Omit<Extent, "reset" | "add" | "merge">) => ({ min: min + 0, max: max + 0, flags });

function lineOf(list: Numbers): Line {
  const samples = samplesOf(list);
  return { pyramid: Pyramid.of(samples), samples };
}

describe("a view of a line", () => {
  test("has the extremes of all values, whatever the values, the clock and the number of columns are", () => {
    fc.assert(
      fc.property(lines, fc.integer({ min: 1, max: 90 }), ({ list, clock }, width) => {
        const [from, to] = list.length === 0 ? [0, 1] : [clock.at(0), clock.at(list.length - 1)];
        const view = columns(lineOf(list), clock, { from, to, width });
        const found = new Extent();
        for (let i = 0; i < view.x.length; i++) {
          found.merge(view.min[i] as number, view.max[i] as number, view.flags[i] as number);
        }
        expect(plain(found)).toEqual(plain(slowly(list)));
        expect(view.samples).toBe(list.length);
      }),
    );
  });

  test("has in each column the extremes of the samples of that column", () => {
    fc.assert(
      fc.property(lines, fc.nat(700), fc.nat(700), fc.integer({ min: 1, max: 30 }), ({ list, clock }, a, b, width) => {
        fc.pre(list.length > 0);
        const at = (step: number) => clock.at(Math.min(step, list.length - 1));
        const [from, to] = [at(Math.min(a, b)), at(Math.max(a, b))];
        fc.pre(from < to);
        const view = columns(lineOf(list), clock, { from, to, width });
        fc.pre(!view.original);
        let low = clock.index(from);
        for (let column = 0; column < width; column++) {
          const edge = column === width - 1 ? to : from + (column + 1) * ((to - from) / width);
          let high = low;
          const isLast = column === width - 1;
          while (high < list.length && (clock.at(high) < edge || (isLast && clock.at(high) === edge))) high++;
          const found = {
            min: view.min[column] as number,
            max: view.max[column] as number,
            flags: view.flags[column] as number,
          };
          expect(plain(found)).toEqual(plain(slowly(list.subarray(low, high))));
          expect(view.counts[column]).toBe(high - low);
          low = high;
        }
      }),
    );
  });

  test("shows the samples themselves, and one more on either side, where there are fewer than two a column", () => {
    const list = Float32Array.from({ length: 100 }, (_, i) => i * i);
    const view = columns(lineOf(list), regularClock(100, 10), { from: 2, to: 3, width: 20 });
    expect(view.original).toBe(true);
    expect([view.x[0], view.x.at(-1)]).toEqual([1.9, 3.1]);
    expect(Array.from(view.min)).toEqual(Array.from(list.subarray(19, 32)));
  });

  test("is the same for each dimension of a channel as for that dimension alone", () => {
    const width = 3;
    const list = Int16Array.from({ length: 999 * width }, (_, i) => ((i * 7919) % 2000) - 1000);
    for (let dimension = 0; dimension < width; dimension++) {
      const samples = samplesOf(list, { width, dimension });
      const alone = Float64Array.from({ length: 999 }, (_, step) => valueAt(samples, step));
      const view = { from: 0, to: 998, width: 40 };
      const [a, b] = [{ pyramid: Pyramid.of(samples), samples }, lineOf(alone)].map((line) =>
        columns(line, stepClock(999), view),
      );
      expect(a).toEqual(b);
    }
  });

  test("keeps a single spike among ten million samples", () => {
    const list = new Float32Array(10_000_000);
    list[7_654_321] = -3.5;
    const { min, max } = columns(lineOf(list), regularClock(list.length, 1000), { from: 0, to: 1e4, width: 1200 });
    expect([Math.min(...min), Math.max(...max)]).toEqual([-3.5, 0]);
    expect(min.indexOf(-3.5)).toBe(Math.floor((7654.321 / 1e4) * 1200));
  });

  test("takes 64-bit integers of either sign", () => {
    const list = BigInt64Array.from({ length: 500 }, (_, i) => (i === 333 ? -(2n ** 62n) : BigInt(i)));
    const unsigned = BigUint64Array.from({ length: 500 }, (_, i) => (i === 333 ? 2n ** 63n : BigInt(i)));
    const view = { from: 0, to: 499, width: 10 };
    expect(valueRange([columns(lineOf(list), stepClock(500), view)])).toEqual([-(2 ** 62), 499]);
    expect(valueRange([columns(lineOf(unsigned), stepClock(500), view)])).toEqual([0, 2 ** 63]);
  });

  test("says where the line is infinite and leaves infinities out of the range of the y axis", () => {
    const list = Float32Array.of(1, Infinity, 2, Number.NaN, -Infinity, 3);
    const view = columns(lineOf(list), stepClock(6), { from: 0, to: 5, width: 100 });
    expect(infinities(view)).toEqual({ plus: [1], minus: [4] });
    expect(valueRange([view])).toEqual([1, 3]);
  });
});

describe("a pyramid", () => {
  test("that is filled in any order and with overlaps is the same as one that is filled at once", () => {
    const pieces = fc.array(fc.tuple(fc.nat(700), fc.nat(300)), { maxLength: 8 });
    fc.assert(
      fc.property(values, pieces, fc.nat(700), fc.nat(700), (list, parts, a, b) => {
        const whole = samplesOf(list);
        const pyramid = new Pyramid(list.length);
        for (const [first, length] of [...parts, [0, list.length]] as [number, number][]) {
          pyramid.fill(samplesOf(list.slice(first, first + length), { first }));
        }
        const [from, to] = [Math.min(a, b, list.length), Math.min(Math.max(a, b), list.length)];
        const extent = new Extent();
        reduceRange({ pyramid, samples: whole }, from, to, extent);
        expect(plain(extent)).toEqual(plain(slowly(list.subarray(from, to))));
      }),
    );
  });

  test("flags what has not arrived, and the overview of the file stands for it", () => {
    const list = Float32Array.from({ length: 1000 }, (_, i) => Math.sin(i));
    const pyramid = new Pyramid(1000);
    pyramid.fill(samplesOf(list.slice(0, 480)));
    const mean = { width: 4, from: 0, to: 999 };
    const unread = columns({ pyramid }, stepClock(1000), mean);
    expect(Array.from(unread.flags)).toEqual([0, UNREAD, UNREAD, UNREAD]);
    expect(Number.isNaN(unread.min[3] as number)).toBe(true);

    const [low, high] = [Float32Array.of(-5, -6, -7, -8), Float32Array.of(5, 6, 7, 8)];
    const overview = Pyramid.ofOverview(1000, 250, samplesOf(low), samplesOf(high));
    const view = columns({ pyramid, overview }, stepClock(1000), mean);
    expect(Array.from(view.flags)).toEqual([0, 0, 0, 0]);
    expect(view.max[0]).toBeLessThan(1.1);
    expect(view.max[3]).toBe(8);
  });

  test("of an overview marks infinities and keeps the other extreme of their bucket", () => {
    const low = Float64Array.of(-Infinity, Number.NaN, -1);
    const high = Float64Array.of(2, Number.NaN, Infinity);
    const pyramid = Pyramid.ofOverview(30, 10, samplesOf(low), samplesOf(high));
    const found = [0, 10, 20].map((from) => {
      const extent = new Extent();
      pyramid.reduce(from, from + 10, extent);
      return { ...extent };
    });
    expect(found).toEqual([
      { min: 2, max: 2, flags: MINUS },
      { min: Number.NaN, max: Number.NaN, flags: MISSING },
      { min: -1, max: -1, flags: PLUS },
    ]);
  });

  test("without the samples loses no value of the range, and takes whole buckets", () => {
    fc.assert(
      fc.property(values, fc.nat(700), fc.nat(700), (list, a, b) => {
        const [from, to] = [Math.min(a, b, list.length), Math.min(Math.max(a, b), list.length)];
        const extent = new Extent();
        reduceRange({ pyramid: Pyramid.of(samplesOf(list)) }, from, to, extent);
        const inside = slowly(list.subarray(from, to));
        const around = slowly(list.subarray(16 * Math.floor(from / 16), from < to ? 16 * Math.ceil(to / 16) : from));
        if (from < to) expect(plain(extent)).toEqual(plain(around));
        expect(extent.flags & inside.flags).toBe(inside.flags);
      }),
    );
  });
});
