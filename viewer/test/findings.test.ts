// What is found before anybody asks: from what plots have read, and from what is small.

import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { EpisodeModel } from "../src/model/episode";
import type { ChannelFacts, EpisodeFacts } from "../src/model/facts";
import type { Columns, Reads, Window } from "../src/model/reads";
import { checkColumns } from "../src/panels/findings/checks";
import { findingsOf } from "../src/panels/findings/found";
import { stepClock } from "../src/plot-data/clocks";
import { columns } from "../src/plot-data/columns";
import { Pyramid } from "../src/plot-data/pyramid";
import { samplesOf } from "../src/plot-data/samples";

function columnsOf(values: Float32Array, read = values.length): Columns {
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
    const [found] = checkColumns("signal/x", columnsOf(values));
    expect(found).toMatchObject({ code: "not_finite", severity: "warning", block: "signal/x", count: null });
    expect(found?.step).toBeLessThanOrEqual(54_321);
    expect((found?.step ?? 0) + 2 * (found?.run ?? 0)).toBeGreaterThan(54_321);
  });

  test("tells nothing of what was not read yet, and nothing where all values are numbers", () => {
    expect(checkColumns("signal/x", columnsOf(values, 50_000))).toEqual([]);
    expect(checkColumns("signal/x", columnsOf(new Float32Array(1000)))).toEqual([]);
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
    const windows: string[] = [];
    const reads: Partial<Reads> = {
      findings: async () => null,
      window: async (key, start): Promise<Window> => {
        windows.push(key);
        return { kind: "dense", start, values: Float32Array.of(1, 2, Number.NaN, 4) };
      },
      times: async () => BigInt64Array.of(0n, 5n, 3n, 9n),
    };
    const large = channel("large", 4 << 20, 1 << 20);
    const channels = [channel("small", 16, 4), large, channel("unseen", 4 << 20, 1 << 20)];
    const facts: Partial<EpisodeFacts> = { channels, hasTimestamps: true, length: 4 };
    const values = new Float32Array(1 << 20);
    values[900_000] = Infinity;
    return { found: findingsOf(new EpisodeModel(facts as EpisodeFacts, reads as Reads)), windows, large, values };
  }

  test("small channels and clocks are checked, large ones are not read, and what a plot has read of them counts", async () => {
    const { found, windows, large, values } = episode();
    const codes = () => found.state.value.findings.map(({ code, block, step }) => `${code} ${block} ${step}`).sort();
    found.startSmall();
    expect(windows).toEqual([]);
    await vi.advanceTimersByTimeAsync(2000);
    expect(windows).toEqual(["small"]);
    expect(codes()).toEqual(["not_finite small 2", "time_backwards time/timestamps_ns 2"]);
    found.see(large, columnsOf(values));
    expect(windows).toEqual(["small"]);
    expect(codes()[0]).toMatch(/^not_finite large (89[89]|900)\d\d\d/);
  });

  test("nothing is read for an episode that was closed at once", async () => {
    const { found, windows } = episode();
    found.startSmall()();
    await vi.advanceTimersByTimeAsync(2000);
    expect(windows).toEqual([]);
  });

  test("whoever asks then gets the exact ones, each once", async () => {
    const { found, windows, large, values } = episode();
    found.see(large, columnsOf(values));
    found.startSmall();
    await vi.advanceTimersByTimeAsync(2000);
    found.start();
    await vi.advanceTimersByTimeAsync(2000);
    found.see(large, columnsOf(values));
    expect(windows.filter((key) => key === "small")).toHaveLength(1);
    expect(windows).toContain("large");
    const about = found.state.value.findings.map(({ block }) => block);
    expect([...about].sort()).toEqual(["large", "small", "time/timestamps_ns", "unseen"]);
    expect(found.state.value).toMatchObject({ checked: 3, planned: 3 });
  });
});
