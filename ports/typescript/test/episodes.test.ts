import { readFileSync } from "node:fs";
import { cp, mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, describe, expect, test } from "vitest";
import { episode } from "../conformance/episode.js";
import { canonicalJson, type JsonObject, ShardError } from "../src/node.js";
import {
  checkEpisode,
  type DenseChannel,
  dequantise,
  encodeEpisode,
  openEpisode,
  packSigns,
  quantise,
  saveEpisode,
  secondDifferenceSigns,
  unpackSigns,
} from "../src/wshard/node.js";
import { asWanted, cases, omit, plain, vectors } from "./told.js";

const folder = await mkdtemp(join(tmpdir(), "episodes-"));
afterAll(() => rm(folder, { recursive: true }));

describe("vectors of episodes", () => {
  test.each(["valid", "valid_episodes"])("every episode in %s is read as its JSON says", async (kind) => {
    for (const [name, given] of cases(kind)) {
      if (given.episode === undefined) continue;
      const wanted = plain(given.episode);
      const found = asWanted(await episode.read?.(`${vectors}${kind}/${given.file}`), wanted);
      expect(canonicalJson(found), name).toBe(canonicalJson(wanted));
    }
  });

  test("every invalid episode is refused with its code and rule, and its other lanes stay readable", async () => {
    for (const [name, given] of cases("invalid_episodes")) {
      const path = `${vectors}invalid_episodes/${given.file}`;
      const error = await episode.step?.(path, given).catch((error: unknown) => error);
      if (!(error instanceof ShardError)) throw new Error(`${name}: no ShardError: ${String(error)}`);
      const also = (given.also ?? []) as string[];
      expect([given.error, ...also], `${name}: ${error.message}`).toContain(error.code);
      const rules = [given.rule, ...((given.rules_also ?? []) as string[])];
      if (also.length === 0 && error.code !== "chunk_discontinuity")
        expect(rules, `${name}: ${error.message}`).toContain(error.rule);
      expect(error.path, name).toContain(`${vectors}invalid_episodes/`);
      if (given.when !== "touch") continue;
      const opened = await openEpisode(path);
      const problems = await checkEpisode(opened);
      await opened.close();
      expect(
        problems.map((problem) => problem.message).filter((text) => !text.includes(error.message)),
        name,
      ).toEqual([]);
    }
  });

  test("every canonical episode is written with the bytes, or the identity, that the case says", async () => {
    for (const [name, given] of cases("canonical")) {
      if (given.kind !== "episode") continue;
      const found = (await episode.write?.(given, join(folder, "canonical.wshard"))) as JsonObject;
      expect(found.identity, name).toBe(given.identity);
      if (given.sha256 !== undefined) expect(found.sha256, name).toBe(given.sha256);
    }
  });

  test("an episode that is read and written again tells the same, with its lanes of other files in it", async () => {
    for (const [name, given] of [...cases("valid"), ...cases("valid_episodes")]) {
      if (given.episode === undefined) continue;
      const kind = "files" in given ? "valid_episodes" : "valid";
      const out = join(folder, "again.wshard");
      await episode.rewrite?.(`${vectors}${kind}/${given.file}`, out);
      // Guessed forms become stated ones, and ticks are written.
      const told = omit(plain(given.episode), ["inferred", "ticks"]);
      const found = asWanted(await episode.read?.(out), told);
      expect(canonicalJson(found), name).toBe(canonicalJson(told));
    }
  });
});

/** Episodes of a few channels of all layouts. */
const drawnEpisode = fc
  .record({
    length: fc.integer({ min: 1, max: 20 }),
    width: fc.integer({ min: 1, max: 4 }),
    seed: fc.integer({ min: 0, max: 2 ** 30 }),
    text: fc.string({ unit: "grapheme", maxLength: 8 }),
    compression: fc.constantFrom("none" as const, "lz4" as const, "zstd" as const),
  })
  .map(({ length, width, seed, text, compression }) => {
    const value = (at: number) => Math.fround(Math.sin(seed + at) * 1000);
    const floats = Float32Array.from({ length: length * width }, (_, at) => value(at));
    return {
      compression,
      input: {
        id: "drawn",
        length,
        timebase: { tickHz: 29.97, epochNs: 1700000000123456789n },
        observations: {
          floats: { data: floats, shape: [width] },
          bytes: { data: Uint8Array.from(floats, (one) => one & 255), shape: [width] },
          counts: { data: BigInt64Array.from({ length }, (_, at) => BigInt(seed) ** 2n - BigInt(at)) },
          said: { text: Array.from({ length }, (_, at) => text.repeat(at % 3)) },
          points: { items: Array.from({ length }, (_, at) => floats.subarray(0, (at % 2) * width)), shape: [width] },
        },
        actions: { ctrl: { data: Float64Array.from(floats), shape: [width] } },
        rewards: Float64Array.from({ length }, (_, at) => value(at) / 3),
      },
    };
  });

describe("properties", () => {
  test("what is written is read, from bytes and in windows", async () => {
    await fc.assert(
      fc.asyncProperty(drawnEpisode, fc.nat(), fc.nat(), async ({ input, compression }, a, b) => {
        await saveEpisode(input, join(folder, "drawn.wshard"), { compression, sync: false });
        const opened = await openEpisode(join(folder, "drawn.wshard"));
        const [start, end] = [a % (input.length + 1), b % (input.length + 1)].sort((x, y) => x - y);
        for (const [id, given] of Object.entries(input.observations)) {
          const channel = opened.observations.get(id);
          const whole = "text" in given ? given.text : "items" in given ? given.items : given.data;
          expect(await channel?.data(), id).toEqual(whole);
          const width = "data" in given && "shape" in given ? given.shape[0] : 1;
          expect(await channel?.window(start, end), id).toEqual(whole.slice(start * width, end * width));
        }
        expect(Array.from((await opened.rewards?.data()) as Float64Array)).toEqual(Array.from(input.rewards));
        expect((await opened.timesNs())?.[0]).toBe(1700000000123456789n);
        await opened.close();
      }),
      { seed: 7, numRuns: 30 },
    );
  });

  test("no damaged byte makes anything but a ShardError", async () => {
    const input = await encodeEpisode({
      id: "e",
      observations: { said: { text: ["a", "b"] }, x: { data: [1, 2] } },
      rewards: [1, 2],
    });
    await fc.assert(
      fc.asyncProperty(fc.nat(input.length - 1), fc.nat(255), async (at, byte) => {
        const damaged = input.slice();
        damaged[at] = byte;
        try {
          const opened = await openEpisode(damaged);
          for (const channel of opened.observations.values()) await channel.data();
          await opened.rewards?.data();
        } catch (error) {
          if (!(error instanceof ShardError)) throw error;
        }
      }),
      { seed: 7, numRuns: 600 },
    );
  });

  test("signs come back from their bits, and differences within half a scale", () => {
    const values = fc.array(fc.double({ min: -1e6, max: 1e6, noNaN: true }), { minLength: 3, maxLength: 60 });
    fc.assert(
      fc.property(values, fc.integer({ min: 1, max: 20 }), (list, window) => {
        const x = Float64Array.from(list);
        const signs = secondDifferenceSigns(x);
        const unpacked = unpackSigns(packSigns(signs), x.length);
        expect(Array.from(unpacked, (sign) => Math.max(sign, 0))).toEqual(
          Array.from(signs, (sign) => Math.max(sign, 0)),
        );
        const quantised = quantise(x, 1, window);
        const back = dequantise(quantised, 1, window);
        x.forEach((value, at) => {
          const half = quantised.scales[Math.floor(at / window)] / 2;
          expect(Math.abs(value - back[at])).toBeLessThanOrEqual(half * (1 + 1e-9));
        });
      }),
      { seed: 7, numRuns: 100 },
    );
  });
});

describe("reading", () => {
  const floats = Float32Array.from({ length: 64 * 1024 }, (_, at) => at);

  test("arrays lie over the bytes of the file", async () => {
    const bytes = await encodeEpisode({ id: "e", observations: { x: { data: floats, shape: [1024] } } });
    const channel = (await openEpisode(bytes)).observations.get("x") as DenseChannel;
    expect((await channel.data()).buffer).toBe(bytes.buffer);
    expect(await channel.window(3, 4)).toEqual(floats.subarray(3 * 1024, 4 * 1024));
  });

  test("over HTTP an episode takes one request to open and one for a window", async () => {
    const file = await encodeEpisode({
      id: "e",
      observations: { x: { data: floats, shape: [1024] }, y: { data: floats, shape: [1024] } },
    });
    const ranges: string[] = [];
    const server = createServer((request, response) => {
      ranges.push(request.headers.range ?? "");
      const [start, last] = (/^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "") ?? []).slice(1).map(Number);
      const end = Math.min(last + 1, file.length);
      response.writeHead(206, { "content-range": `bytes ${start}-${end - 1}/${file.length}` });
      response.end(file.subarray(start, end));
    });
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    try {
      const opened = await openEpisode(`http://127.0.0.1:${(server.address() as AddressInfo).port}/e.wshard`);
      expect([opened.length, opened.observations.get("y")?.length, ranges.length]).toEqual([64, 64, 1]);
      expect(await opened.observations.get("y")?.window(60, 62)).toEqual(floats.subarray(60 * 1024, 62 * 1024));
      expect(ranges.length).toBe(2);
    } finally {
      server.close();
    }
  });

  test("a sidecar that does not fit is left out, and told; its episode is not written over", async () => {
    const base = join(folder, "moved");
    await cp(`${vectors}valid_episodes/sidecar`, base, { recursive: true });
    await writeFile(
      join(base, "ep.wshard"),
      await encodeEpisode({ id: "another", observations: { x: { data: [1, 2] } } }),
    );
    await expect(saveEpisode({ id: "e", length: 0 }, join(base, "ep.wshard"))).rejects.toThrow("has sidecars");
    const opened = await openEpisode(join(base, "ep.wshard"));
    expect(opened.problems.map((problem) => problem.rule)).toEqual(["W-SID-2"]);
    expect([...opened.observations.keys()]).toEqual(["x"]);
    await opened.close();
  });

  test("a video has pictures of at most 65535 pixels a side, and its frames are its steps", async () => {
    const picture = (size: number) => {
      const head = Buffer.alloc(33);
      head.write("89504e470d0a1a0a0000000d49484452", "hex");
      head.writeUInt32BE(size, 16);
      head.writeUInt32BE(size, 20);
      return head;
    };
    const video = (size: number, more: object = {}) => {
      const packets = [picture(size), picture(size)];
      const cam = { packets, contentType: "image/png", shape: [size, size], ...more };
      return encodeEpisode({ id: "ep", length: 2, timebase: { tickHz: 10 }, observations: { cam } });
    };
    const opened = await openEpisode(await video(65535));
    expect(await checkEpisode(opened)).toEqual([]);
    expect((await opened.observations.get("cam")?.data())?.length).toBe(2);
    await expect(video(65536)).rejects.toThrow("W-VID-5");
    await expect(video(8, { contentType: "text/plain" })).rejects.toThrow("W-VID-5");
    await expect(video(8, { steps: [0, 0] })).rejects.toThrow("W-VID-3");
    await expect(video(8, { keyframes: [false, true] })).rejects.toThrow("W-VID-4");
  });

  test("an episode says what is wrong with what it is given", async () => {
    const wrong = [
      { id: "" },
      { id: "e", length: 2, observations: { "a//b": { data: [1, 2] } } },
      { id: "e", length: 2, observations: { a: { data: [1, 2, 3, 4] } } },
      { id: "e", length: 2, observations: { a: { data: [300, 1], dtype: "u8" as const } } },
      { id: "e", length: 2, rewards: [1] },
      { id: "e", length: 1, metadata: { n: Number.NaN } },
      { id: "e", length: 2, labels: { a: [{ start: 2, end: 1, text: "" }] } },
    ];
    for (const input of wrong) {
      await expect(encodeEpisode(input), JSON.stringify(input)).rejects.toMatchObject({ code: "invalid_argument" });
    }
    expect(readFileSync(join(folder, "canonical.wshard")).length).toBeGreaterThan(0);
  });
});
