// The read side in a real Chromium: in a page and in a worker, from addresses and from files.
//
// SHARD_CHROMIUM is the path of the browser; without it, the usual places are looked at. Where there is none, these tests
// are skipped, unless SHARD_REQUIRE_BROWSER is set.

import { existsSync, readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { type Browser, chromium, type Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Job, Told } from "./browser/reading.js";
import { type FileServer, serve } from "./browser/serving.js";

const usual = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"].map(
  (name) => `/usr/bin/${name}`,
);
const executable = process.env["SHARD_CHROMIUM"] ?? usual.find((path) => existsSync(path));
const mustRun = Boolean(process.env["SHARD_REQUIRE_BROWSER"]);
if (executable === undefined && !mustRun) {
  console.warn("no Chromium: the tests in a browser are skipped; set SHARD_CHROMIUM to its path");
}

const vectors = new URL("../../../spec/vectors/", import.meta.url);
/** Above this number of entries, a container is read from a file only: each entry is a request. */
const mostRequested = 200;

interface Vector {
  path: string;
  told: {
    file: string;
    entries?: { name: string; sha256: string }[];
    episode?: { id: string; length: string };
    records: { key: string; entries?: { name: string; sha256: string }[] }[];
  };
}

function vectorsOf(folder: string): Vector[] {
  const names = readdirSync(new URL(folder, vectors)).filter((name) => name.endsWith(".json"));
  return names.map((name) => {
    const told = JSON.parse(readFileSync(new URL(`${folder}/${name}`, vectors), "utf8"));
    return { path: `${folder}/${told.file}`, told };
  });
}

async function bundle(name: string): Promise<string> {
  const built = await build({
    entryPoints: [fileURLToPath(new URL(`browser/${name}.ts`, import.meta.url))],
    bundle: true,
    format: "esm",
    platform: "browser",
    target: "es2022",
    write: false,
  });
  return built.outputFiles[0].text;
}

describe.skipIf(executable === undefined && !mustRun)("in Chromium", () => {
  let browser: Browser;
  let page: Page;
  let server: FileServer;

  beforeAll(async () => {
    const html = "<!doctype html><script type=module src=/page.js></script>";
    server = await serve(
      { "/": html, "/page.js": await bundle("page"), "/worker.js": await bundle("worker") },
      vectors,
    );
    browser = await chromium.launch({
      ...(executable === undefined ? {} : { executablePath: executable }),
      args: ["--no-sandbox", "--disable-dev-shm-usage"],
    });
    page = await browser.newPage();
    await page.goto(server.origin);
    await page.waitForFunction("globalThis.readAll !== undefined");
  }, 60_000);

  afterAll(async () => {
    await browser?.close();
    server?.close();
  });

  /** Reads files in the page, or in a worker that it started. */
  async function read(kind: Job["kind"], found: Vector[], from: Job["from"], inWorker: boolean): Promise<Told[]> {
    const jobs: Job[] = found.map(({ path }) => ({ kind, from, url: `/files/${path}` }));
    // The function runs in the page, which has readAll.
    return await page.evaluate(`readAll(${JSON.stringify(jobs)}, ${inWorker})`);
  }

  const ways = [
    ["an address", "url", false],
    ["a file", "file", false],
    ["an address, in a worker", "url", true],
    ["a file, in a worker", "file", true],
  ] as const;

  describe.each(ways)("from %s", (_, from, inWorker) => {
    /** A worker runs the same code: some of the files are enough. */
    const some = (found: Vector[]) => found.filter((_one, number) => !inWorker || number % 5 === 0);

    test("containers are read", async () => {
      const all = vectorsOf("valid").filter(({ told }) => {
        return told.entries !== undefined && (from === "file" || told.entries.length <= mostRequested);
      });
      expect(all.length).toBeGreaterThan(150);
      const found = some(all);
      const told = await read("container", found, from, inWorker);
      for (const [number, { told: expected }] of found.entries()) {
        const digests = Object.fromEntries((expected.entries ?? []).map(({ name, sha256 }) => [name, sha256]));
        expect(told[number].digests, expected.file).toEqual(digests);
        expect(told[number].requests).toBeLessThanOrEqual(2);
        expect(told[number].where).toBe(inWorker ? "DedicatedWorkerGlobalScope" : "Window");
      }
    }, 30_000);

    test("shards of datasets are read, also as streams", async () => {
      const all = vectorsOf("valid_packs").filter(({ told }) =>
        told.records.every(({ entries }) => entries !== undefined),
      );
      const found = some(all);
      const told = await read("pack", found, from, inWorker);
      for (const [number, { told: expected }] of found.entries()) {
        const digests = expected.records.flatMap(({ key, entries }) => {
          return (entries ?? []).map(({ name, sha256 }) => [`${key} ${name}`, sha256]);
        });
        expect(told[number].digests, expected.file).toEqual(Object.fromEntries(digests));
        expect(told[number].requests).toBeLessThanOrEqual(2);
      }
    }, 30_000);

    test("episodes are read", async () => {
      const found = some(vectorsOf("valid").filter(({ told }) => told.episode !== undefined));
      const told = await read("episode", found, from, inWorker);
      for (const [number, { told: expected }] of found.entries()) {
        const { id, length, ...blocks } = told[number].digests;
        expect({ id, length }).toEqual({ id: expected.episode?.id, length: expected.episode?.length });
        const digests = Object.fromEntries((expected.entries ?? []).map(({ name, sha256 }) => [name, sha256]));
        expect(digests, expected.file).toMatchObject(blocks);
      }
    }, 30_000);
  });

  test("the server is asked as often as the source says, and at most twice to open a file", async () => {
    const path = "/files/valid_packs/many_records.shardpack";
    server.requests.clear();
    const requests = await page.evaluate(`readAll([{ kind: "pack", from: "url", url: "${path}" }], false)`);
    expect((requests as Told[])[0].requests).toBeLessThanOrEqual(2);
    expect(server.requests.get(path)).toBeLessThanOrEqual(6);
  });
});
