// The whole page with an episode that has every kind of channel these panels are for: read by the worker from a file.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { encodeEpisode } from "@shard-format/core/wshard";
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { choose, drawn, fileAddress, hasNoBrowser, launch, type Watched, watch } from "./harness";
import { scenes } from "./pictures/scenes";
import { decoded, pictures, pixel } from "./pictures/sources";

/** The values of the first channel of a scene, for as many steps as the episode has. */
async function values(name: string, channel = 0) {
  const scene = await scenes[name]?.();
  const found = scene?.channels[channel]?.values;
  if (found === undefined) throw new Error(`no scene ${name}`);
  return found;
}

const length = 40;

async function episode(): Promise<Uint8Array> {
  const first = <T extends { subarray(from: number, to: number): T }>(array: T, size: number) =>
    array.subarray(0, length * size);
  const camera = (await values("camera")) as Uint8Array;
  const dreamed = (await values("camera and prediction", 1)) as Uint8Array;
  const depth = (await values("depth")) as Uint16Array;
  const scan = (await values("points")) as Float32Array;
  const tactile = (await values("waves")) as Float32Array;
  const latent = (await values("embedding")) as Float32Array;
  const wall = new Uint16Array(length * 4800);
  for (let step = 0; step < length; step++)
    wall.set(depth.subarray((step % 32) * 4800, ((step % 32) + 1) * 4800), step * 4800);
  return encodeEpisode({
    id: "pictures",
    length,
    timebase: { tickHz: 30 },
    observations: {
      camera: { data: first(camera, 57600), shape: [120, 160, 3] },
      depth: { data: wall, shape: [60, 80], unit: "mm" },
      scan: { data: scan, shape: [3000, 4], unit: "m" },
      objects: {
        items: Array.from({ length }, (_, step) => new Float32Array(12 * (step % 5)).fill(step / 40)),
        shape: [3],
        dtype: "f32",
      },
      tactile: { data: first(tactile, 64), shape: [64], unit: "N" },
    },
    omens: {
      camera: { dreamer: { data: first(dreamed, 57600), shape: [120, 160, 3] } },
      latent_action: { dreamer: { data: first(latent, 32), shape: [32] } },
      latent_action_codebook: { dreamer: { data: Int32Array.from({ length }, (_, step) => step >> 3), shape: [] } },
    },
    rewards: Float32Array.from({ length }, (_, step) => Math.sin(step / 6)),
  });
}

describe.skipIf(hasNoBrowser)("the page", () => {
  let browser: Browser;
  let page: Page;
  let watched: Watched;

  beforeAll(async () => {
    browser = await launch();
    page = await browser.newPage({ viewport: { width: 1280, height: 1500 } });
    watched = watch(page);
    await page.goto(fileAddress());
    await choose(page, [{ name: "pictures.wshard", bytes: await episode() }]);
  });

  afterAll(() => browser?.close());

  const panel = (key: string) => page.locator(`[data-panel="${key}"]`);

  test("shows cameras, depth and points side by side, and what has many dimensions below", async () => {
    for (const key of ["signal/camera", "signal/depth", "signal/scan", "signal/objects"]) await drawn(page, key);
    for (const key of ["signal/tactile", "omen/latent_action/dreamer", "omen/latent_action_codebook/dreamer"]) {
      await panel(key).scrollIntoViewIfNeeded();
      await drawn(page, key);
    }
    // Computed in a worker of its own, under the policy of the page.
    await page.locator(".component.across").waitFor();
    expect(await page.locator(".panel-problem").allTextContents()).toEqual([]);
    await panel("signal/camera").scrollIntoViewIfNeeded();
    const canvas = panel("signal/camera").locator("canvas");
    const box = await canvas.boundingBox();
    if (box === null) throw new Error("the camera is not on the screen");
    await expect
      .poll(async () => {
        const png = decoded(await page.screenshot());
        const scale = Math.min(box.width / 160, box.height / 120);
        return pixel(
          png,
          Math.round(box.x + (box.width - 160 * scale) / 2 + 1),
          Math.round(box.y + (box.height - 120 * scale) / 2 + 1),
        );
      })
      .toEqual([0, 0, 255]);
    expect(watched.errors).toEqual([]);
  });

  test.each(["light", "dark"] as const)("has no serious finding of axe in these panels, %s", async (colorScheme) => {
    await page.emulateMedia({ colorScheme });
    await page.evaluate(readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8"));
    const found = await page.evaluate(async () => {
      const { axe } = window as unknown as { axe: typeof import("axe-core") };
      const { violations } = await axe.run(".stage", { resultTypes: ["violations"] });
      return violations
        .filter(({ impact }) => impact === "serious" || impact === "critical")
        .map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 160)).join(" | ")}`);
    });
    expect(found).toEqual([]);
  });

  test.runIf(pictures)("is pictured for people to look at", async () => {
    for (let i = 0; i < 2; i++) await page.keyboard.press("Shift+ArrowRight");
    for (const [width, height] of [
      [1280, 1700],
      [390, 2600],
    ] as const) {
      for (const theme of ["light", "dark"] as const) {
        await page.emulateMedia({ colorScheme: theme });
        await page.setViewportSize({ width, height });
        await page.locator(".component.across").waitFor();
        await page.screenshot({ path: `${pictures}/page-${width}-${theme}.png` });
      }
    }
  });
});
