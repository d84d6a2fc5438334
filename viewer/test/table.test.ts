// Drawings as tables: the numbers of the view, and no more of them than a table has room for.

import { signal } from "@preact/signals";
import type { TypedArray } from "@shard-format/core";
import { describe, expect, test } from "vitest";
import { EpisodeModel } from "../src/model/episode";
import type { ChannelFacts, EpisodeFacts } from "../src/model/facts";
import { atCursor, overTime, type TableQuestion } from "../src/panels/table";
import { View } from "../src/state/view";
import { MadeUpReads } from "./browser/pictures/reads";

interface Made {
  readonly key: string;
  readonly values: TypedArray;
  readonly dimensions?: number;
  readonly more?: Partial<ChannelFacts>;
  readonly positions?: Float64Array;
}

function question(length: number, made: readonly Made[], facts: Partial<EpisodeFacts> = {}): TableQuestion {
  const channels = made.map(({ key, values, dimensions = 1, more = {}, positions }) => {
    const [lane, id, model = ""] = key.split("/") as [ChannelFacts["lane"], string, string];
    const own: Partial<ChannelFacts> = { lane, id, model, key, dimensions, length: values.length / dimensions };
    const usual = {
      layout: "dense",
      dtype: "f32",
      shape: [dimensions],
      row: {},
      problem: null,
      unit: "",
      horizon: null,
    };
    return {
      values,
      positions,
      facts: { type: "", bytes: values.byteLength, ...usual, ...own, ...more } as ChannelFacts,
    };
  });
  const all = channels.map(({ facts, values, positions }) => ({ facts, values, ...(positions ? { positions } : {}) }));
  const reads = new MadeUpReads({ length, channels: all });
  const known = { rate: 10, hasTimestamps: false, epochNs: "0", channels: all.map(({ facts }) => facts), ...facts };
  const episode = new EpisodeModel(known as EpisodeFacts, reads);
  const [subject] = episode.subjects;
  if (subject === undefined) throw new Error("no subject");
  return { episode, subject, view: new View(signal(length)), settings: {} };
}

const lines = overTime(({ subject }) =>
  [subject.channel, ...subject.predictions].map(({ key, model }) => ({ name: model || "recorded", key })),
);

describe("a table over time", () => {
  const wave = Float32Array.from({ length: 1000 }, (_, step) => (step === 777 ? 50 : Math.sin(step / 10)));

  test("has a row for each step once fewer than a hundred are in view, with every digit of its type", async () => {
    const asked = question(1000, [{ key: "signal/x", values: wave }]);
    asked.view.show({ start: 760, end: 800 });
    const { columns, rows, about } = await lines(asked, {});
    expect(columns).toEqual(["step", "time", "recorded"]);
    expect(rows).toHaveLength(40);
    expect(about).toContain("Each row is a step");
    expect(rows[17]).toEqual({ position: 777, cells: ["777", "1:17.7", "50"] });
    for (const { position, cells } of rows) expect(Math.fround(Number(cells[2]))).toBe(wave[position as number]);
  });

  test("has 50 rows of the least and the largest of a long view, and loses no spike", async () => {
    const { rows, about } = await lines(question(1000, [{ key: "signal/x", values: wave }]), {});
    expect(rows).toHaveLength(50);
    expect(about).toContain("50 rows");
    expect(rows[38]?.cells[0]).toBe("760 … 779");
    expect(rows[38]?.cells[2]).toMatch(/… 50$/);
  });

  test("says what is no number in words", async () => {
    const values = Float32Array.of(Number.NaN, Infinity, -Infinity, 1);
    const { rows } = await lines(question(4, [{ key: "signal/x", values }]), {});
    expect(rows.map(({ cells }) => cells[2])).toEqual(["NaN", "+∞", "−∞", "1"]);
  });

  test("leaves the cell empty where a line has ended before the others", async () => {
    const made = [
      { key: "signal/x", values: Float32Array.of(1, 2, 3) },
      { key: "omen/x/m", values: Float32Array.of(4, 5) },
    ];
    const { columns, rows } = await lines(question(3, made), {});
    expect(columns.slice(2)).toEqual(["recorded", "m"]);
    expect(rows.map(({ cells }) => cells[3])).toEqual(["4", "5", ""]);
  });

  test("has at most 40 columns of values, says so, and shows the dimension that was chosen", async () => {
    const asked = question(3, [{ key: "signal/x", values: new Float32Array(300), dimensions: 100 }]);
    const { columns, about } = await lines(asked, {});
    expect(columns).toHaveLength(42);
    expect(about).toContain("40 of 100 dimensions");
    asked.view.dimension.value = 7;
    expect((await lines(asked, {})).columns).toEqual(["step", "time", "7 recorded"]);
  });

  test("of a channel with its own clock has its entries where they are, and no time of another clock", async () => {
    const made = { key: "signal/x", values: Float32Array.of(1, 2, 3), positions: Float64Array.of(0.25, 1.5, 1.5) };
    const { columns, rows } = await lines(question(3, [made], { rate: null }), {});
    expect(columns).toEqual(["step", "recorded"]);
    expect(rows.map(({ cells }) => cells)).toEqual([
      ["0.25", "1"],
      ["1.5", "2 … 3"],
    ]);
  });
});

test("a table at the cursor sums up what was recorded, what was predicted and how far it was off", async () => {
  const asked = question(2, [
    { key: "signal/x", values: Float32Array.of(9, 9, 9, 9, 1, 2, 3, Number.NaN), dimensions: 4 },
    { key: "omen/x/m", values: Float32Array.of(9, 9, 9, 9, 2, 2, 5, 2), dimensions: 4 },
  ]);
  asked.view.seek(1);
  const { columns, rows, about } = await atCursor(() => ({ names: ["a", "b"] }))(asked, {});
  expect(about).toContain("step 1");
  expect(columns.slice(1)).toEqual(["min", "mean", "max", "NaN"]);
  expect(rows.map(({ cells }) => cells)).toEqual([
    ["recorded a", "1", "2", "3", "0"],
    ["recorded b", "2", "2", "2", "1"],
    ["predicted by m a", "2", "3.5", "5", "0"],
    ["predicted by m b", "2", "2", "2", "0"],
    ["error a", "1", "1.5", "2", "0"],
    ["error b", "0", "0", "0", "1"],
  ]);
});

test("a table of a picture whose colours stand one after the other, or that has more values than names, finds them", async () => {
  const asked = question(1, [{ key: "signal/x", values: Float32Array.of(1, 2, 3, 4, 5, 6), dimensions: 6 }]);
  const planar = await atCursor(() => ({ names: ["a", "b"], isPlanar: true }))(asked, {});
  expect(planar.rows.map(({ cells }) => cells[2])).toEqual(["2", "5"]);
  const wide = await atCursor(() => ({ names: ["a"], width: 3 }))(asked, {});
  expect(wide.rows.map(({ cells }) => cells[2])).toEqual(["2.5"]);
});
