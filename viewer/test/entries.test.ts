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

describe("the entries that an episode keeps", () => {
  test("are read in groups that begin at multiples of their size, each once", async () => {
    const { asks, entries } = setup();
    const [a, b] = [entries.load(channel, 9), entries.load(channel, 10)];
    expect(asks.map(({ start, end }) => [start, end])).toEqual([[8, 12]]);
    asks[0]?.answer();
    expect([(await a)[0], (await b)[0], entries.get(channel, 11)?.[0]]).toEqual([9, 10, 11]);
    expect([entries.get(channel, 12), asks.length]).toEqual([undefined, 1]);
  });

  test("are given up when the cursor has moved on, but for those that come next", async () => {
    const { asks, entries } = setup();
    const far = entries.load(channel, 500).catch((error: Error) => error.name);
    entries.prepare(channel, 8);
    const here = entries.load(channel, 8);
    expect(asks.map(({ start, signal }) => [start, signal?.aborted])).toEqual([
      [500, true],
      [12, false],
      [8, false],
    ]);
    for (const { answer } of asks) answer();
    expect([await far, (await here)[0]]).toEqual(["AbortError", 8]);
  });

  test("take no more than 128 MiB: those that were not used for longest go", async () => {
    const { asks, entries } = setup();
    for (let group = 0; group < 33; group++) {
      const loading = entries.load(channel, 4 * group);
      asks.at(-1)?.answer();
      await loading;
      entries.get(channel, 0); // is used all the time
    }
    expect([entries.get(channel, 0)?.[0], entries.get(channel, 4), entries.get(channel, 8)?.[0]]).toEqual([
      0,
      undefined,
      8,
    ]);
  });

  test("are asked for again after an error", async () => {
    const { asks, entries } = setup();
    const failing = entries.load(channel, 0);
    asks[0]?.answer(new Uint8Array(5));
    await expect(failing).rejects.toThrow("signal/camera: 5 values for 4 steps of 1048576 each");
    const again = entries.load(channel, 0);
    asks[1]?.answer();
    expect((await again)[0]).toBe(0);
  });

  test("are not read if one of them is larger than any picture", async () => {
    const { asks, entries } = setup();
    const huge = { ...channel, key: "signal/huge", dimensions: 2 ** 40 };
    await expect(entries.load(huge, 0)).rejects.toThrow("at most 67108864 are shown");
    expect(asks.length).toBe(0);
  });
});
