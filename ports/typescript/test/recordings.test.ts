import { spawn, spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { copyFile, mkdtemp, readFile, rm, truncate } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { episode } from "../conformance/episode.js";
import { journal } from "../conformance/journal.js";
import { canonicalJson, type JsonObject, loadZstd, type ShardError } from "../src/node.js";
import {
  checkEpisode,
  type DenseChannel,
  openEpisode,
  openRecording,
  Recorder,
  recoverChunks,
  recoverRecording,
} from "../src/wshard/node.js";
import { asWanted, cases, omit, plain, vectors } from "./told.js";

const folder = await mkdtemp(join(tmpdir(), "recordings-"));
afterAll(() => rm(folder, { recursive: true }));

describe("vectors of journals", () => {
  test.each(["valid_journals", "invalid_journals"])(
    "every journal in %s gives what its JSON says, up to a bad frame",
    async (kind) => {
      for (const [name, given] of cases(kind)) {
        const found = await journal
          .read?.(`${vectors}${kind}/${given.file}`)
          .catch((error: ShardError) => ({ error: error.code, rule: error.rule }));
        const codes = [given.error, ...((given.also ?? []) as string[])];
        expect(codes, name).toContain(found?.error);
        if (given.also === undefined)
          expect([given.rule, ...((given.rules_also ?? []) as string[])], name).toContain(found?.rule);
        if (given.episode === null) continue;
        const { cut, finished, read_bytes, episode } = found as JsonObject;
        expect({ cut, finished, read_bytes }, name).toEqual({
          cut: given.cut,
          finished: given.finished,
          read_bytes: given.read_bytes,
        });
        const wanted = plain(given.episode);
        expect(canonicalJson(asWanted(episode, wanted)), name).toBe(canonicalJson(wanted));
      }
    },
  );
});

const channels = [
  { id: "state", shape: [2] },
  { id: "said", layout: "text" as const },
  { id: "scan", layout: "ragged" as const, dtype: "u16" as const },
  { id: "ctrl", lane: "action" as const, dtype: "f64" as const },
  { id: "imu", ownClock: true, dtype: "i32" as const },
];

function step(t: number): { state: Float32Array; said: string; scan: number[]; ctrl: number } {
  return {
    state: Float32Array.of(t, -t),
    said: "ä".repeat(t % 4),
    scan: Array.from({ length: t % 3 }, () => t),
    ctrl: t / 7,
  };
}

describe("recorder", () => {
  test.each(["none", "zstd"] as const)(
    "what is recorded with compression %s is the episode in the end",
    async (compression) => {
      const path = join(folder, `whole-${compression}.wshard`);
      const recorder = await Recorder.begin(path, {
        id: "run",
        channels,
        compression,
        flushSteps: 16,
        timebase: { tickHz: 50 },
        fsync: "never",
      });
      for (let t = 0; t < 100; t++) {
        await recorder.step(step(t), { reward: t / 3, terminated: t === 99, truncated: false });
        if (t % 2) await recorder.write("imu", t, BigInt(t));
      }
      recorder.annotate("lift", { start: 3, end: 8, label: "phase" });
      await recorder.end({ metadata: { success: true }, finalObservations: { state: [1, 2] } });
      expect(existsSync(recorder.partialPath)).toBe(false);
      const opened = await openEpisode(path);
      expect([opened.length, opened.metadata.success, opened.observations.get("state")?.length]).toEqual([
        100,
        true,
        101,
      ]);
      expect(await opened.observations.get("said")?.window(6, 8)).toEqual([step(6).said, step(7).said]);
      expect(await opened.observations.get("scan")?.window(5, 6)).toEqual([Uint16Array.of(5, 5)]);
      expect(await opened.actions.get("ctrl")?.window(7, 8)).toEqual(Float64Array.of(1));
      expect((await opened.observations.get("imu")?.timestampsNs())?.length).toBe(50);
      expect(await opened.rewards?.window(1, 2)).toEqual(Float64Array.of(1 / 3));
      expect((await opened.labels.get("phase")?.read())?.intervals[0]).toMatchObject({
        start: 3n,
        end: 8n,
        text: "lift",
      });
      await opened.close();
      await expect(recorder.step(step(100))).rejects.toMatchObject({ code: "closed" });
    },
  );

  test("chunks that a manifest cannot name are refused at once", async () => {
    const options = { id: "run", channels, maxStepsPerFile: 2 };
    const recording = Recorder.begin(join(folder, "run:1.wshard"), options);
    await expect(recording).rejects.toMatchObject({ code: "invalid_argument" });
  });

  test("a recording in several files opens as what one file would hold", async () => {
    const record = async (name: string, maxStepsPerFile?: number) => {
      const options = {
        id: "run",
        channels,
        flushSteps: 7,
        fsync: "never" as const,
        timebase: { tickHz: 50 },
        metadata: { task: "cup" },
      };
      const limit = maxStepsPerFile === undefined ? {} : { maxStepsPerFile };
      const recorder = await Recorder.begin(join(folder, name), { ...options, ...limit });
      for (let t = 0; t < 50; t++) {
        if (t === 2) recorder.annotate("lift", { start: 5, end: 45, label: "phase" });
        await recorder.step(step(t), { reward: t / 3, done: t === 49 });
        await recorder.write("imu", t, BigInt(t));
      }
      await recorder.end({ metadata: { success: true }, finalObservations: { state: [1, 2] } });
      return recorder.episodePath;
    };
    const [one, several] = [await record("one.wshard"), await record("several.wshard", 20)];
    const files = readdirSync(folder).filter((name) => name.startsWith("several"));
    expect(files).toEqual([
      "several_chunk_0000.wshard",
      "several_chunk_0001.wshard",
      "several_chunk_0002.wshard",
      "several_manifest.wshard",
    ]);
    const told = async (path: string) => omit((await episode.read?.(path)) as JsonObject, ["ticks"]);
    expect(await told(several)).toEqual(await told(one));
    const opened = await openEpisode(several);
    expect(await checkEpisode(opened)).toEqual([]);
    await opened.close();
    await expect(record("several.wshard", 20)).rejects.toThrow("in the way");
  });

  test("a recording is followed while it grows", async () => {
    const path = join(folder, "followed.wshard");
    const recorder = await Recorder.begin(path, {
      id: "run",
      channels,
      flushSteps: 1000,
      flushSeconds: 1000,
      fsync: "never",
    });
    await recorder.step(step(0));
    await recorder.flush();
    const recording = await openRecording(recorder.partialPath);
    expect([recording.episode.length, recording.isFinished]).toEqual([1, false]);
    const before = recording.episode.observations.get("state") as DenseChannel;
    for (let t = 1; t < 5; t++) await recorder.step(step(t));
    expect(await recording.refresh()).toBe(false);
    await recorder.flush();
    expect(await recording.refresh()).toBe(true);
    expect(await recording.episode.observations.get("state")?.window(3, 4)).toEqual(Float32Array.of(3, -3));
    expect([before.length, recording.episode.length]).toEqual([1, 5]);
    await recording.close();
    await recorder.abort();
    expect(existsSync(recorder.partialPath)).toBe(false);
  });

  test("a recording behind a URL is followed while it grows, and only what is new is fetched", async () => {
    let whole: Buffer = await readFile(`${vectors}valid_journals/several_runs.wshard.partial`);
    let size = 0;
    const asked: string[] = [];
    const server = createServer((request, response) => {
      const [, from, to] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "") ?? [];
      asked.push(from);
      const part = whole.subarray(Number(from), Math.min(Number(to) + 1, size));
      if (part.length === 0) {
        response.writeHead(416, { "content-range": `bytes */${size}` }).end();
        return;
      }
      const range = `bytes ${from}-${Number(from) + part.length - 1}/${size}`;
      response.writeHead(206, { "content-range": range, etag: `"${size}"` }).end(part);
    });
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/a.wshard.partial`;
    size = whole.length - 20;
    const recording = await openRecording(url, { zstd: loadZstd });
    const { length } = recording.episode;
    expect([await recording.refresh(), recording.readBytes <= size]).toEqual([false, true]);
    const before = recording.readBytes;
    size = whole.length;
    expect([await recording.refresh(), recording.episode.length > length]).toEqual([true, true]);
    expect([recording.readBytes, asked]).toEqual([size, ["0", `${before}`, `${before}`]]);
    expect(await recording.refresh()).toBe(false);
    size += 10; // while the values are read
    whole = Buffer.concat([whole, Buffer.alloc(10)]);
    for (const channel of recording.episode.observations.values()) expect(await channel.data()).toBeDefined();
    await recording.close();
    server.close();
  });

  test("a journal has one recorder, and an unfinished recording is not written over", async () => {
    const path = join(folder, "shared.wshard");
    const first = await Recorder.begin(path, { id: "run", channels, fsync: "never" });
    await first.step(step(0));
    await expect(Recorder.begin(path, { id: "run", channels })).rejects.toMatchObject({ rule: "J-4" });
    await first.close();
    const left = readFileSync(first.partialPath);
    await expect(Recorder.begin(path, { id: "run", channels })).rejects.toThrow("not finished");
    expect(readFileSync(first.partialPath)).toEqual(left);
    expect(await recoverRecording(first.partialPath)).toMatchObject({ steps: 1, isFinished: false, error: null });
    expect(readFileSync(first.partialPath)).toEqual(left);
    await expect(Recorder.begin(path, { id: "run", channels, discardPartial: true })).rejects.toThrow(
      "finished episode",
    );
  });

  test("a step that does not fit is not recorded, and the next one is", async () => {
    const recorder = await Recorder.begin(join(folder, "unfit.wshard"), { id: "run", channels, fsync: "never" });
    await recorder.step(step(0), { reward: 1, timestampNs: 5n });
    const wrong: [object, object][] = [
      [
        { ...step(1), state: [1] },
        { reward: 1, timestampNs: 6n },
      ],
      [
        { ...step(1), said: "\ud800" },
        { reward: 1, timestampNs: 6n },
      ],
      [
        { ...step(1), scan: [70000] },
        { reward: 1, timestampNs: 6n },
      ],
      [
        { ...step(1), other: 1 },
        { reward: 1, timestampNs: 6n },
      ],
      [step(1), { timestampNs: 6n }],
      [step(1), { reward: 1, timestampNs: 4n }],
      [step(1), { reward: 1, timestampNs: 6n, done: true }],
    ];
    for (const [values, facts] of wrong) {
      await expect(recorder.step(values as never, facts), JSON.stringify(values)).rejects.toMatchObject({
        code: "invalid_argument",
      });
    }
    await recorder.step(step(1), { reward: 1, timestampNs: 6n });
    expect(recorder.steps).toBe(2);
    await recorder.abort();
  });

  test("a journal that is cut anywhere gives all complete steps before", async () => {
    const recorder = await Recorder.begin(join(folder, "cut.wshard"), {
      id: "run",
      channels,
      flushSteps: 4,
      fsync: "never",
    });
    const sizes: number[] = [];
    for (let t = 0; t < 40; t++) {
      await recorder.step(step(t));
      if (t % 4 === 3) {
        await recorder.flush();
        sizes.push(readFileSync(recorder.partialPath).length);
      }
    }
    await recorder.close();
    const cut = join(folder, "cut-here.partial");
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: sizes[0], max: sizes[sizes.length - 1] }), async (size) => {
        await copyFile(recorder.partialPath, cut);
        await truncate(cut, size);
        const recording = await openRecording(cut);
        const flushed = sizes.filter((one) => one <= size).length;
        expect(recording.episode.length).toBe(4 * flushed);
        await recording.close();
      }),
      { seed: 7, numRuns: 40 },
    );
  });
});

describe("sudden death", () => {
  /** Kills a recorder after so many lines; returns how many steps it had flushed. */
  async function killed(path: string, lines: number, options: object): Promise<number> {
    const given = [program, path, JSON.stringify(options)];
    const child = spawn(process.execPath, given, { stdio: ["ignore", "pipe", "inherit"] });
    let told = "";
    await new Promise<void>((done) => {
      child.stdout.on("data", (data) => {
        told += data;
        if (told.split("\n").length > lines) child.kill("SIGKILL");
      });
      child.on("close", () => done());
    });
    return Number(told.split("\n").slice(0, -1).at(-1));
  }

  const program = join(folder, "record.mjs");
  beforeAll(() =>
    build({
      stdin: {
        contents: `
          import { Recorder } from "./src/node/recorder.js";
          const recorder = await Recorder.begin(process.argv[2], {
            id: "run", flushSteps: 3, fsync: "never", ...JSON.parse(process.argv[3]),
            channels: [{ id: "state", shape: [2] }, { id: "said", layout: "text" }],
          });
          for (let t = 0; t < 100000; t++) {
            await recorder.step({ state: [t, -t], said: "x".repeat(t % 5) });
            if (t % 7 === 0) await recorder.flush();
            process.stdout.write(recorder.durableSteps + "\\n");
          }`,
        resolveDir: fileURLToPath(new URL("..", import.meta.url)),
      },
      outfile: program,
      bundle: true,
      format: "esm",
      platform: "node",
      packages: "external",
      logLevel: "error",
    }),
  );

  test.each([1, 20, 333])(
    "a recorder that is killed after %i lines loses nothing that it had flushed",
    async (lines) => {
      const path = join(folder, `killed-${lines}.wshard`);
      const durable = await killed(path, lines, {});
      const found = await recoverRecording(`${path}.partial`);
      expect(found.steps).toBeGreaterThanOrEqual(durable);
      const opened = await openEpisode(path);
      const last = found.steps - 1;
      if (last >= 0)
        expect(await opened.observations.get("state")?.window(last, last + 1)).toEqual(Float32Array.of(last, -last));
      await opened.close();
      // The lock died with the process.
      const next = await Recorder.begin(`${path}.next`, { id: "run", channels: [] });
      await next.abort();
      expect(spawnSync("flock", ["-n", `${path}.partial`, "true"]).status ?? 0).toBe(0);
    },
  );

  test.each([40, 200])("so does one that writes several files, killed after %i lines", async (lines) => {
    const path = join(folder, `rolled-${lines}.wshard`);
    const durable = await killed(path, lines, { maxStepsPerFile: 10 });
    // As if the recorder had died right after it made the next file.
    let index = 0;
    const chunk = () => path.replace(/\.wshard$/, `_chunk_${String(index).padStart(4, "0")}.wshard`);
    while (existsSync(chunk()) || existsSync(`${chunk()}.partial`)) index++;
    writeFileSync(`${chunk()}.partial`, "");
    const found = await recoverChunks(`${path}.partial`);
    expect(found.isFinished).toBe(false);
    expect(found.steps).toBeGreaterThanOrEqual(durable);
    const opened = await openEpisode(found.path);
    expect(await checkEpisode(opened)).toEqual([]);
    const states = (await opened.observations.get("state")?.data()) as Float32Array;
    expect(states.filter((_, at) => at % 2 === 0)).toEqual(Float32Array.from({ length: found.steps }, (_, at) => at));
    await opened.close();
  });
});
