// The whole page with an episode that has every kind of channel these panels are for: read by the worker from a file.

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { encodeEpisode } from "@shard-format/core/wshard";
import type { Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Chromium, canRun, pictures, pixel } from "./chromium";
import { scenes } from "./pictures/scenes";

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

describe.skipIf(!canRun)("the page", () => {
  const chromium = new Chromium();
  let page: Page;
  let folder: string;

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), "viewer-"));
    writeFileSync(join(folder, "pictures.wshard"), await episode());
    page = await chromium.open("index.html");
  }, 60_000);

  afterAll(async () => {
    await chromium.close();
    rmSync(folder, { recursive: true, force: true });
  });

  const panel = (key: string) => page.locator(`[data-panel="${key}"]`);
  const still = () =>
    page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));

  async function open(size: { width: number; height: number }) {
    await page.setViewportSize(size);
    await page.getByTestId("files").setInputFiles(join(folder, "pictures.wshard"));
    await panel("signal/camera").locator("canvas").waitFor();
  }

  test("shows cameras, depth and points side by side, and what has many dimensions below", async () => {
    await open({ width: 1280, height: 1500 });
    for (const key of ["signal/camera", "signal/depth", "signal/scan", "signal/objects"]) {
      await panel(key).locator("canvas").first().waitFor();
    }
    for (const key of ["signal/tactile", "omen/latent_action/dreamer", "omen/latent_action_codebook/dreamer"]) {
      await panel(key).scrollIntoViewIfNeeded();
      await panel(key).locator("canvas").first().waitFor();
    }
    await page.locator(".component.across").waitFor();
    expect(await page.locator(".panel-problem").allTextContents()).toEqual([]);
    await panel("signal/camera").scrollIntoViewIfNeeded();
    await still();
    const canvas = panel("signal/camera").locator("canvas");
    const box = await canvas.boundingBox();
    if (box === null) throw new Error("the camera is not on the screen");
    await expect
      .poll(async () => {
        const png = await chromium.screenshot();
        const scale = Math.min(box.width / 160, box.height / 120);
        return pixel(
          png,
          Math.round(box.x + (box.width - 160 * scale) / 2 + 1),
          Math.round(box.y + (box.height - 120 * scale) / 2 + 1),
        );
      })
      .toEqual([0, 0, 255]);
    expect(chromium.complaints).toEqual([]);
  });

  test.runIf(pictures)("looks good", async () => {
    for (let i = 0; i < 2; i++) await page.keyboard.press("Shift+ArrowRight");
    for (const [width, height] of [
      [1280, 1700],
      [390, 2600],
    ] as const) {
      for (const theme of ["light", "dark"] as const) {
        await page.emulateMedia({ colorScheme: theme });
        await page.setViewportSize({ width, height });
        await page.waitForTimeout(1500);
        await page.screenshot({ path: `${pictures}/page-${width}-${theme}.png` });
      }
    }
  });
});
