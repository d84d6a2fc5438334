// Small images from the file beside an episode: in the table, and while a picture is read.

import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Browser, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { encoded, reaching } from "./episodes";
import { choose, drawn, fileAddress, hasNoBrowser, inMemory, launch, type Server, serve, watch } from "./harness";
import { makeEpisodes } from "./python";

describe.skipIf(hasNoBrowser)("posters", () => {
  const folder = mkdtempSync(join(tmpdir(), "viewer-"));
  let browser: Browser;
  let page: Page;
  let errors: readonly string[];
  let server: Server;
  let episode: Uint8Array;
  let overview: Uint8Array;

  beforeAll(async () => {
    makeEpisodes(folder, "posters");
    episode = readFileSync(join(folder, "posters.wshard"));
    overview = readFileSync(join(folder, "posters.wshard.overview"));
    browser = await launch();
  });
  afterAll(async () => {
    await browser?.close();
    rmSync(folder, { recursive: true, force: true });
  });
  beforeEach(async () => {
    server = await serve();
    server.files.set("a.wshard", inMemory(episode));
    server.files.set("a.wshard.overview", inMemory(overview));
    page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
    errors = watch(page).errors;
  });
  afterEach(async () => {
    await page.close();
    server.close();
  });

  const front = "[data-panel='signal/front']";

  test("while a picture is read, a small one of a near step stands for it, and says so", async () => {
    await page.goto(`${server.origin}/viewer.html#src=${server.origin}/files/a.wshard`);
    await drawn(page, "signal/front");
    // The first jump asks for the small images; the pictures themselves wait from now on.
    let goOn = () => {};
    const waiting = new Promise<void>((resolve) => {
      goOn = resolve;
    });
    await page.route("**/a.wshard", async (route) => {
      await waiting;
      await route.continue();
    });
    await page.evaluate(() => {
      location.hash = `${location.hash}&t=150`;
    });
    await page.locator(front).getByText("preview").waitFor();
    // The upper left square of a picture tells its step.
    const step = () =>
      page.evaluate((panel) => {
        const canvas = document.querySelector<HTMLCanvasElement>(`${panel} canvas`);
        const { width, height } = canvas ?? { width: 0, height: 0 };
        const size = Math.min(width / 320, height / 240);
        const [x, y] = [width / 2 - 150 * size, height / 2 - 110 * size];
        return canvas?.getContext("2d")?.getImageData(x, y, 1, 1).data[0] ?? -1;
      }, front);
    expect(Math.abs((await step()) - 150)).toBeLessThan(12);
    goOn();
    await page.locator(front).getByText("preview").waitFor({ state: "detached" });
    await expect.poll(step).toBe(150);
    expect(errors).toEqual([]);
  });

  test("the table has a picture of each episode in sight that has an overview, and a wrong one is left out", async () => {
    await page.goto(fileAddress());
    const other = await encoded(reaching(40, { id: "other" }));
    const broken = Uint8Array.from(overview);
    broken.fill(0, broken.length >> 3);
    await choose(page, [
      { name: "posters.wshard", bytes: episode },
      { name: "posters.wshard.overview", bytes: overview },
      { name: "broken.wshard", bytes: episode },
      { name: "broken.wshard.overview", bytes: broken },
      // An overview of another episode.
      { name: "other.wshard", bytes: other },
      { name: "other.wshard.overview", bytes: overview },
    ]);
    const image = page.locator("tbody img");
    await image.waitFor();
    await expect.poll(() => image.evaluate((one) => (one as HTMLImageElement).naturalWidth)).toBe(160);
    expect(await page.locator("tbody tr", { has: page.locator("img") }).textContent()).toContain("posters.wshard");
    expect(await page.locator("tbody .thumbnail").count()).toBe(3);
    expect(errors).toEqual([]);
  });
});
