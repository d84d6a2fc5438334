// What is found before anybody asks: from what plots have read, and from what is small.

import { type Signal, signal } from "@preact/signals";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { EpisodeModel } from "../src/model/episode";
import type { ChannelFacts, EpisodeFacts } from "../src/model/facts";
import type { Columns, Reads, Window } from "../src/model/reads";
import { checkKnown } from "../src/panels/findings/checks";
import { findingsOf } from "../src/panels/findings/found";
import { stepClock } from "../src/plot-data/clocks";
import { columns } from "../src/plot-data/columns";
import { Pyramid } from "../src/plot-data/pyramid";
import { samplesOf } from "../src/plot-data/samples";

function known(values: Float32Array, read = values.length): Columns {
  const pyramid = new Pyramid(values.length, { exact32: true });
  pyramid.fill(samplesOf(values.subarray(0, read)));
  const range = { start: 0, end: values.length - 1 };
  const line = columns({ pyramid }, stepClock(values.length), { from: 0, to: range.end, width: 1024 });
  return { range, lines: [line], factor: 1, read: read / values.length, timesOff: 0 };
}

describe("what plots have read", () => {
  const values = new Float32Array(100_000);
  values[54_321] = Number.NaN;

  test("tells where the first value is that is no number, to the width of a column", () => {
    const [found] = checkKnown("signal/x", known(values));
    expect(found).toMatchObject({ code: "not_finite", severity: "warning", block: "signal/x", count: null });
    expect(found?.step).toBeLessThanOrEqual(54_321);
    expect((found?.step ?? 0) + 2 * (found?.run ?? 0)).toBeGreaterThan(54_321);
  });

  test("tells nothing of what was not read yet, and nothing where all values are numbers", () => {
    expect(checkKnown("signal/x", known(values, 50_000))).toEqual([]);
    expect(checkKnown("signal/x", known(new Float32Array(1000)))).toEqual([]);
  });
});

describe("while nobody looks at the findings", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  const channel = (key: string, storedBytes: number, length: number) =>
    ({
      key,
      lane: "signal",
      id: key,
      layout: "dense",
      problem: null,
      dimensions: 1,
      storedBytes,
      length,
    }) as ChannelFacts;

  function episode() {
    const large = new Float32Array(1 << 20);
    large[900_000] = Infinity;
    const arrived: Record<string, Signal<number>> = { small: signal(0), large: signal(0), unseen: signal(0) };
    const windows: string[] = [];
    let isPlotted = false;
    const reads: Partial<Reads> = {
      arrived: (key) => arrived[key] as Signal<number>,
      findings: async () => null,
      known: async (key) => (isPlotted && key === "large" ? known(large) : null),
      window: async (key, start): Promise<Window> => {
        windows.push(key);
        return { kind: "dense", start, values: Float32Array.of(1, 2, Number.NaN, 4) };
      },
      times: async () => BigInt64Array.of(0n, 5n, 3n, 9n),
    };
    const channels = [
      channel("small", 16, 4),
      channel("large", 4 << 20, large.length),
      channel("unseen", 4 << 20, 1 << 20),
    ];
    const facts: Partial<EpisodeFacts> = { channels, hasTimestamps: true, length: 4 };
    const plotted = () => {
      isPlotted = true;
      (arrived["large"] as Signal<number>).value++;
    };
    return { model: new EpisodeModel(facts as EpisodeFacts, reads as Reads), windows, plotted };
  }

  test("small channels and clocks are read, large ones are not, and what a plot has read of them is looked at", async () => {
    const { model, windows, plotted } = episode();
    const found = findingsOf(model);
    const stop = found.watch();
    expect(windows).toEqual([]);
    await vi.advanceTimersByTimeAsync(2000);
    expect(windows).toEqual(["small"]);
    const codes = () => found.state.value.findings.map(({ code, block, step }) => `${code} ${block} ${step}`);
    expect(codes().sort()).toEqual(["not_finite small 2", "time_backwards time/timestamps_ns 2"]);
    plotted();
    await vi.advanceTimersByTimeAsync(2000);
    expect(windows).toEqual(["small"]);
    expect(codes()).toHaveLength(3);
    expect(codes().sort()[0]).toMatch(/^not_finite large 89\d\d\d\d/);
    stop();
  });

  test("whoever asks then gets the exact ones, each once", async () => {
    const { model, windows, plotted } = episode();
    const found = findingsOf(model);
    const stop = found.watch();
    plotted();
    await vi.advanceTimersByTimeAsync(2000);
    found.start();
    await vi.advanceTimersByTimeAsync(2000);
    expect(windows.filter((key) => key === "small")).toHaveLength(1);
    expect(windows).toContain("large");
    const about = found.state.value.findings.map(({ block }) => block);
    expect([...about].sort()).toEqual(["large", "small", "time/timestamps_ns", "unseen"]);
    expect(found.state.value).toMatchObject({ checked: 3, planned: 3 });
    stop();
  });
});
