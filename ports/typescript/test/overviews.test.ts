import { cp, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { overview } from "../conformance/overview.js";
import { canonicalJson, FolderSource, ShardError } from "../src/node.js";
import {
  type Episode,
  type Overview,
  type Overviews,
  openEpisode,
  openOverviews,
  saveEpisode,
  saveOverviews,
} from "../src/wshard/node.js";
import { cases, vectors } from "./told.js";

const folder = await mkdtemp(join(tmpdir(), "overviews-"));
afterAll(() => rm(folder, { recursive: true }));

/** Opens an episode with its overviews, which must be there, for `use`. */
async function withOverviews<T>(path: string, use: (overviews: Overviews, episode: Episode) => Promise<T>): Promise<T> {
  const episode = await openEpisode(path);
  try {
    const overviews = await openOverviews(episode);
    if (overviews === null) throw new Error(`${path}: no overviews`);
    try {
      return await use(overviews, episode);
    } finally {
      await overviews.close();
    }
  } finally {
    await episode.close();
  }
}

async function touch(overviews: Overviews, kind: string, name: string): Promise<void> {
  if (kind === "overview") expect(await overviews.read(name)).not.toBeNull();
  for (const poster of overviews.posters)
    if (kind === "poster" && poster.number === Number(name)) await overviews.readPoster(poster);
}

describe("vectors of overview files", () => {
  test("valid ones hold what their JSON says", async () => {
    for (const [name, given] of cases("valid_overviews")) {
      const found = await overview.read?.(`${vectors}valid_overviews/${given.file}`);
      const { overviews, posters, stale } = given;
      expect(canonicalJson(found), name).toBe(canonicalJson({ overviews, posters, stale }));
    }
  });

  test("one that breaks a rule is refused with its code, and the episode and all else can be read", async () => {
    for (const [name, given] of cases("invalid_overviews")) {
      if (given.when === "check") continue; // only a checking tool compares values
      const path = `${vectors}invalid_overviews/${given.file}`;
      const touched = (given.touch ?? []) as string[];
      const read = withOverviews(path, async (overviews) => {
        for (const block of overviews.blocks) if (block !== touched[1]) await touch(overviews, "overview", block);
        for (const { number } of overviews.posters)
          if (touched[0] !== "poster" || String(number) !== touched[1]) await touch(overviews, "poster", `${number}`);
        expect(given.when, name).toBe("touch");
        await touch(overviews, touched[0], touched[1]);
      });
      const error = await read.catch((error: unknown) => error);
      if (!(error instanceof ShardError)) throw new Error(`${name}: no ShardError: ${String(error)}`);
      expect([error.code, error.rule], `${name}: ${error.message}`).toEqual([given.error, given.rule]);
      expect(error.path, name).toBe(`${path}.overview`);
    }
  });
});

describe("overview files are found", () => {
  const given = `${vectors}valid_overviews/overview_posters/ep.wshard`;

  test("beside a URL, whose query stays, and are absent where the server has none", async () => {
    const asked: string[] = [];
    const server = createServer(async (request, response) => {
      asked.push(request.url ?? "");
      const file = decodeURIComponent(new URL(request.url ?? "", "http://x").pathname).replace("/a b", given);
      const content = file.startsWith("/bare") ? null : await readFile(file).catch(() => null);
      if (content === null) return void response.writeHead(404).end();
      const [first, last] = (/=(\d+)-(\d+)/.exec(request.headers.range ?? "") ?? []).slice(1).map(Number);
      const end = Math.min(last + 1, content.length);
      response.writeHead(206, { "content-range": `bytes ${first}-${end - 1}/${content.length}` });
      response.end(content.subarray(first, end));
    });
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    try {
      const address = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
      await withOverviews(`${address}/a%20b?v=1`, async (overviews) => {
        expect(overviews.posters.length).toBe(3);
      });
      expect(asked.filter((url) => url.endsWith(".overview?v=1"))).toEqual(["/a%20b.overview?v=1"]);
      const bare = join(folder, "bare.wshard");
      await cp(given, bare);
      const episode = await openEpisode(`${address}${bare}`);
      expect(await openOverviews(episode)).toBeNull();
      await episode.close();
    } finally {
      server.close();
    }
  });

  test("among files that a user has dropped, and by name", async () => {
    const [episodeBytes, bytes] = await Promise.all([given, `${given}.overview`].map((path) => readFile(path)));
    const files = new Map([
      ["run/ep.wshard", new File([episodeBytes], "ep.wshard")],
      ["run/ep.wshard.overview", new File([bytes], "ep.wshard.overview")],
    ]);
    const dropped = await openEpisode(new FolderSource(files, "run/ep.wshard"));
    expect((await openOverviews(dropped))?.posters.length).toBe(3);
    const alone = await openEpisode(episodeBytes);
    expect(await openOverviews(alone)).toBeNull();
    const named = await openOverviews(alone, { file: `${given}.overview` });
    expect(named?.posters.length).toBe(3);
    await named?.close();
  });

  test("and one of other data is not believed", async () => {
    const path = join(folder, "other.wshard");
    await cp(`${vectors}valid_overviews/overview_own_clock/ep.wshard`, path);
    await cp(`${vectors}valid_overviews/overview_types/ep.wshard.overview`, `${path}.overview`);
    await withOverviews(path, async (overviews) => {
      expect(overviews.blocks).toEqual([]);
      expect(overviews.stale).toContain("signal/f32");
      expect(await overviews.read("signal/f32")).toBeNull();
    });
    await writeFile(`${path}.overview`, "SHRD and no more");
    const episode = await openEpisode(path);
    await expect(openOverviews(episode)).rejects.toThrow(/other\.wshard\.overview/);
    expect(episode.observations.has("state")).toBe(true);
    await episode.close();
  });
});

describe("overview files are written", () => {
  const length = 20_000;
  const inBuckets = (numbers: ArrayLike<number | bigint>, values: number, value: number) =>
    Array.from({ length: length / 5 }, (_, bucket) =>
      Array.from({ length: 5 }, (_, entry) => numbers[(bucket * 5 + entry) * values + value]),
    );

  test("with the minimum, the maximum and the mean of each bucket", async () => {
    const path = join(folder, "long.wshard");
    const wave = Float32Array.from({ length: 2 * length }, (_, at) => Math.sin(at) * at);
    const counts = BigInt64Array.from({ length }, (_, at) => (at % 2 ? 1n : -1n) * 2n ** 60n + BigInt(at));
    await saveEpisode(
      {
        id: "long",
        timebase: { tickHz: 1000 },
        observations: { wave: { data: wave, shape: [2] }, counts: { data: counts } },
        rewards: new Float32Array(length).fill(0.5),
      },
      path,
      { compression: "zstd" },
    );
    const before = await readFile(path);
    expect(await saveOverviews(path)).toBe(true);
    expect((await readFile(path)).equals(before)).toBe(true);
    await withOverviews(path, async (overviews) => {
      expect(overviews.stale).toEqual([]);
      const found = (await overviews.read("signal/wave")) as Overview;
      for (const value of [0, 1]) {
        const buckets = inBuckets(wave, 2, value) as number[][];
        const of = (array: ArrayLike<unknown>) => Array.from(array).slice(value * 4000, (value + 1) * 4000);
        expect(of(found.minima)).toEqual(buckets.map((bucket) => Math.min(...bucket)));
        expect(of(found.maxima)).toEqual(buckets.map((bucket) => Math.max(...bucket)));
        const means = buckets.map((bucket) => Math.fround(bucket.reduce((sum, one) => sum + one, 0) / 5));
        expect(of(found.means)).toEqual(means);
      }
      const integers = (await overviews.read("signal/counts")) as Overview;
      // Every second entry is negative, and they rise: the least of a bucket is its first or its second.
      const least = (inBuckets(counts, 1, 0) as bigint[][]).map((bucket) => (bucket[0] < 0n ? bucket[0] : bucket[1]));
      expect(Array.from(integers.minima as BigInt64Array)).toEqual(least);
      expect((await overviews.read("reward"))?.means[7]).toBe(0.5);
    });
  });

  test("not where no channel is long, nor for an episode in chunks", async () => {
    const path = join(folder, "short.wshard");
    await saveEpisode({ id: "short", actions: { a: { data: new Float32Array(9) } } }, path);
    expect(await saveOverviews(path)).toBe(false);
    await expect(saveOverviews(`${vectors}valid_episodes/chunks/run_manifest.wshard`)).rejects.toThrow(/chunks/);
    expect((await readdir(folder)).filter((name) => name.startsWith("short"))).toEqual(["short.wshard"]);
  });

  test("without NaN, unless a bucket has nothing else", async () => {
    const path = join(folder, "nan.wshard");
    const data = new Float64Array(length).fill(1);
    data.set([Number.NaN, Number.POSITIVE_INFINITY]);
    data.fill(Number.NaN, 5, 10);
    await saveEpisode({ id: "nan", observations: { x: { data } } }, path);
    await saveOverviews(path);
    await withOverviews(path, async (overviews) => {
      const { minima, maxima, means } = (await overviews.read("signal/x")) as Overview;
      expect([...minima].slice(0, 3)).toEqual([1, Number.NaN, 1]);
      expect([...maxima].slice(0, 3)).toEqual([Number.POSITIVE_INFINITY, Number.NaN, 1]);
      expect([...means].slice(0, 3)).toEqual([Number.POSITIVE_INFINITY, Number.NaN, 1]);
    });
  });
});
