import { expect, test } from "vitest";
import { CachedSource, type Source } from "../src/index.js";

const file = Uint8Array.from({ length: 4_000_000 }, (_, at) => (at * 7) ^ (at >> 8));

/** A file that answers when the test says so. */
class SlowSource implements Source {
  readonly path = "slow";
  readonly stats = { requests: 0, bytes: 0 };
  readonly asked: { offset: number; length: number; signal: AbortSignal | undefined; answer: () => void }[] = [];
  answersAtOnce = false;
  closed = 0;

  async start() {
    return { size: file.length, head: file.subarray(0, 64) };
  }

  read(offset: number, length: number, { signal }: { signal?: AbortSignal | undefined } = {}): Promise<Uint8Array> {
    this.stats.requests++;
    return new Promise((resolve, reject) => {
      signal?.addEventListener("abort", () => reject(signal.reason));
      const answer = () => resolve(file.subarray(offset, offset + length));
      this.asked.push({ offset, length, signal, answer });
      if (this.answersAtOnce) answer();
    });
  }

  async sibling(): Promise<Source> {
    return this;
  }

  async close() {
    this.closed++;
  }

  /** Waits until it was asked so often in all. */
  async askedTimes(count: number): Promise<void> {
    while (this.asked.length < count) await new Promise((done) => setTimeout(done));
  }
}

const bytesOf = (offset: number, length: number) => file.subarray(offset, offset + length);
const ranges = (source: SlowSource) => source.asked.map(({ offset, length }) => [offset, length]);

test("ranges that are asked for together become one request if they are near each other", async () => {
  const slow = new SlowSource();
  const cached = new CachedSource(slow);
  const wanted = [
    [1000, 10],
    [60_000, 500],
    [2_000_000, 100],
    [1990_000, 20],
    [1005, 100],
  ] as const;
  const reads = wanted.map(([offset, length]) => cached.read(offset, length));
  await slow.askedTimes(2);
  expect(ranges(slow)).toEqual([
    [1000, 59_500],
    [1990_000, 10_100],
  ]);
  for (const { answer } of slow.asked) answer();
  expect(await Promise.all(reads)).toEqual(wanted.map(([offset, length]) => bytesOf(offset, length)));
  // It remembers what it read, with what was between.
  expect(await cached.read(30_000, 1000)).toEqual(bytesOf(30_000, 1000));
  expect(slow.stats.requests).toBe(2);
});

test("a range that is on its way is not asked for again", async () => {
  const slow = new SlowSource();
  const cached = new CachedSource(slow);
  const first = cached.read(0, 1000);
  await slow.askedTimes(1);
  const second = cached.read(100, 200);
  slow.asked[0].answer();
  expect([await first, await second]).toEqual([bytesOf(0, 1000), bytesOf(100, 200)]);
  expect(slow.stats.requests).toBe(1);
});

test("six requests run at the same time, of the files of an episode together, and the shortest range comes first", async () => {
  const slow = new SlowSource();
  const cached = new CachedSource(slow);
  const beside = (await cached.sibling?.("beside")) as Source;
  const reads = Array.from({ length: 9 }, (_, at) => (at % 2 ? beside : cached).read(at * 300_000, 9000 - 1000 * at));
  await slow.askedTimes(6);
  expect(slow.asked.map(({ length }) => length)).toEqual([1000, 2000, 3000, 4000, 5000, 6000]);
  slow.asked[3].answer();
  await slow.askedTimes(7);
  expect(slow.asked[6].length).toBe(7000);
  await new Promise((done) => setTimeout(done));
  expect(slow.asked.length).toBe(7);
  for (let at = 0; at < 9; at++) {
    await slow.askedTimes(at + 1);
    slow.asked[at].answer();
  }
  expect((await Promise.all(reads)).map(({ length }) => length)).toEqual(
    [9, 8, 7, 6, 5, 4, 3, 2, 1].map((k) => k * 1000),
  );
});

test("it remembers no more than it may, and forgets first what was not used for longest", async () => {
  const slow = new SlowSource();
  const cached = new CachedSource(slow, 250_000);
  slow.answersAtOnce = true;
  const read = async (offset: number) => {
    const before = slow.stats.requests;
    const found = await cached.read(offset, 100_000);
    expect(Buffer.compare(found, bytesOf(offset, 100_000))).toBe(0);
    return slow.stats.requests > before;
  };
  expect(await read(0)).toBe(true);
  expect(await read(1_000_000)).toBe(true);
  expect(await read(0)).toBe(false);
  expect(await read(2_000_000)).toBe(true); // the one at 1 000 000 goes
  expect(await read(0)).toBe(false);
  expect(await read(1_000_000)).toBe(true);
});

test("a read that is given up fails with its reason, and a request ends when nobody waits for it", async () => {
  const slow = new SlowSource();
  const cached = new CachedSource(slow);
  const [one, other] = [new AbortController(), new AbortController()];
  const first = cached.read(0, 100, { signal: one.signal });
  const second = cached.read(200, 100, { signal: other.signal });
  await slow.askedTimes(1);
  one.abort(new Error("scrolled away"));
  await expect(first).rejects.toThrow("scrolled away");
  expect(slow.asked[0].signal?.aborted).toBe(false);
  other.abort();
  await expect(second).rejects.toMatchObject({ name: "AbortError" });
  expect(slow.asked[0].signal?.aborted).toBe(true);
  await expect(cached.read(0, 1, { signal: one.signal })).rejects.toThrow("scrolled away");
  expect(slow.stats.requests).toBe(1);
});

test("closing ends what is waited for", async () => {
  const slow = new SlowSource();
  const cached = new CachedSource(slow);
  const read = cached.read(0, 100);
  const closed = expect(read).rejects.toMatchObject({ code: "closed" });
  await cached.close();
  await closed;
  expect(slow.closed).toBe(1);
});

test("what is read after a new start is not what was remembered before", async () => {
  const slow = new SlowSource();
  const cached = new CachedSource(slow);
  await cached.start();
  expect(await cached.read(0, 64)).toEqual(bytesOf(0, 64));
  expect(slow.stats.requests).toBe(0);
  const read = cached.read(1000, 10);
  await slow.askedTimes(1);
  slow.asked[0].answer();
  await read;
  await cached.start();
  void cached.read(1000, 10);
  await slow.askedTimes(2);
});
