// Comparison: what is paired belongs together, and metrics of parts are those of the whole.

import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { byStep, byTime, clockOn, regularTimes, storedTimes } from "../src/compare/alignment";
import { better, joinMetrics, noMetrics } from "../src/compare/metrics";
import { measureModel } from "../src/compare/reading";
import { EpisodeModel } from "../src/model/episode";
import type { ChannelFacts, EpisodeFacts } from "../src/model/facts";
import { pairSteps } from "../src/plot-data/alignment";
import { stepClock } from "../src/plot-data/clocks";
import { metrics } from "../src/plot-data/metrics";
import { samplesOf } from "../src/plot-data/samples";
import { MadeUpReads } from "./browser/pictures/reads";

describe("alignment", () => {
  test("there and back again is the same position", () => {
    const position = fc.double({ min: -100, max: 1000, noNaN: true });
    fc.assert(
      fc.property(
        position,
        position,
        fc.integer({ min: 1, max: 200 }),
        fc.integer({ min: 1, max: 200 }),
        (at, shift, a, b) => {
          for (const alignment of [byStep(shift), byTime(regularTimes(a), regularTimes(b), shift)]) {
            expect(alignment.toB(alignment.toA(at))).toBeCloseTo(at, 6);
          }
        },
      ),
    );
  });

  test("stored times go straight from step to step, and on beyond the ends", () => {
    const times = storedTimes(BigInt64Array.from([0n, 1_000_000_000n, 3_000_000_000n]));
    expect([-1, 0, 0.5, 1.5, 2, 3].map(times.seconds)).toEqual([-1, 0, 0.5, 2, 3, 5]);
    expect([-1, 0, 0.5, 2, 3, 5].map(times.position)).toEqual([-1, 0, 0.5, 1.5, 2, 3]);
  });

  test("a clock that stands or runs backwards ends nothing", () => {
    const times = storedTimes(BigInt64Array.from([0n, 5n, 5n, 3n, 9n]));
    for (const at of [0, 1, 2, 2.5, 3, 4, 5]) expect(Number.isFinite(times.seconds(at))).toBe(true);
    for (const at of [0, 5e-9, 7e-9, 1]) expect(Number.isFinite(times.position(at))).toBe(true);
    expect(storedTimes(new BigInt64Array(0)).seconds(3)).toBe(3);
  });

  test("an episode of half the rate is paired with every second step", () => {
    const alignment = byTime(regularTimes(50), regularTimes(25), 0);
    const pairs = pairSteps(stepClock(8), clockOn(alignment, 4), 0);
    expect([pairs[0], pairs[2], pairs[4], pairs[6]]).toEqual([0, 1, 2, 3]);
  });
});

describe("metrics", () => {
  const value = fc.double({ min: -100, max: 100, noNaN: true });

  test("metrics of two parts together are those of the whole", () => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(value, value, fc.double({ min: 0.01, max: 5, noNaN: true })), { minLength: 1 }),
        fc.nat(),
        (rows, cut) => {
          const column = (at: 0 | 1 | 2) => samplesOf(Float64Array.from(rows, (row) => row[at]));
          const given = { mean: column(1), std: column(2), edges: [column(1), column(2)] as const };
          const of = (from: number, to: number) => metrics(column(0), given, from, to);
          const middle = cut % (rows.length + 1);
          const joined = joinMetrics(of(0, middle), of(middle, rows.length));
          const whole = of(0, rows.length);
          expect(joined.count).toBe(whole.count);
          expect(joined.worstStep).toBe(whole.worstStep);
          for (const key of ["mae", "rmse", "bias", "worst", "nll"] as const) {
            expect(Math.abs(joined[key] - whole[key])).toBeLessThanOrEqual(1e-9 * Math.max(1, Math.abs(whole[key])));
          }
          expect(joined.covered).toBeCloseTo(whole.covered, 9);
          for (const k of [0, 1, 2]) expect(joined.inside[k]).toBeCloseTo(whole.inside[k] as number, 9);
        },
      ),
    );
  });

  test("nothing and something is something", () => {
    const some = metrics(samplesOf(Float64Array.of(1, 2)), { mean: samplesOf(Float64Array.of(1, 4)) }, 0, 2);
    expect(joinMetrics(noMetrics, some)).toEqual(some);
    expect(joinMetrics(some, noMetrics)).toEqual(some);
  });

  test("of two numbers that differ by rounding only, neither is better", () => {
    expect(better(1, 2)).toBe("a");
    expect(better(0.1 + 0.2, 0.3)).toBeNull();
    expect(better(Number.NaN, 1)).toBeNull();
  });
});

test("a model that gives quantiles is judged by how much of the truth is between them, and by nothing else", async () => {
  const facts = (key: string, type = ""): ChannelFacts => {
    const [lane, id, model = ""] = key.split("/");
    const one = { key, lane, id, model, type, layout: "dense", dimensions: 2, length: 4, horizon: null, row: {} };
    return { ...one, hasOwnClock: false, problem: null } as unknown as ChannelFacts;
  };
  const channels = [
    { facts: facts("signal/x"), values: Float32Array.of(0, 9, 1, 9, 2, 9, 3, 9) },
    { facts: facts("omen/x/m"), values: Float32Array.of(0, 0, 0, 0, 0, 0, 0, 0) },
    { facts: facts("uncert/x/m/q95", "q95"), values: Float32Array.of(2, 9, 2, 8, 2, 8, 2, 8) },
    { facts: facts("uncert/x/m/q05", "q05"), values: Float32Array.of(-1, -1, -1, -1, -1, -1, -1, -1) },
  ];
  const episode = new EpisodeModel(
    { channels: channels.map((one) => one.facts) } as unknown as EpisodeFacts,
    new MadeUpReads({ length: 4, channels }),
  );
  const [subject] = episode.subjects;
  const [prediction] = subject?.predictions ?? [];
  if (subject === undefined || prediction === undefined) throw new Error("no prediction");
  const { dimensions, all } = await measureModel(episode, subject, prediction, { start: 0, end: 4 }, {}, () => {});
  expect(dimensions.map(({ covered }) => covered)).toEqual([0.75, 0.25]);
  expect(all).toMatchObject({ covered: 0.5, bounded: 8, judged: 0, nll: Number.NaN });
});
