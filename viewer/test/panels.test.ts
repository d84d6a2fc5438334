// The pure parts of panels: what is counted, compared and found is so.

import { packSigns, quantise, secondDifferenceSigns, unpackSigns } from "@shard-format/core/wshard";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { safeAddress } from "../src/inspector/json";
import { place } from "../src/panels/actions";
import { hexLines, parseOffset } from "../src/panels/bytes/hex";
import { marks, Returns } from "../src/panels/ends/returns";
import { ChannelCheck, checkTimes, joinFindings, parseDoctor, rangeAround } from "../src/panels/findings/checks";
import { compareCodes, compareSigns, shares, subject } from "../src/panels/residual/residuals";
import { drawLine } from "../src/panels/series/plot";
import { pieces } from "../src/panels/statistics/pieces";
import { rowsOf, search, spansAt, spansOf } from "../src/panels/text/spans";
import type { Reduced } from "../src/plot-data/columns";
import { shareText, ticks } from "../src/ui/ticks";
import { plotArea, type Scene } from "../src/ui/time-canvas";

describe("returns", () => {
  test("the return after each step is the sum of all rewards until then, whatever the pieces and blocks", () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: -100, max: 100 }), { minLength: 1, maxLength: 200 }),
        fc.integer({ min: 1, max: 50 }),
        fc.integer({ min: 1, max: 40 }),
        (rewards, most, piece) => {
          const returns = new Returns(rewards.length, most);
          for (let at = 0; at < rewards.length; at += piece) returns.add(rewards.slice(at, at + piece));
          let sum = 0;
          for (const [step, reward] of rewards.entries()) {
            sum += reward;
            const { from } = returns.before(step);
            expect(returns.exact(rewards.slice(from, step + 1), from).at(-1)).toBe(sum);
          }
          expect(returns.total).toBe(sum);
          expect(returns.sums.at(-1)).toBe(sum);
        },
      ),
    );
  });

  test("rewards that are not finite count as 0, and are counted", () => {
    const returns = new Returns(4);
    returns.add([1, Number.NaN, Number.POSITIVE_INFINITY, 2]);
    expect(returns.total).toBe(3);
    expect(returns.notFinite).toBe(2);
  });

  test("marks stand where a flag is set", () => {
    expect(marks([0, 1, 2, 3], new Uint8Array([0, 1, 0, 1]))).toEqual([1, 3]);
  });
});

describe("texts", () => {
  test("entries that repeat are one span, and an empty text is none", () => {
    expect(spansOf(["a", "a", "", "b"], [0, 1, 2, 3], 5)).toEqual([
      { start: 0, end: 2, text: "a", source: "", confidence: null },
      { start: 3, end: 5, text: "b", source: "", confidence: null },
    ]);
  });

  test("no two spans of a row overlap", () => {
    const span = fc.record({ start: fc.nat(50), length: fc.nat(20) });
    fc.assert(
      fc.property(fc.array(span, { maxLength: 40 }), (given) => {
        const spans = given.map(({ start, length }) => ({
          start,
          end: start + length,
          text: "",
          source: "",
          confidence: null,
        }));
        const { rows, count } = rowsOf(spans);
        for (const [a, one] of spans.entries()) {
          expect(rows[a]).toBeLessThan(count);
          for (const [b, other] of spans.entries()) {
            if (a < b && rows[a] === rows[b]) expect(one.end <= other.start || other.end <= one.start).toBe(true);
          }
        }
      }),
    );
  });

  test("the end of a span is not part of it, and a search looks at sources too", () => {
    const spans = [
      { start: 0, end: 3, text: "Reach", source: "human", confidence: null },
      { start: 3, end: 3, text: "touch", source: "detector", confidence: null },
    ];
    expect(spansAt(spans, 2.5).map(({ text }) => text)).toEqual(["Reach"]);
    expect(spansAt(spans, 3).map(({ text }) => text)).toEqual(["touch"]);
    expect(search(spans, "reach HUMAN")).toHaveLength(1);
    expect(search(spans, "reach detector")).toHaveLength(0);
  });
});

describe("residuals", () => {
  const signals = fc.array(fc.double({ min: -10, max: 10, noNaN: true }), { minLength: 6, maxLength: 60 });

  test("signs agree with the signal that they were made of, in every part of it", () => {
    fc.assert(
      fc.property(signals, fc.nat(5), (values, from) => {
        const dimensions = 2;
        const x = Float64Array.from(values.slice(0, values.length - (values.length % 2)));
        const steps = x.length / dimensions;
        const stored = unpackSigns(packSigns(secondDifferenceSigns(x, dimensions), dimensions), steps);
        const start = Math.min(from, steps - 1);
        const first = Math.max(0, start - 1);
        const part = compareSigns(
          stored.subarray(start * dimensions),
          start,
          x.subarray(first * dimensions),
          first,
          dimensions,
        );
        expect(part.agreeing).toBe(part.compared);
        expect(part.differs.includes(1)).toBe(false);
      }),
    );
  });

  test("a sign that is wrong is found where it is", () => {
    const x = Float64Array.from([0, 1, 0, 1, 0, 1, 0]);
    const signs = secondDifferenceSigns(x);
    signs[3] = -1;
    const found = compareSigns(signs, 0, x, 0, 1);
    expect(found).toMatchObject({ compared: 5, agreeing: 4 });
    expect(Array.from(found.differs)).toEqual([0, 0, 0, 1, 0, 0, 0]);
  });

  test("quantised differences are within half a scale of the signal minus the prediction", () => {
    fc.assert(
      fc.property(signals, (values) => {
        const signal = Float64Array.from(values);
        const omen = signal.map((value, at) => value + Math.sin(at));
        const difference = subject(signal, omen);
        const { codes, scales } = quantise(difference, 1, 8);
        const found = compareCodes(codes, 0, difference, scales, 8, 1);
        expect(found).toMatchObject({ compared: values.length, agreeing: values.length });
      }),
    );
  });

  test("a column of a strip has the share of its peaks", () => {
    const found = shares([1, -1, 1, 1, 0, 0], 1, 0, (step) => step / 2, 3);
    expect(Array.from(found)).toEqual([0.5, 1, Number.NaN]);
  });
});

describe("findings", () => {
  test("NaN and infinities are counted, with the first run of steps that have one, across windows", () => {
    const check = new ChannelCheck("signal/x", 2);
    check.add([1, 2, 3, Number.NaN]);
    check.add([Number.NaN, 1, Number.POSITIVE_INFINITY, 2, 5, 5, Number.NaN, 6]);
    const [found] = check.findings();
    expect(found).toMatchObject({ code: "not_finite", step: 1, run: 3, count: 4 });
    expect(found?.message).toBe("3 values are NaN, 1 values are infinite");
  });

  test("a dimension that never changes is a note, but not in a short channel", () => {
    const short = new ChannelCheck("signal/x", 1);
    short.add(new Float32Array(15));
    expect(short.findings()).toEqual([]);
    const long = new ChannelCheck("signal/x", 2);
    long.add(Float32Array.from({ length: 32 }, (_, at) => (at % 2 === 0 ? at : 7)));
    expect(long.findings()).toMatchObject([{ code: "constant_dimension", severity: "note", count: 1 }]);
  });

  test("time that runs backwards is found at its first step", () => {
    expect(checkTimes(BigInt64Array.from([1n, 2n, 2n, 1n, 5n, 4n]))).toMatchObject([
      { code: "time_backwards", step: 3, count: 2 },
    ]);
    expect(checkTimes(BigInt64Array.from([1n, 2n]))).toEqual([]);
  });

  test("the doctor's report is read, and is not repeated by our own checks", () => {
    const finding = { code: "not_finite", severity: "warning", message: "3 NaN", block: "signal/x", step: 4, count: 3 };
    const doctor = parseDoctor({ files: [{ findings: [finding, "nonsense", null] }] });
    expect(doctor).toMatchObject([{ code: "not_finite", step: 4, isOwn: false }]);
    const own = new ChannelCheck("signal/x", 1);
    own.add([Number.NaN]);
    expect(joinFindings(doctor, own.findings())).toEqual(doctor);
    for (const odd of [null, {}, { files: 3 }, { findings: { a: 1 } }, { files: [null, []] }]) {
      expect(parseDoctor(odd as never)).toEqual([]);
    }
  });

  test("the range around a finding has it inside", () => {
    const { start, end } = rangeAround(500, 30, 10_000);
    expect(start).toBeLessThan(500);
    expect(end).toBeGreaterThan(530);
  });
});

describe("bytes", () => {
  test("lines have an offset, the digits and the letters of 16 bytes", () => {
    const [first, last] = hexLines(new TextEncoder().encode("Hello, world!\nabcd"), 32, 50);
    expect(first).toEqual({
      offset: "00000020",
      hex: "48 65 6c 6c 6f 2c 20 77  6f 72 6c 64 21 0a 61 62",
      text: "Hello, world!·ab",
    });
    expect(last).toEqual({ offset: "00000030", hex: "63 64", text: "cd" });
  });

  test("an offset is decimal or hex, and everything else is none", () => {
    expect(["4096", "0x1000", " 1,024 ", "1e3", "-1", "0x", "", "9".repeat(20)].map(parseOffset)).toEqual([
      ...[4096, 4096, 1024],
      ...[null, null, null, null, null],
    ]);
  });
});

describe("numbers", () => {
  test("ticks are round, in order and inside", () => {
    const range = fc.double({ min: -1e6, max: 1e6, noNaN: true });
    fc.assert(
      fc.property(range, range, fc.integer({ min: 1, max: 12 }), (a, b, most) => {
        const [min, max] = [Math.min(a, b), Math.max(a, b)];
        const found = ticks(min, max, most);
        expect(found.length).toBeLessThanOrEqual(most + 1);
        const room = 1e-9 * Math.max(Math.abs(min), Math.abs(max));
        for (const [at, tick] of found.entries()) {
          expect(tick >= min - room && tick <= max + room).toBe(true);
          if (at > 0) expect(tick).toBeGreaterThan(found[at - 1] as number);
        }
      }),
    );
    expect(ticks(0, 1, 5)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
    expect(ticks(Number.NaN, 1, 5)).toEqual([]);
  });

  test("only everything is 100 %, and only nothing is 0 %", () => {
    expect([1, 0.99999, 0.5, 0.00001, 0, Number.NaN].map(shareText)).toEqual([
      ...["100 %", "> 99.9 %", "50 %", "< 0.1 %", "0 %", "–"],
    ]);
  });

  test("a bar has 0 inside, and its end stays in the track", () => {
    expect(place(0, 2, 4)).toBe(0);
    expect(place(0, -4, -2)).toBe(1);
    expect(place(3, -1, 1)).toBe(1);
    expect(place(0, -Number.MAX_VALUE, Number.MAX_VALUE)).toBe(0.5);
  });

  test("pieces are inside the range, in order, and no more than was allowed", () => {
    fc.assert(
      fc.property(fc.nat(1000), fc.nat(5000), fc.integer({ min: 16, max: 600 }), (start, length, most) => {
        const found = pieces(start, start + length, most);
        let total = 0;
        let last = start;
        for (const piece of found) {
          expect(piece.start).toBeGreaterThanOrEqual(last);
          last = piece.end;
          total += piece.end - piece.start;
        }
        expect(last).toBeLessThanOrEqual(start + length);
        expect(total).toBeLessThanOrEqual(most);
        if (length <= most) expect(total).toBe(length);
        else expect(found.at(-1)?.end).toBe(start + length);
      }),
    );
  });
});

test("only plain addresses of https become links", () => {
  expect(safeAddress("https://example.org/a?b=c#d")).toBe("https://example.org/a?b=c#d");
  for (const text of [
    "http://example.org",
    "javascript:alert(1)",
    "https://user:secret@example.org/",
    "https://example.org/\u202egpj.exe",
    "https://example.org/ and more",
    " https://example.org",
    "https://",
    "data:text/html,x",
  ]) {
    expect(safeAddress(text), text).toBeNull();
  }
});

describe("columns of a plot", () => {
  /** The rectangles that a line of columns fills, 1.5 pixels of the screen for each pixel of the page. */
  const filled = (
    values: readonly (readonly [number, number])[],
    isDashed: boolean,
    { shift, scale }: { shift: number; scale: number },
  ) => {
    const found: { left: number; right: number; top: number; bottom: number }[] = [];
    const context = {
      getTransform: () => ({ a: 1.5 }),
      setLineDash: () => {},
      fillRect: (left: number, top: number, width: number, height: number) =>
        found.push({ left, right: left + width, top, bottom: top + height }),
    };
    const line: Reduced = {
      original: false,
      x: Float64Array.from(values, (_, at) => at + 0.5),
      min: Float64Array.from(values, ([low]) => low),
      max: Float64Array.from(values, ([, high]) => high),
      flags: new Uint8Array(values.length),
      samples: 100 * values.length,
      counts: new Uint32Array(values.length).fill(100),
    };
    const scene = { context, x: (position: number) => position * scale + shift } as unknown as Scene;
    const area = plotArea(0, 100, 0, 100, 0);
    drawLine(scene, area, { line, colour: "", isDashed });
    return found;
  };
  const height = fc.integer({ min: 0, max: 100 });
  const columns = fc.array(
    fc.tuple(height, height).map(([a, b]) => [Math.min(a, b), Math.max(a, b)] as const),
    { minLength: 2, maxLength: 60 },
  );
  const place = fc.record({
    shift: fc.double({ min: -1, max: 1, noNaN: true }),
    scale: fc.double({ min: 0.3, max: 3, noNaN: true }),
  });

  test("each shows all its values, and nothing is free between it and the next", () => {
    fc.assert(
      fc.property(columns, place, (values, by) => {
        const found = filled(values, false, by);
        expect(found.length).toBe(values.length);
        for (const [at, { left, top, bottom, right }] of found.entries()) {
          expect(right - left).toBeGreaterThan(0.66);
          const [low, high] = values[at] ?? [0, 0];
          expect(top).toBeLessThan(100 - high);
          expect(bottom).toBeGreaterThan(100 - low);
          const next = found[at + 1];
          if (next === undefined) continue;
          expect(next.left).toBeLessThan(right + 1e-9);
          expect(Math.max(top, next.top)).toBeLessThan(Math.min(bottom, next.bottom));
        }
      }),
    );
  });

  test("a dashed line leaves out flat columns only", () => {
    fc.assert(
      fc.property(columns, place, (values, by) => {
        const dashed = new Set(filled(values, true, by).map((one) => JSON.stringify(one)));
        for (const one of filled(values, false, by)) {
          if (!dashed.has(JSON.stringify(one))) expect(one.bottom - one.top).toBeLessThan(6);
        }
      }),
    );
    expect(filled(Array(18).fill([50, 50]), true, { shift: 0, scale: 1 }).length).toBe(10);
  });
});
