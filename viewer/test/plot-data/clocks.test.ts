import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { commonLabels, labelShift, pairSteps } from "../../src/plot-data/alignment";
import {
  nearest,
  regularClock,
  sampledClock,
  secondsClock,
  stepAt,
  stepClock,
  usualGap,
} from "../../src/plot-data/clocks";

describe("a clock", () => {
  test("finds the first step at or after each position, also where the quotient of time and rate is rounded", () => {
    const clocks = fc.oneof(
      fc
        .record({ length: fc.nat(500), first: fc.integer({ min: -50, max: 5000 }) })
        .map((o) => stepClock(o.length, o.first)),
      fc
        .record({
          length: fc.nat(500),
          hz: fc.double({ min: 1e-3, max: 1e6, noNaN: true }),
          start: fc.double({ min: -1e6, max: 1e6, noNaN: true }),
        })
        .map((o) => regularClock(o.length, o.hz, o.start)),
      fc
        .array(fc.double({ min: -1e6, max: 1e6 }), { maxLength: 200 })
        .map((list) => secondsClock(Float64Array.from(list))),
      fc
        .array(fc.tuple(fc.integer({ min: 1, max: 50 }), fc.double({ min: -1e6, max: 1e6, noNaN: true })), {
          minLength: 1,
        })
        .map((list) => {
          let step = 0;
          const steps = Float64Array.from(list, ([gap], at) => {
            if (at > 0) step += gap;
            return step;
          });
          return sampledClock(
            steps,
            Float64Array.from(list, ([, time]) => time),
          );
        }),
    );
    const places = fc.tuple(fc.nat(500), fc.constantFrom(-1e-9, 0, 1e-9, 1));
    fc.assert(
      fc.property(clocks, places, (clock, [step, shift]) => {
        const x = (clock.length > 0 ? clock.at(Math.min(step, clock.length - 1)) : 0) + shift;
        const found = clock.index(x);
        if (found < clock.length) expect(clock.at(found)).toBeGreaterThanOrEqual(x);
        if (found > 0) expect(clock.at(found - 1)).toBeLessThan(x);
        const at = stepAt(clock, x);
        if (at >= 0) expect(clock.at(at)).toBeLessThanOrEqual(x);
        if (at + 1 < clock.length) expect(clock.at(at + 1)).toBeGreaterThan(x);
        const near = nearest(clock, x);
        for (let i = 0; i < clock.length; i++) {
          expect(Math.abs(clock.at(near) - x)).toBeLessThanOrEqual(Math.abs(clock.at(i) - x));
        }
      }),
    );
  });

  test("that runs backwards stays in order", () => {
    const clock = secondsClock(Float64Array.of(0, 1, 0.5, Number.NaN, 2));
    expect([0, 1, 2, 3, 4].map(clock.at)).toEqual([0, 1, 1, 1, 2]);
    expect([clock.index(1), stepAt(clock, 1), clock.index(1.5)]).toEqual([1, 3, 4]);
  });

  test("without samples has no step anywhere", () => {
    for (const clock of [stepClock(0), regularClock(0, 50), secondsClock(new Float64Array(0))]) {
      expect([clock.index(3), stepAt(clock, 3), nearest(clock, 3), usualGap(clock)]).toEqual([0, -1, -1, 0]);
    }
  });

  test("answers the position NaN with the first step", () => {
    for (const clock of [stepClock(5), regularClock(5, 50)]) expect(clock.index(Number.NaN)).toBe(0);
  });
});

describe("two episodes", () => {
  test("are aligned by a label that both have", () => {
    const a = [
      { from: 4, to: 5, text: "reach" },
      { from: 7, to: 9, text: "grasp" },
      { from: 1, to: 2, text: "reach" },
    ];
    const b = [
      { from: 3, to: 4, text: "grasp" },
      { from: 0, to: 1, text: "lift" },
    ];
    expect(commonLabels(a, b)).toEqual(["grasp"]);
    expect(labelShift(a, b, "grasp")).toBe(4);
    expect(labelShift(a, a, "reach", 1)).toBe(0);
    expect([labelShift(a, b, "reach"), labelShift(a, b, "grasp", 1)]).toEqual([undefined, undefined]);
  });

  test("are compared at the nearest samples, and not across a hole", () => {
    const a = regularClock(6, 1);
    const b = secondsClock(Float64Array.of(10.1, 11.1, 12.1, 20, 21, 22));
    expect(Array.from(pairSteps(a, b, -10))).toEqual([0, 1, 2, 2, -1, -1]);
    expect(Array.from(pairSteps(a, stepClock(3, 2), 0, 1, 5))).toEqual([0, 0, 1, 2]);
    expect(Array.from(pairSteps(a, stepClock(0), 0))).toEqual([-1, -1, -1, -1, -1, -1]);
  });
});
