// What people do with an episode: playing, loops, boxes, y axes, every key, and lines that need no colour.

import { readFileSync } from "node:fs";
import type { EpisodeInput } from "@shard-format/core/wshard";
import type { Browser, Page } from "playwright-core";
import { PNG } from "pngjs";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { encoded, reaching, waves } from "./episodes";
import { choose, drawn, fileAddress, hasNoBrowser, launch, type Watched, watch } from "./harness";

type Channels = Record<string, object>;

const joints = "signal/joint_pos";

describe.skipIf(hasNoBrowser)("interactions", () => {
  let browser: Browser;
  let page: Page;
  let watched: Watched;

  beforeAll(async () => {
    browser = await launch();
  });
  afterAll(() => browser?.close());
  beforeEach(async () => {
    page = await browser.newPage({ viewport: { width: 1280, height: 800 }, reducedMotion: "reduce" });
    watched = watch(page);
    await page.addInitScript(noteDrawings);
  });
  afterEach(async () => {
    expect(watched.errors).toEqual([]);
    await page.close();
  });

  async function open(...episodes: EpisodeInput[]): Promise<void> {
    await page.goto(fileAddress());
    const files = episodes.map(async (one) => ({ name: `${one.id}.wshard`, bytes: await encoded(one) }));
    await choose(page, await Promise.all(files));
    if (episodes.length > 1) await page.click("tr[data-row='0']");
    await drawn(page, joints);
  }

  const numberOf = async (selector: string) => Number(await page.locator(selector).getAttribute("aria-valuenow"));
  const cursor = () => numberOf(".time-cursor");
  const range = async () => [await numberOf(".handle.start"), await numberOf(".handle.end")];
  /** What the plots of a panel have drawn since they were last cleared, from the top on. */
  const drawings = (key: string) =>
    page.locator(`[data-panel='${key}'] canvas`).evaluateAll((all) => all.map((one) => (one as Noted).drawing));
  /** The part of the stage where plots are, and of a share of it the x coordinate. */
  async function plots(selector: string) {
    await page.locator(selector).scrollIntoViewIfNeeded();
    const box = await page.locator(selector).boundingBox();
    if (box === null) throw new Error(`${selector} is not on the screen`);
    return { y: box.y + box.height / 2, x: (share: number) => box.x + 64 + share * (box.width - 76) };
  }
  async function drag(selector: string, from: number, to: number): Promise<void> {
    const { x, y } = await plots(selector);
    await page.mouse.move(x(from), y);
    await page.mouse.down();
    await page.mouse.move(x((from + to) / 2), y);
    await page.mouse.move(x(to), y);
  }

  test("dragging with Ctrl shows a box, and the end of it zooms to those steps", async () => {
    await open(reaching());
    await page.keyboard.down("Control");
    await drag(`[data-panel='${joints}'] .panel-body`, 0.75, 0.25);
    await expect.poll(() => page.locator(".zoom-box").count()).toBe(1);
    expect(await range()).toEqual([0, 200]);
    await page.mouse.up();
    await page.keyboard.up("Control");
    await expect.poll(range).toEqual([50, 150]);
    expect(await page.locator(".zoom-box").count()).toBe(0);
    expect(await cursor()).toBe(0);
  });

  describe("playing, with a clock that the test moves", () => {
    beforeEach(async () => {
      await page.clock.install();
      const { observations, omens } = reaching(1000);
      await open(
        reaching(1000, {
          observations: { joint_pos: (observations as Channels)["joint_pos"] as never },
          omens: omens ?? {},
        }),
      );
      await page.clock.pauseAt(Date.now() + 3_600_000);
      await page.keyboard.press("Home");
    });

    test.each([0.1, 0.25, 0.5, 1, 2, 4, 8, 16])(
      "%d× moves the cursor that many times as fast as the episode",
      async (speed) => {
        await page.locator(".speed").selectOption(String(speed));
        await page.locator(".speed").blur();
        const seconds = speed < 0.5 ? 4 : 1;
        await page.keyboard.press(" ");
        await page.clock.runFor(1000 * seconds);
        await page.keyboard.press(" ");
        // 50 steps a second, and one frame more or less.
        const frame = 50 * speed * 0.017;
        const steps = Math.min(999, 50 * speed * seconds);
        expect(Math.abs((await cursor()) - steps)).toBeLessThanOrEqual(1 + 2 * frame);
        const there = await cursor();
        await page.clock.runFor(1000);
        expect(await cursor()).toBe(there);
      },
    );

    test("step by step: the buttons and the arrows stop it, and move by one step", async () => {
      await page.keyboard.press(" ");
      await page.clock.runFor(500);
      for (const [use, by] of [
        [() => page.getByRole("button", { name: "One step forward" }).click(), 1],
        [() => page.getByRole("button", { name: "One step back" }).click(), -1],
        [() => page.keyboard.press("ArrowRight"), 1],
      ] as const) {
        const before = await cursor();
        await use();
        await page.clock.runFor(100);
        expect(await cursor()).toBe(before + by);
      }
    });

    test("a loop stays in the selection, and begins again at its end", async () => {
      await drag(".ruler", 0.5, 0.52);
      await page.mouse.up();
      await page.keyboard.press("l");
      const selection = await page.locator(".readout button").textContent();
      expect(selection).toContain("20 selected");
      const { x, y } = await plots(`[data-panel='${joints}'] .panel-body`);
      await page.mouse.click(x(0.51), y);
      await page.keyboard.press(" ");
      const seen: number[] = [];
      for (let frame = 0; frame < 80; frame++) {
        await page.clock.runFor(17);
        seen.push(await cursor());
      }
      expect([Math.min(...seen), Math.max(...seen)]).toEqual([500, 519]);
      expect(seen.filter((step, at) => step < (seen[at - 1] ?? 0)).length).toBeGreaterThan(1);
    });
  });

  describe("the y axes", () => {
    const axis = () => page.locator(`[data-panel='${joints}']`).getByLabel("Vertical axis");
    const labels = async () => (await drawings(joints)).map(({ ticks }) => ticks);
    const zoomIn = async () => {
      await page.keyboard.press("Home");
      for (let at = 0; at < 6; at++) await page.keyboard.press("+");
      await expect.poll(async () => (await range())[1]).toBeLessThan(30);
    };

    beforeEach(async () => {
      // Dimensions 4 and 5, in a plot of their own, are a hundred times as large; all grow.
      const data = waves(200, 6).map((value, at) => value * (at / 100) * (at % 6 < 4 ? 1 : 100));
      await open(reaching(200, { observations: { joint_pos: { data, shape: [6] } }, omens: {}, uncerts: {} }));
    });

    test("fit what is visible, each for itself", async () => {
      const [upper, lower] = await labels();
      expect(upper).not.toEqual(lower);
      await zoomIn();
      await expect.poll(async () => (await labels())[0]).not.toEqual(upper);
    });

    test("linked, they are the same in all plots of a channel", async () => {
      const own = await labels();
      await axis().selectOption("linked");
      await expect.poll(async () => (await labels())[0]).not.toEqual(own[0]);
      const [upper = [], lower] = await labels();
      expect(upper.length).toBeGreaterThan(1);
      expect(upper).toEqual(lower);
    });

    test("fixed, they stay while the range changes, also in a link", async () => {
      const before = await labels();
      await axis().selectOption("fixed");
      await expect.poll(labels).not.toEqual(before);
      const held = await labels();
      await zoomIn();
      await page.waitForFunction(() => location.hash.includes("fixed") && location.hash.includes("range"));
      await expect.poll(labels).toEqual(held);
    });
  });

  describe("keys", () => {
    test("minus zooms out by as much as plus zooms in", async () => {
      await open(reaching());
      await page.keyboard.press("+");
      await expect.poll(range).toEqual([0, 133]);
      await page.keyboard.press("-");
      await expect.poll(range).toEqual([0, 200]);
    });

    test("B leaves the band out, and brings it back", async () => {
      await open(reaching());
      const bands = async () => (await drawings(joints))[0]?.bands;
      await expect.poll(bands).toBeGreaterThan(0);
      const before = await bands();
      await page.keyboard.press("b");
      await expect.poll(bands).toBe(0);
      await page.keyboard.press("b");
      await expect.poll(bands).toBe(before);
    });

    test("1 to 9 show one dimension each, and the same key all of them again", async () => {
      const joint_pos = { data: waves(200, 12), shape: [12] };
      await open(reaching(200, { observations: { joint_pos }, omens: {}, uncerts: {} }));
      const names = page.locator(`[data-panel='${joints}'] .value-name`);
      for (let key = 1; key <= 9; key++) {
        await page.keyboard.press(String(key));
        await expect.poll(() => names.allTextContents()).toEqual([String(key - 1)]);
      }
      await page.keyboard.press("9");
      await expect.poll(() => names.count()).toBeGreaterThan(1);
    });

    test("D shows how pictures differ, C compares, S saves a picture", async () => {
      const { observations, omens } = reaching();
      const camera = (observations as Channels)["camera"] as { data: Uint8Array; shape: number[] };
      const dreamed = { data: camera.data.map((value) => 255 - value), shape: camera.shape };
      await open(reaching(200, { omens: { ...omens, camera: { dreamer: dreamed } } }));
      await drawn(page, "signal/camera");
      const chosen = page.locator("[data-panel='signal/camera'] [aria-pressed=true]");
      await expect.poll(() => chosen.textContent()).toBe("Split");
      await page.keyboard.press("d");
      await expect.poll(() => chosen.textContent()).toBe("Difference");
      await page.keyboard.press("d");
      await expect.poll(() => chosen.textContent()).toBe("Split");
      const [saved] = await Promise.all([page.waitForEvent("download"), page.keyboard.press("s")]);
      expect(saved.suggestedFilename()).toMatch(/^reach_001.*\.png$/);
      expect(PNG.sync.read(readFileSync(await saved.path())).width).toBeGreaterThan(1280);
      await page.keyboard.press("c");
      await page.getByRole("heading", { name: "Compare" }).waitFor();
      await page.keyboard.press("c");
      await page.getByRole("heading", { name: "Compare" }).waitFor({ state: "detached" });
    });

    test("J and K go to the next and to the previous episode", async () => {
      await open(reaching(), reaching(200, { id: "reach_002" }));
      const id = page.locator(".header");
      expect(await id.textContent()).toContain("reach_001");
      await page.keyboard.press("j");
      await expect.poll(() => id.textContent()).toContain("reach_002");
      await page.keyboard.press("k");
      await expect.poll(() => id.textContent()).toContain("reach_001");
    });
  });

  test("lines differ by more than their colour: predictions are dashed, dimensions and models have their names", async () => {
    const { omens } = reaching();
    const aloof = { data: waves(200, 3, 0.3), shape: [3] };
    await open(reaching(200, { omens: { joint_pos: { ...(omens as Channels)["joint_pos"], aloof } } }));
    const [plot, strip] = await drawings(joints);
    expect(plot?.texts).toEqual(expect.arrayContaining(["0", "1", "2"]));
    expect(plot?.dashes).toEqual(["", "", "", "5,4", "5,4", "5,4"]);
    expect(strip?.texts).toEqual(expect.arrayContaining(["0", "1", "2"]));
    // Of two models, the one with a band is chosen.
    expect(await page.locator(`[data-panel='${joints}']`).getByLabel("Model").inputValue()).toBe("dreamer");
    await page.keyboard.press("c");
    await page.locator(".compare-pair canvas").first().waitFor();
    const pair = () =>
      page.locator(".compare-pair canvas").evaluateAll((all) => all.map((one) => (one as Noted).drawing)[0]);
    await expect.poll(async () => (await pair())?.dashes).toEqual(["", "", "5,4"]);
    expect((await pair())?.texts).toEqual(expect.arrayContaining(["recorded", "aloof", "dreamer"]));
  });
});

/** What was drawn on a canvas since it was cleared: texts, the dashes of long lines, and transparent areas. */
interface Drawing {
  texts: string[];
  ticks: string[];
  dashes: string[];
  bands: number;
}

interface Noted extends HTMLCanvasElement {
  drawing: Drawing;
}

function noteDrawings(): void {
  const { clearRect, fillText, lineTo, beginPath, stroke, fill } = CanvasRenderingContext2D.prototype;
  let points = 0;
  let look = "";
  const of = ({ canvas }: CanvasRenderingContext2D) => {
    const noted = canvas as Noted;
    noted.drawing ??= { texts: [], ticks: [], dashes: [], bands: 0 };
    return noted.drawing;
  };
  Object.assign(CanvasRenderingContext2D.prototype, {
    clearRect(this: CanvasRenderingContext2D, ...all: Parameters<typeof clearRect>) {
      Object.assign(of(this), { texts: [], ticks: [], dashes: [], bands: 0 });
      look = "";
      clearRect.apply(this, all);
    },
    fillText(this: CanvasRenderingContext2D, ...all: Parameters<typeof fillText>) {
      // The numbers of an axis stand left of it.
      of(this)[this.textAlign === "right" ? "ticks" : "texts"].push(all[0]);
      fillText.apply(this, all as [string, number, number]);
    },
    beginPath(this: CanvasRenderingContext2D) {
      points = 0;
      beginPath.call(this);
    },
    lineTo(this: CanvasRenderingContext2D, ...all: Parameters<typeof lineTo>) {
      points++;
      lineTo.apply(this, all as [number, number]);
    },
    stroke(this: CanvasRenderingContext2D) {
      // A long line is stroked in pieces.
      const now = `${this.strokeStyle} ${this.getLineDash()}`;
      if (points > 5 && now !== look) of(this).dashes.push(this.getLineDash().join());
      if (points > 5) look = now;
      (stroke as () => void).call(this);
    },
    fill(this: CanvasRenderingContext2D) {
      if (points > 5 && this.globalAlpha < 1) of(this).bands++;
      (fill as () => void).call(this);
    },
  });
}
