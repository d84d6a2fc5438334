// The targets of the viewer: requests, bytes, times, memory and size. Each prints a line with the target and what it
// measured.
//
// Other work shares the processors of a test machine. So the limit of a median is the target where there is room for
// that, and otherwise twice the target; the limit of the 95th of 100 is further away, because one pause of the machine
// is enough to miss it.

import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import type { Browser, CDPSession, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { encoded, fiveLong, huge, reaching } from "./episodes";
import {
  choose,
  drawn,
  fileAddress,
  hasNoBrowser,
  inMemory,
  launch,
  type Server,
  serve,
  viewerFile,
  type Watched,
  watch,
} from "./harness";
import { makeEpisodes } from "./python";

/** How much longer something may take on a machine with other work. */
const slack = 2;
/** Milliseconds that each answer of the server takes. */
const latency = 30;

function median(values: readonly number[]): number {
  return quantile(values, 0.5);
}

function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? Number.NaN;
}

function report(target: string, text: string): void {
  console.log(`target: ${target}: ${text}`);
}

const ms = (value: number) => `${value.toFixed(1)} ms`;

/** Prints and checks times in milliseconds. */
function checkTimes(target: string, goal: string, times: readonly number[], most: { p50: number; p95: number }): void {
  const [p50, p95] = [median(times), quantile(times, 0.95)];
  report(target, `target ${goal}, p50 ${ms(p50)}, p95 ${ms(p95)} of ${times.length}`);
  expect(p50, `${target}: p50`).toBeLessThan(most.p50);
  expect(p95, `${target}: p95`).toBeLessThan(most.p95);
}

describe("the built page", () => {
  const html = readFileSync(viewerFile);

  test("is one file that loads nothing, of at most 150 KB compressed without points in space", () => {
    const points = 5000;
    const packed = gzipSync(html, { level: 9 }).length;
    report("size", `target ${150_000 + points} bytes gzip, ${packed} (${html.length} unpacked)`);
    expect(packed).toBeLessThanOrEqual(150_000 + points);
    expect(html.toString()).not.toMatch(/<(?:script|link|img)[^>]+(?:src|href)="(?!data:,")/);
  });
});

describe.skipIf(hasNoBrowser)("targets", () => {
  let browser: Browser;
  let page: Page;
  let watched: Watched;
  let server: Server;
  let folder: string;

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), "viewer-"));
    browser = await launch();
    server = await serve(latency);
    server.files.set("long.wshard", await huge());
    server.files.set("five.wshard", await fiveLong());
    makeEpisodes(folder, "cameras");
    server.files.set("cameras.wshard", inMemory(readFileSync(join(folder, "cameras.wshard"))));
  }, 120_000);
  afterAll(async () => {
    await browser?.close();
    server?.close();
    rmSync(folder, { recursive: true, force: true });
  });
  beforeEach(async () => {
    page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
    watched = watch(page);
    server.answers.length = 0;
  });
  afterEach(() => page.close());

  const open = (name: string, more = "") =>
    page.goto(`${server.origin}/viewer.html#src=${server.origin}/files/${name}${more}`);

  test("a remote episode of 2 GB: first plot after 3 requests, 1 MB and 1 s; first picture within 1 MB", async () => {
    const times: number[] = [];
    await page.addInitScript(noteFirstPlot);
    for (let round = 0; round < 5; round++) {
      await page.goto("about:blank");
      server.answers.length = 0;
      await open("long.wshard");
      const first = await page.waitForFunction(() => globalThis.firstPlot, undefined, { polling: "raf" });
      const [passed, at] = (await first.jsonValue()) as [number, number];
      times.push(passed);
      const before = server.answers.filter((answer) => answer.at <= at);
      const bytes = before.reduce((sum, answer) => sum + answer.bytes, 0);
      await drawn(page, "signal/camera");
      const camera = server.answers.reduce((sum, answer) => sum + answer.bytes, 0);
      if (round === 0) {
        report("first plot", `target 3 requests, 1000 KB; ${before.length} requests, ${Math.round(bytes / 1000)} KB`);
        report("first picture", `target 1000 KB; ${server.answers.length} requests, ${Math.round(camera / 1000)} KB`);
      }
      expect(before.length).toBeLessThanOrEqual(3);
      expect(bytes).toBeLessThan(1_000_000);
      expect(camera).toBeLessThan(1_000_000);
    }
    // From the navigation on, with the script.
    checkTimes(`first plot, ${latency} ms an answer`, "1000 ms", times, { p50: 1000, p95: slack * 1000 });
    expect(watched.errors).toEqual([]);
  });

  test("the first picture of a compressed camera comes within 1 MB", async () => {
    await open("cameras.wshard");
    await drawn(page, "signal/front");
    const bytes = server.answers.reduce((sum, answer) => sum + answer.bytes, 0);
    report(
      "first picture, compressed",
      `target 1000 KB; ${server.answers.length} requests, ${Math.round(bytes / 1000)} KB`,
    );
    expect(bytes).toBeLessThan(1_000_000);
  });

  describe("a plot of 10 million samples", () => {
    const key = "signal/microphone";

    /** Opens channels alone, and waits until all of them was read and the panels show it. */
    async function openWhole(name = "long.wshard", keys: readonly string[] = [key]) {
      await open(name, `&show=${encodeURIComponent(JSON.stringify(keys))}`);
      await page.waitForFunction(
        (all) =>
          all.every((one) => {
            const text = (part: string) => document.querySelector(`[data-panel="${one}"] > ${part}`)?.textContent ?? "";
            return / to 50\b/.test(text("p.hidden")) && !text(".panel-head").includes("read ");
          }),
        keys,
        { timeout: 60_000 },
      );
    }

    test.each([1, 5])("pans and zooms at 55 frames a second, with %i on the screen", async (plots) => {
      const keys = ["a", "b", "c", "d", "e"].map((name) => `signal/${name}`).slice(0, plots);
      await page.setViewportSize({ width: 1280, height: 1120 });
      await openWhole("five.wshard", keys);
      const client = await page.context().newCDPSession(page);
      await client.send("Performance.enable");
      for (const what of ["pan", "zoom"] as const) {
        const before = await scriptMs(client);
        const frames = await page.evaluate(move, ["signal/a", what] as const);
        const script = ((await scriptMs(client)) - before) / frames.length;
        const most = (slack * 1000) / 55;
        const name = `${what} ${plots} × 10 M samples (script ${ms(script)}), frame`;
        checkTimes(name, ms(1000 / 55), frames, { p50: most, p95: 6 * most });
      }
    });

    test("loses no spike on the screen", async () => {
      await openWhole();
      // One sample of 10 million is 50; all others are at most 1.
      const ink = await page.evaluate((name) => {
        const canvas = document.querySelector<HTMLCanvasElement>(`[data-panel="${name}"] canvas`);
        const context = canvas?.getContext("2d");
        if (!canvas || !context) return null;
        const { width, height } = canvas;
        const { data } = context.getImageData(0, 0, width, height);
        // Pixels of strong colour in the upper third are of the spike: the axis and its labels are grey.
        const columns = new Set<number>();
        for (let y = 0; y < height / 3; y++) {
          for (let x = 0; x < width; x++) {
            const at = 4 * (y * width + x);
            const [r = 0, g = 0, b = 0, a = 0] = data.subarray(at, at + 4);
            if (a > 120 && Math.max(r, g, b) - Math.min(r, g, b) > 60) columns.add(x);
          }
        }
        return { columns: [...columns], width };
      }, key);
      expect(ink?.columns.length).toBeGreaterThan(0);
      const [first, last] = [Math.min(...(ink?.columns ?? [])), Math.max(...(ink?.columns ?? []))];
      expect(last - first).toBeLessThanOrEqual(4);
      // Between the gutters, at its part of the length.
      expect(first / (ink?.width ?? 1)).toBeGreaterThan(0.7);
      expect(last / (ink?.width ?? 1)).toBeLessThan(0.83);
    });
  });

  describe("two cameras of 240 × 320", () => {
    beforeEach(async () => {
      await page.addInitScript(recordPictures);
      await open("cameras.wshard");
      for (const key of ["signal/front", "signal/wrist"]) await drawn(page, key);
    });

    test("are scrubbed within 16 ms in a group that was decoded, and within 150 ms elsewhere", async () => {
      const cold: number[] = [];
      const warm: number[] = [];
      server.mostAtOnce = 0;
      // Each jump goes to a part that nothing has read.
      let now = 0;
      const to = async (step: number) => {
        const took = await page.evaluate(scrub, [now, step] as const);
        now = step;
        return took;
      };
      for (const step of [100, 200, 60, 150, 20, 180, 40, 120]) {
        cold.push(await to(step));
        for (const near of [1, 2, 3, 2, 1, 2]) warm.push(await to(step + near));
      }
      // The browser's own cache would let one request for a file wait for the other.
      expect(server.mostAtOnce).toBeGreaterThan(1);
      // A picture is drawn with the next frame of the screen, which comes every 16.7 ms: that is in these times.
      checkTimes("scrub, decoded", "p95 16 ms", warm, { p50: 1.5 * 16, p95: 4 * 16 });
      checkTimes("scrub, cold", "150 ms", cold, { p50: slack * 150, p95: 3 * 150 });
    });

    test("play 30 frames a second", async () => {
      await page.keyboard.press("Home");
      await page.evaluate(() => {
        drawnPictures.length = 0;
      });
      await page.keyboard.press(" ");
      await page.waitForFunction(() => drawnPictures.at(-1) !== undefined && (drawnPictures.at(-1)?.step ?? 0) >= 120, {
        timeout: 30_000,
      });
      await page.keyboard.press(" ");
      const seen = await page.evaluate(() => drawnPictures);
      for (const key of ["signal/front", "signal/wrist"]) {
        const own = seen.filter((one) => one.key === key && one.step >= 30 && one.step <= 120);
        const steps = new Set(own.map((one) => one.step));
        const seconds = ((own.at(-1)?.at ?? 0) - (own[0]?.at ?? 0)) / 1000;
        report(`playing, ${key}`, `target 30 pictures a second, ${(steps.size / seconds).toFixed(1)}`);
        expect(steps.size / seconds).toBeGreaterThanOrEqual(30 / slack);
      }
    });
  });

  test("an episode of 2 GB takes less than 300 MB", async () => {
    const before = await rendererMemory(browser, page, `${server.origin}/viewer.html`);
    await open("long.wshard");
    await page.reload();
    await drawn(page, "signal/camera");
    for (let step = 10; step <= 200; step += 10) {
      await page.keyboard.press("Shift+ArrowRight");
      const said = `[data-panel="signal/camera"] > p.hidden`;
      await page.waitForFunction(([at, text]) => document.querySelector(at)?.textContent?.includes(text), [
        said,
        ` ${step}`,
      ] as const);
    }
    await drawn(page, "signal/microphone");
    for (const key of ["f", "+", "+", "+", "End", "Home", "f", " "]) {
      await page.keyboard.press(key);
      await page.waitForTimeout(100);
    }
    await page.keyboard.press(" ");
    await page.evaluate(move, ["signal/microphone", "zoom"] as const);
    await page.keyboard.press("f");
    await page.waitForFunction(
      (at) => / to 50\b/.test(document.querySelector(at)?.textContent ?? ""),
      `[data-panel="signal/microphone"] > p.hidden`,
    );
    const after = await rendererMemory(browser, page);
    report("memory", `target 300 MB, ${after - before} MB more than the empty page (${before} MB)`);
    expect(after - before).toBeLessThan(300);
  });

  test("the page of a disk makes no request", async () => {
    await page.goto(fileAddress());
    await choose(page, [{ name: "reach.wshard", bytes: await encoded(reaching()) }]);
    await drawn(page, "signal/camera");
    for (const key of [" ", "e", "b", "c", "c", "?", "Escape", "s"]) await page.keyboard.press(key);
    expect(watched.requests).toEqual([]);
    expect(watched.errors).toEqual([]);
  });
});

interface DrawnPicture {
  readonly key: string;
  readonly step: number;
  readonly at: number;
}

declare global {
  var drawnPictures: DrawnPicture[];
  /** Milliseconds since the navigation, and since 1970. */
  var firstPlot: [number, number] | undefined;
}

/** Notes when a panel over time has drawn a line of a channel: more parts than the axes and marks of a plot have. */
function noteFirstPlot(): void {
  const { clearRect, lineTo, fillRect } = CanvasRenderingContext2D.prototype;
  let parts = 0;
  const count = (context: CanvasRenderingContext2D) => {
    if (++parts === 100 && context.canvas.closest(".panel.over-time") !== null)
      globalThis.firstPlot ??= [performance.now(), Date.now()];
  };
  CanvasRenderingContext2D.prototype.clearRect = function (...all) {
    parts = 0;
    clearRect.apply(this, all);
  };
  CanvasRenderingContext2D.prototype.lineTo = function (...all) {
    count(this);
    lineTo.apply(this, all);
  };
  CanvasRenderingContext2D.prototype.fillRect = function (...all) {
    count(this);
    fillRect.apply(this, all);
  };
}

/** Notes each picture that a camera's panel draws: the square in its upper left corner tells the step. */
function recordPictures(): void {
  globalThis.drawnPictures = [];
  const { drawImage, putImageData } = CanvasRenderingContext2D.prototype;
  const painted = new WeakMap<object, number>();
  CanvasRenderingContext2D.prototype.putImageData = function (this: CanvasRenderingContext2D, ...all: unknown[]) {
    const [{ data, width }] = all as [ImageData];
    painted.set(this.canvas, data[4 * (4 * width + 4)] ?? -1);
    (putImageData as (...all: unknown[]) => void).apply(this, all);
  };
  CanvasRenderingContext2D.prototype.drawImage = function (this: CanvasRenderingContext2D, ...all: unknown[]) {
    (drawImage as (...all: unknown[]) => void).apply(this, all);
    const step = painted.get(all[0] as object);
    const key = this.canvas.closest<HTMLElement>("[data-panel]")?.dataset["panel"] ?? "";
    if (step !== undefined && key !== "") globalThis.drawnPictures.push({ key, step, at: performance.now() });
  };
}

/** Moves the cursor with the keys, and waits until both cameras have drawn that step: milliseconds. */
async function scrub([now, step]: readonly [number, number]): Promise<number> {
  const seen = globalThis.drawnPictures;
  seen.length = 0;
  const start = performance.now();
  const key = step > now ? "ArrowRight" : "ArrowLeft";
  for (let left = Math.abs(step - now); left > 0; ) {
    const by = left >= 10 ? 10 : 1;
    dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey: by === 10, bubbles: true }));
    left -= by;
  }
  const done = () =>
    ["signal/front", "signal/wrist"].every((name) => seen.some((one) => one.key === name && one.step === step));
  while (!done()) {
    if (performance.now() - start > 10_000) throw new Error(`step ${step} was not drawn`);
    await new Promise((next) => setTimeout(next, 0));
  }
  const last = ["signal/front", "signal/wrist"].map(
    (name) => seen.find((one) => one.key === name && one.step === step)?.at ?? 0,
  );
  return Math.max(...last) - start;
}

/** Zooms in on a panel, then pans or zooms a little in each of 60 frames: milliseconds from frame to frame. */
async function move([key, what]: readonly [string, "pan" | "zoom"]): Promise<number[]> {
  const body = document.querySelector<HTMLElement>(`[data-panel="${key}"] .panel-body`);
  if (body === null) throw new Error("no such panel");
  const { left, width, top, height } = body.getBoundingClientRect();
  const wheel = (deltaX: number, deltaY: number) =>
    body.dispatchEvent(
      new WheelEvent("wheel", {
        deltaX,
        deltaY,
        clientX: left + width / 2,
        clientY: top + height / 2,
        bubbles: true,
        cancelable: true,
      }),
    );
  const frame = () => new Promise<number>((next) => requestAnimationFrame(next));
  for (let notch = 0; notch < 4; notch++) wheel(0, -300);
  for (let at = 0; at < 20; at++) await frame();
  const times: number[] = [];
  let before = await frame();
  for (let at = 0; at < 60; at++) {
    if (what === "pan") wheel(at % 30 < 15 ? 30 : -30, 0);
    else wheel(0, at % 30 < 15 ? -40 : 40);
    const now = await frame();
    times.push(now - before);
    before = now;
  }
  return times;
}

async function scriptMs(client: CDPSession): Promise<number> {
  const { metrics } = await client.send("Performance.getMetrics");
  return 1000 * (metrics.find(({ name }) => name === "ScriptDuration")?.value ?? Number.NaN);
}

/** Memory of the page's process with its workers, in MB, after collecting garbage. */
async function rendererMemory(browser: Browser, page: Page, address?: string): Promise<number> {
  if (address !== undefined) await page.goto(address);
  const collect = () => (globalThis as unknown as { gc(): void }).gc();
  await Promise.all([page.evaluate(collect), ...page.workers().map((worker) => worker.evaluate(collect))]);
  await page.waitForTimeout(200);
  const client = await browser.newBrowserCDPSession();
  const { processInfo } = await client.send("SystemInfo.getProcessInfo");
  await client.detach();
  const sizes = processInfo
    .filter(({ type }) => type === "renderer")
    .map(({ id }) => {
      const lines = readFileSync(`/proc/${id}/smaps_rollup`, "utf8").split("\n");
      const kib = (name: string) =>
        Number(/(\d+) kB/.exec(lines.find((line) => line.startsWith(name)) ?? "")?.[1] ?? 0);
      return (kib("Private_Dirty") + kib("Swap:")) / 1024;
    });
  return Math.round(Math.max(...sizes));
}
