// Panels in Chromium: what their pixels show, and how fast they follow the cursor.

import { writeFileSync } from "node:fs";
import type { Browser, Page } from "playwright-core";
import { PNG } from "pngjs";
import type { ViteDevServer } from "vite";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { codeColour } from "../../src/plot-data/colours";
import { hasNoBrowser, launch, type Watched, watch } from "./harness";
import type { Wanted } from "./pictures/page";
import { decoded, pictures, pixel, serveSources } from "./pictures/sources";

describe.skipIf(hasNoBrowser)("a panel in Chromium", () => {
  let server: ViteDevServer;
  let browser: Browser;
  let page: Page;
  let watched: Watched;

  beforeAll(async () => {
    server = await serveSources();
    browser = await launch();
    page = await browser.newPage();
    watched = watch(page);
    await page.goto(`${server.resolvedUrls?.local[0] ?? ""}test/browser/pictures/index.html`);
    await page.waitForFunction(() => "show" in window);
  });

  afterAll(async () => {
    await browser?.close();
    await server?.close();
  });

  beforeEach(() => {
    watched.errors.length = 0;
  });

  /** Show a panel, wait until it has drawn what it was asked for, and give its pixels. */
  async function show(wanted: Wanted, cursor = 0): Promise<PNG> {
    await page.setViewportSize({ width: wanted.width, height: wanted.height });
    await page.evaluate((wanted) => window.show(JSON.parse(wanted)), JSON.stringify(wanted));
    await page.evaluate((cursor) => window.shown.view.seek(cursor), cursor);
    return settled();
  }

  async function settled(): Promise<PNG> {
    await page.waitForFunction(
      () => window.shown.status.summary !== undefined || window.shown.status.problem !== undefined,
    );
    // Two frames: the drawing follows the status, and the picture follows the drawing.
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    const picture = decoded(await page.screenshot());
    expect(watched.errors).toEqual([]);
    return picture;
  }

  describe("with pictures", () => {
    test("shows the colours of the step at the cursor, each pixel as a square", async () => {
      const png = await show({ scene: "camera", panel: "image", width: 640, height: 480 }, 40);
      expect(pixel(png, 0, 0)).toEqual([40, 0, 215]);
      expect(pixel(png, 3, 3)).toEqual([40, 0, 215]);
      expect(pixel(png, 4, 4)).not.toEqual([40, 0, 215]);
    });

    test("shows truth left and prediction right of the line, and their difference", async () => {
      const size = { width: 320, height: 354 };
      const split = await show({ scene: "two quarters", panel: "image", ...size, settings: { split: 0.75 } });
      expect([pixel(split, 40, 160), pixel(split, 200, 160), pixel(split, 300, 160)]).toEqual([
        [10, 20, 30],
        [200, 100, 50],
        [200, 105, 50],
      ]);
      const difference = await show({
        scene: "two quarters",
        panel: "image",
        ...size,
        settings: { mode: "difference" },
      });
      expect(pixel(difference, 40, 160)).toEqual([253, 231, 37]);
    });

    test("shows what was predicted some steps before, next to what came", async () => {
      const wanted = { scene: "horizon", panel: "image", width: 320, height: 354, settings: { ahead: 2 } };
      const later = await show(wanted, 5);
      expect([pixel(later, 40, 160), pixel(later, 280, 160)]).toEqual([
        [100, 100, 100],
        [101, 101, 101],
      ]);
      const early = await show(wanted, 1); // nobody had predicted anything two steps before
      expect(pixel(early, 280, 160)).toEqual([20, 20, 20]);
    });

    test("shows channel-first pictures that are described so", async () => {
      const png = await show({ scene: "channel first", panel: "image", width: 320, height: 320 }, 2);
      expect(pixel(png, 5, 5)).toEqual([0, 128, 0]);
      expect(pixel(png, 315, 5)).toEqual([248, 128, 0]);
      expect(pixel(png, 5, 315)).toEqual([0, 128, 248]);
    });

    test("shows depth as colours, nothing where there is no value, and tells the value under the pointer", async () => {
      const png = await show({ scene: "depth", panel: "image", width: 320, height: 274 }, 3);
      const [near, far] = [pixel(png, 310, 120), pixel(png, 10, 120)];
      expect(far[0]).toBeGreaterThan(150); // yellow
      expect(near[2]).toBeGreaterThan(near[0] as number); // violet
      await page.mouse.move(160, 120);
      await page.waitForFunction(() => document.querySelector(".panel-readout")?.textContent?.includes("no value"));
      await page.mouse.move(2, 122);
      await page.waitForFunction(() => document.querySelector(".panel-readout")?.textContent?.includes("2130 mm"));
    });

    test("of a camera with its own clock shows the last picture before the cursor, and none before the first", async () => {
      const size = { width: 160, height: 194 };
      const png = await show({ scene: "own clock", panel: "image", ...size }, 5);
      expect(pixel(png, 80, 80)).toEqual([100, 100, 100]);
      await page.evaluate(() => window.shown.view.seek(1));
      await page.waitForFunction(() => window.shown.status.note?.startsWith("No picture"));
    });

    test("follows the cursor inside a group without asking anybody", async () => {
      await show({ scene: "camera", panel: "image", width: 640, height: 480 });
      await page.evaluate(() => window.shown.view.seek(1));
      await page.waitForFunction(() => window.shown.reads.windows > 1);
      const before = await page.evaluate(() => window.shown.reads.windows);
      await page.evaluate(() => window.shown.view.seek(31));
      const png = await settled();
      expect(pixel(png, 0, 0)).toEqual([31, 0, 224]);
      expect(await page.evaluate(() => window.shown.reads.windows)).toBe(before);
    });
  });

  describe("with encoded cameras", () => {
    const size = { width: 320, height: 240 };
    const near = (found: number[], wanted: number[]) =>
      expect(Math.max(...found.map((value, i) => Math.abs(value - (wanted[i] as number))))).toBeLessThan(12);

    for (const scene of ["video/h264", "video/h264 Annex B", "video/vp9", "video/av1", "image/png", "image/jpeg"]) {
      test(`of ${scene} shows the frame of the step, before and after keyframes`, async (context) => {
        const able = await page.evaluate(
          (wanted) => window.show(JSON.parse(wanted)),
          JSON.stringify({ scene, panel: "image", ...size }),
        );
        if (!able) return context.skip();
        for (const step of [3, 8, 15, 23, 1]) {
          await page.evaluate((step) => window.shown.view.seek(step), step);
          const png = await settled();
          near(pixel(png, 60, 120), [8 * step, 8 * step, 8 * step]);
          near(pixel(png, 260, 120), [200, 0, 0]);
        }
      });
    }

    test("far from their keyframe are decoded once, by the decoder that decoded those before", async (context) => {
      await page.evaluate(() => {
        const real = VideoDecoder.prototype.decode;
        const counted = { chunks: 0 };
        Object.assign(window, { counted });
        VideoDecoder.prototype.decode = function (chunk) {
          counted.chunks++;
          real.call(this, chunk);
        };
      });
      const wanted = { scene: "long stretches", panel: "image", ...size };
      if (!(await page.evaluate((wanted) => window.show(JSON.parse(wanted)), JSON.stringify(wanted)))) context.skip();
      for (const step of [0, 10, 63, 64, 127, 128, 191, 192, 255, 256, 259, 100, 30]) {
        await page.evaluate((step) => window.shown.view.seek(step), step);
        await page.waitForFunction((step) => window.shown.status.summary?.endsWith(`entry ${step}`), step);
        const grey = 8 * (step % 24);
        near(pixel(await settled(), 60, 120), [grey, grey, grey]);
      }
      const jump = async (step: number) => {
        await page.evaluate((wanted) => window.show(JSON.parse(wanted)), JSON.stringify(wanted));
        await page.evaluate((step) => window.shown.view.seek(step), step);
        await page.waitForFunction((step) => window.shown.status.summary?.endsWith(`entry ${step}`), step);
        near(pixel(await settled(), 60, 120), [8 * (step % 24), 8 * (step % 24), 8 * (step % 24)]);
      };
      // Each packet once, but for the first picture, which is decoded alone.
      const chunks = await page.evaluate(() => (window as unknown as { counted: { chunks: number } }).counted.chunks);
      expect(chunks).toBeLessThanOrEqual(260 + 1);
      for (const step of [230, 119, 120]) await jump(step);
    });

    test("of 16-bit PNG images keeps all 16 bits", async () => {
      await show({ scene: "depth video", panel: "image", width: 320, height: 274 }, 9);
      await page.mouse.move(5 * 10 + 2, 60);
      await page.waitForFunction(() => document.querySelector(".panel-readout")?.textContent?.includes("1910 mm"));
      await page.mouse.move(5 * 10 + 2, 200);
      await page.waitForFunction(() => document.querySelector(".panel-readout")?.textContent?.includes("no value"));
    });

    test("shows the others if one of them is damaged", async () => {
      const wanted = { scene: "one damaged image", panel: "image", ...size };
      await page.evaluate((wanted) => window.show(JSON.parse(wanted)), JSON.stringify(wanted));
      for (const [step, words] of [
        [4, "entry 4"],
        [5, "the picture of step 5 is damaged"],
        [6, "entry 6"],
      ] as const) {
        await page.evaluate((step) => window.shown.view.seek(step), step);
        await page.waitForFunction((words) => JSON.stringify(window.shown.status).includes(words), words);
      }
      near(pixel(await settled(), 60, 120), [48, 48, 48]);
    });

    test.each([
      ["video/ffv1", "wshard convert --video decode"],
      ["damaged video", "damaged"],
      ["damaged images", "damaged"],
      ["wrong size", "the channel says 64 × 40"],
    ])("shows why %s cannot be shown, and the page stays alive", async (scene, words) => {
      await page.setViewportSize(size);
      await page.evaluate(
        (wanted) => window.show(JSON.parse(wanted)),
        JSON.stringify({ scene, panel: "image", ...size }),
      );
      await page.waitForFunction(() => window.shown.status.problem !== undefined);
      expect(await page.evaluate(() => window.shown.status.problem)).toContain(words);
      watched.errors.length = 0;
      await show({ scene: "camera", panel: "image", ...size });
    });
  });

  describe("with points", () => {
    /** The pixels that have one of the colours, by where they are. */
    const middleOf = (png: PNG, is: (colour: number[]) => boolean) => {
      let [count, x, y] = [0, 0, 0];
      for (let at = 0; at < png.width * png.height; at++) {
        if (!is(pixel(png, at % png.width, Math.floor(at / png.width)))) continue;
        count++;
        x += at % png.width;
        y += Math.floor(at / png.width);
      }
      return { count, x: x / count, y: y / count };
    };
    const yellow = ([r = 0, g = 0, b = 0]: number[]) => r > 200 && g > 200 && b < 90;
    const red = ([r = 0, g = 0, b = 0]: number[]) => r > 240 && g < 40 && b < 40;
    const blue = ([r = 0, g = 0, b = 0]: number[]) => b > 240 && r < 40 && g < 40;

    test("shows a ball that moves with the cursor in the colour of its column", async () => {
      const wanted = { scene: "points", panel: "points", width: 420, height: 340, settings: { colour: "column 3" } };
      const before = middleOf(await show(wanted, 0), yellow);
      await page.evaluate(() => window.shown.view.seek(39));
      const after = middleOf(await settled(), yellow);
      expect(Math.min(before.count, after.count)).toBeGreaterThan(300);
      expect(after.x - before.x).toBeGreaterThan(40);
    });

    test("shows the trail of the steps before in fading colours", async () => {
      const wanted = { scene: "points", panel: "points", width: 420, height: 340 };
      const settings = { colour: "column 3", turn: 0 };
      const alone = middleOf(await show({ ...wanted, settings }, 39), (c) => c.join() !== "255,255,255");
      const trail = middleOf(
        await show({ ...wanted, settings: { ...settings, trail: 30 } }, 39),
        (c) => c.join() !== "255,255,255",
      );
      expect(trail.count).toBeGreaterThan(1.1 * alone.count);
    });

    test("of different number at each step are shown in their own colours, the higher ones above", async () => {
      const png = await show(
        { scene: "ragged points", panel: "points", width: 420, height: 340, settings: { size: 6 } },
        2,
      );
      const [low, high] = [middleOf(png, red), middleOf(png, blue)];
      expect(Math.min(low.count, high.count)).toBeGreaterThan(200);
      expect(low.y - high.y).toBeGreaterThan(30);
      await page.evaluate(() => window.shown.view.seek(3));
      const empty = await settled();
      expect([middleOf(empty, red).count, middleOf(empty, blue).count]).toEqual([0, 0]);
      expect(await page.evaluate(() => window.shown.status.note)).toBe("No points at this step.");
    });

    test("turn when they are dragged, and the link keeps how", async () => {
      const before = await show({ scene: "points", panel: "points", width: 420, height: 340 }, 0);
      await page.mouse.move(200, 150);
      await page.mouse.down();
      await page.mouse.move(300, 130);
      await page.mouse.up();
      const after = await settled();
      expect(before.data.equals(after.data)).toBe(false);
      expect(await page.evaluate(() => (window.shown.settings["orbit"] as number[])[0])).toBeCloseTo(
        0.55 - 100 / 150,
        3,
      );
    });

    test("are left out with a message where the browser has no WebGL2", async () => {
      await page.evaluate(() => {
        const real = HTMLCanvasElement.prototype.getContext;
        HTMLCanvasElement.prototype.getContext = function (this: HTMLCanvasElement, kind: string, ...rest: unknown[]) {
          return kind === "webgl2" ? null : Reflect.apply(real, this, [kind, ...rest]);
        } as typeof real;
        Object.assign(window, { real });
      });
      await show({ scene: "points", panel: "points", width: 420, height: 340 }, 0);
      expect(await page.evaluate(() => window.shown.status.problem)).toContain("no WebGL2");
      await page.evaluate(() => {
        HTMLCanvasElement.prototype.getContext = (
          window as unknown as { real: typeof HTMLCanvasElement.prototype.getContext }
        ).real;
      });
    });
  });

  describe("with values over time", () => {
    test("shows each dimension as a row of its colour, and nothing where values are missing", async () => {
      const png = await show({ scene: "rows", panel: "heatmap", width: 476, height: 354 });
      const row = (dimension: number) => 10 * dimension + 5;
      expect(pixel(png, 100, row(0))).toEqual([68, 1, 84]);
      expect(pixel(png, 100, row(31))).toEqual([253, 231, 37]);
      expect(pixel(png, 64 + 200, row(5))).toEqual([238, 240, 244]); // --sunken
      expect(pixel(png, 64 + 200, row(6))).toEqual(pixel(png, 64 + 10, row(6)));
      expect(await page.evaluate(() => window.shown.best)).toBe("heatmap");
    });

    test("shows a single spike among 60,000 samples, and says how many share a cell", async () => {
      const png = await show({ scene: "spike", panel: "heatmap", width: 476, height: 354 });
      const rowHeight = 320 / 20;
      const [x, y] = [64 + 200, Math.floor(9 * rowHeight)];
      expect(pixel(png, x, y + 3)).toEqual([253, 231, 37]);
      expect(pixel(png, x, y + 12)).toEqual(pixel(png, x + 20, y + 12));
      expect(pixel(png, x + 2, y + 3)).toEqual(pixel(png, x + 20, y + 3));
      expect(await page.evaluate(() => window.shown.status.reducedBy)).toBe(150);
      const low = await show({ scene: "spike", panel: "heatmap", width: 476, height: 84 });
      expect(pixel(low, x, Math.floor((9 * 50) / 20) + 1)).toEqual([253, 231, 37]);
    });

    test("tells the value under the pointer", async () => {
      await show({ scene: "rows", panel: "heatmap", width: 476, height: 354 });
      await page.mouse.move(100, 75);
      await page.waitForFunction(() => document.querySelector(".panel-readout")?.textContent === "dimension 7  7 N");
    });
  });

  describe("with lines", () => {
    const size = { panel: "series", width: 640, height: 222 };
    const colours = { band: [209, 229, 241], line: [0, 114, 178], surface: [255, 255, 255] };
    /** Where a value is in a plot from `low` to `high`. */
    const y = (value: number, low: number, high: number) => {
      const room = 0.06 * (high - low);
      return Math.round(26 + 126 - (120 * (value - low + room)) / (high - low + 2 * room));
    };
    const near = (found: number[], wanted: number[]) =>
      found.every((one, at) => Math.abs(one - (wanted[at] as number)) <= 3);

    test("fills a band of quantiles between its own edges, and names it", async () => {
      const png = await show({ scene: "quantile band", ...size }, 5);
      for (const [value, colour] of [
        [3.15, colours.surface],
        [2.8, colours.band],
        [-0.8, colours.band],
        [-1.15, colours.surface],
      ] as const) {
        expect(pixel(png, 301, y(value, -1, 3)), `at ${value}`).toSatisfy((found: number[]) =>
          near(found, [...colour]),
        );
      }
      expect(await page.locator(".values").textContent()).toContain("band 5–95 %");
      const choices = await page.getByLabel("Uncertainty").locator("option").allTextContents();
      expect(choices).toEqual(["5–95 %", "entropy as a line", "no band"]);
    });

    test("shows an uncertainty of another meaning as a line of its own, with its name", async () => {
      await show({ scene: "quantile band", ...size, height: 286, settings: { k: "entropy" } }, 5);
      expect(await page.locator(".strip-name").allTextContents()).toEqual(["prediction − recorded", "entropy"]);
    });

    test("shows what is predicted at the cursor for the steps after it, and moves it along", async () => {
      const x = (step: number) => Math.round(64 + (step * (640 - 76)) / 40);
      const first = await show({ scene: "forecast", ...size }, 10);
      expect(pixel(first, x(17), y(1, 0, 1))).toEqual(colours.line);
      expect(pixel(first, x(27), y(1, 0, 1))[0]).toBeGreaterThan(200);
      await page.evaluate(() => window.shown.view.seek(20));
      await page.waitForFunction(() => window.shown.status.summary?.includes("from step 20."));
      const second = await settled();
      expect(pixel(second, x(17), y(1, 0, 1))[0]).toBeGreaterThan(200);
      expect(pixel(second, x(27), y(1, 0, 1))).toEqual(colours.line);
    });
  });

  describe("with latents", () => {
    test("shows codes as a strip of colours, and the shares of several codes in a column", async () => {
      const png = await show({ scene: "codes", panel: "latent", width: 276, height: 156 }, 20);
      expect(pixel(png, 64 + 50, 20)).toEqual(codeColour(3));
      expect(pixel(png, 64 + 150, 20)).toEqual(codeColour(7));
      expect(pixel(png, 64 + 199, 20)).toEqual(codeColour(12));
      expect(await page.locator(".code-list strong").textContent()).toBe("code 3");
      expect(await page.locator(".code-bars button").allTextContents()).toEqual(["350", "749", "121"]);
      await page.setViewportSize({ width: 90, height: 156 });
      const narrow = await show({ scene: "codes", panel: "latent", width: 90, height: 156 });
      const last = 64 + 13; // the last column has codes 7 and 12
      expect(pixel(narrow, last, 10)).toEqual(codeColour(7));
      expect(pixel(narrow, last, 58)).toEqual(codeColour(12));
    });

    test("goes to the next step with a code when it is clicked", async () => {
      await show({ scene: "codes", panel: "latent", width: 276, height: 156 }, 20);
      await page.locator(".code-bars button").nth(1).click();
      expect(await page.evaluate(() => window.shown.view.cursor.value)).toBe(50);
    });

    test("shows embeddings as a path in a plane, up to the cursor", async () => {
      const wanted = { scene: "embedding", panel: "latent", width: 476, height: 430 };
      await show(wanted, 0);
      await page.waitForFunction(
        () => window.shown.status.note === undefined && document.querySelector(".component") !== null,
      );
      const dot = async () => {
        // The dot at the cursor has the colour of the cursor of the theme, as no other part of the lower half.
        const png = await settled();
        let [count, x] = [0, 0];
        for (let at = 190 * png.width; at < png.width * png.height; at++) {
          if (pixel(png, at % png.width, Math.floor(at / png.width)).join() !== "23,27,36") continue;
          count++;
          x += at % png.width;
        }
        return x / count;
      };
      const before = await dot();
      await page.evaluate(() => window.shown.view.seek(150));
      const after = await dot();
      expect(Math.abs(after - before)).toBeGreaterThan(100);
      expect(await page.locator(".component").allTextContents()).toEqual([
        expect.stringMatching(/^Component 1 · \d+ %$/),
        expect.stringMatching(/^Component 2 · \d+ %$/),
      ]);
    });
  });

  test.each([
    ["image", "no camera entries"],
    ["image", "no values"],
    ["points", "no points"],
    ["heatmap", "no rows"],
    ["latent", "no rows"],
    ["latent", "one embedding"],
    ["latent", "no codes"],
  ])("of %s stays alive with %s", async (panel, scene) => {
    await page.evaluate(
      (wanted) => window.show(JSON.parse(wanted)),
      JSON.stringify({ scene, panel, width: 320, height: 420 }),
    );
    await page.waitForFunction(() => Object.values(window.shown.status).some((one) => one !== undefined));
    await page.evaluate(() => window.shown.view.seek(1));
    await show({ scene: "camera", panel: "image", width: 320, height: 240 });
  });

  test.runIf(pictures)("is pictured for people to look at", async () => {
    const looks: [string, Wanted, number][] = [
      ["heatmap", { scene: "waves", panel: "heatmap", width: 640, height: 226 }, 20],
      ["codes", { scene: "many codes", panel: "latent", width: 640, height: 156 }, 200],
      ["embedding", { scene: "embedding", panel: "latent", width: 640, height: 430 }, 200],
      ["points", { scene: "points", panel: "points", width: 420, height: 340 }, 20],
      [
        "trail",
        {
          scene: "points",
          panel: "points",
          width: 420,
          height: 340,
          settings: { trail: 20, colour: "column 3", map: "turbo" },
        },
        30,
      ],
      ["ragged", { scene: "ragged points", panel: "points", width: 420, height: 340 }, 5],
      ["camera", { scene: "camera", panel: "image", width: 420, height: 320 }, 30],
      ["split", { scene: "camera and prediction", panel: "image", width: 420, height: 320 }, 30],
      [
        "difference",
        { scene: "camera and prediction", panel: "image", width: 420, height: 320, settings: { mode: "difference" } },
        30,
      ],
      ["depth", { scene: "depth", panel: "image", width: 420, height: 320 }, 3],
      [
        "narrow",
        { scene: "camera and prediction", panel: "image", width: 340, height: 280, settings: { mode: "blink" } },
        12,
      ],
    ];
    for (const [name, wanted, cursor] of looks) {
      for (const theme of ["light", "dark"] as const) {
        const png = await show({ ...wanted, theme }, cursor);
        writeFileSync(`${pictures}/${name}-${theme}.png`, PNG.sync.write(png));
      }
    }
  });
});
