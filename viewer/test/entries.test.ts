import { describe, expect, test } from "vitest";
import { Entries } from "../src/model/entries";
import type { EpisodeModel } from "../src/model/episode";
import type { ChannelFacts } from "../src/model/facts";
import type { ReadOptions, Window } from "../src/model/reads";

interface Ask {
  readonly start: number;
  readonly end: number;
  readonly signal: AbortSignal | undefined;
  readonly answer: (values?: Uint8Array<ArrayBuffer>) => void;
}

const channel = {
  key: "signal/camera",
  layout: "dense",
  dimensions: 1 << 20,
  length: 1000,
  bytes: 1000 * (1 << 20),
} as ChannelFacts;

/** Entries of 1 MiB, four in a group, whose reads are answered by hand. */
function setup() {
  const asks: Ask[] = [];
  const window = (_key: string, start: number, end: number, { signal }: ReadOptions = {}) =>
    new Promise<Window>((resolve, reject) => {
      signal?.addEventListener("abort", () => reject(new DOMException("", "AbortError")));
      const values = () => {
        const all = new Uint8Array((end - start) * channel.dimensions);
        for (let i = start; i < end; i++) all[(i - start) * channel.dimensions] = i % 256;
        return all;
      };
      const answer = (given = values()) => resolve({ kind: "dense", start, values: given });
      asks.push({ start, end, signal, answer });
    });
  return { asks, entries: new Entries({ reads: { window } } as unknown as EpisodeModel) };
}

/** The same after the first entry, number 0. */
async function begun() {
  const made = setup();
  const first = made.entries.load(channel, 0);
  made.asks[0]?.answer();
  await first;
  made.asks.length = 0;
  return made;
}

describe("the entries that an episode keeps", () => {
  test("begin with the one that is asked for first, alone: the first picture waits for no other", async () => {
    const { asks, entries } = setup();
    const first = entries.load(channel, 9);
    entries.prepare(channel, 9);
    expect(asks.map(({ start, end }) => [start, end])).toEqual([[9, 10]]);
    asks[0]?.answer();
    expect([(await first)[0], entries.get(channel, 9)?.[0], entries.get(channel, 10)]).toEqual([9, 9, undefined]);
  });

  test("are then read in groups that begin at multiples of their size, each once", async () => {
    const { asks, entries } = await begun();
    const [a, b] = [entries.load(channel, 9), entries.load(channel, 10)];
    expect(asks.map(({ start, end }) => [start, end])).toEqual([[8, 12]]);
    asks[0]?.answer();
    expect([(await a)[0], (await b)[0], entries.get(channel, 11)?.[0]]).toEqual([9, 10, 11]);
    expect([entries.get(channel, 12), asks.length]).toEqual([undefined, 1]);
  });

  test("are given up when the cursor has moved on, but for those that come next", async () => {
    const { asks, entries } = await begun();
    const here = entries.load(channel, 8);
    asks[0]?.answer();
    await here;
    const far = entries.load(channel, 500).catch((error: Error) => error.name);
    entries.prepare(channel, 8);
    const near = entries.load(channel, 16);
    expect(asks.slice(1).map(({ start, signal }) => [start, signal?.aborted])).toEqual([
      [500, true],
      [12, true],
      [16, false],
    ]);
    asks.at(-1)?.answer();
    expect([await far, (await near)[0]]).toEqual(["AbortError", 16]);
  });

  test("take no more room than they may: those that were not used for longest go", async () => {
    const { asks, entries } = await begun();
    const groups = 40;
    for (let group = 0; group < groups; group++) {
      const loading = entries.load(channel, 4 * group + 1);
      asks.at(-1)?.answer();
      await loading;
      entries.get(channel, 1); // is used all the time
    }
    const kept = Array.from({ length: groups }, (_, group) => group).filter((group) => {
      return entries.get(channel, 4 * group + 1) !== undefined;
    });
    expect(kept.length * 4).toBeLessThanOrEqual(64);
    expect(kept).toEqual([0, ...Array.from({ length: kept.length - 1 }, (_, i) => groups - kept.length + 1 + i)]);
  });

  test("are asked for again after an error", async () => {
    const { asks, entries } = await begun();
    const failing = entries.load(channel, 8);
    asks[0]?.answer(new Uint8Array(5));
    await expect(failing).rejects.toThrow("signal/camera: 5 values for 4 steps of 1048576 each");
    const again = entries.load(channel, 8);
    asks[1]?.answer();
    expect((await again)[0]).toBe(8);
  });

  test("are not read if one of them is larger than any picture", async () => {
    const { asks, entries } = setup();
    const huge = { ...channel, key: "signal/huge", dimensions: 2 ** 40 };
    await expect(entries.load(huge, 0)).rejects.toThrow("at most 67108864 are shown");
    expect(asks.length).toBe(0);
  });
});
