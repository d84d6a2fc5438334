// How the page looks: screenshots beside those in pictures/ and in docs/, which people have looked at.
//
// SHARD_WRITE_PICTURES=1 writes them anew. Texts are in DejaVu Sans (Debian: fonts-dejavu-core), which looks the same
// on all machines.

import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import pixelmatch from "pixelmatch";
import type { Browser, Page } from "playwright-core";
import { PNG } from "pngjs";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { choose, drawn, fileAddress, hasNoBrowser, launch } from "./harness";
import { makeEpisodes } from "./python";

const isWriting = Boolean(process.env["SHARD_WRITE_PICTURES"]);
/** Part of the pixels that may look different: edges of letters and lines. */
const tolerance = 0.01;

const references = fileURLToPath(new URL("pictures/", import.meta.url));
const docs = fileURLToPath(new URL("../../../docs/", import.meta.url));

describe.skipIf(hasNoBrowser)("the page looks as before", () => {
  let browser: Browser;
  let page: Page;
  let folder: string;
  let bytes: Buffer;

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), "viewer-"));
    makeEpisodes(folder, "reach");
    bytes = readFileSync(join(folder, "reach.wshard"));
    browser = await launch();
  });
  afterAll(async () => {
    await browser?.close();
    rmSync(folder, { recursive: true, force: true });
  });
  afterEach(() => page.close());

  interface Look {
    readonly width: number;
    readonly height: number;
    readonly colorScheme?: "light" | "dark";
    /** What a link would say. */
    readonly view?: string;
  }

  async function open({ width, height, colorScheme = "light", view = "" }: Look): Promise<void> {
    page = await browser.newPage({ viewport: { width, height }, colorScheme, reducedMotion: "reduce" });
    await page.goto(fileAddress(view));
    await page.evaluate(() => {
      document.documentElement.style.setProperty("--font", '"DejaVu Sans"');
      document.documentElement.style.setProperty("--mono", '"DejaVu Sans Mono"');
    });
  }

  async function openEpisode(look: Look): Promise<void> {
    await open({ ...look, view: `#id=lift_cup_0042&${look.view ?? "t=222"}` });
    await choose(page, [{ name: "lift_cup_0042.wshard", bytes }]);
    await drawn(page, "signal/joint_pos");
    await drawn(page, "signal/front");
    await page.locator(".stage").evaluate((stage) => stage.scrollTo(0, 0));
  }

  /** The screen, as soon as nothing changes any longer. */
  async function still(): Promise<Buffer> {
    await page.mouse.move(0, 0);
    // How much was read is counted every two seconds, and depends on what was read ahead.
    await page.evaluate(() =>
      document.querySelector<HTMLElement>(".traffic")?.style.setProperty("visibility", "hidden"),
    );
    let before = await page.screenshot();
    for (let same = 0; same < 2; ) {
      await page.waitForTimeout(250);
      const now = await page.screenshot();
      same = now.equals(before) ? same + 1 : 0;
      before = now;
    }
    return before;
  }

  /** Compares the screen with a picture, which has at most so many bytes. */
  async function looksLike(file: string, most: number): Promise<void> {
    const screen = await still();
    if (isWriting) writeFileSync(file, screen);
    expect(existsSync(file), `${file} is missing: SHARD_WRITE_PICTURES=1 writes it`).toBe(true);
    expect(statSync(file).size).toBeLessThan(most);
    const [now, before] = [PNG.sync.read(screen), PNG.sync.read(readFileSync(file))];
    expect([now.width, now.height]).toEqual([before.width, before.height]);
    const marks = new PNG({ width: now.width, height: now.height });
    const differing = pixelmatch(now.data, before.data, marks.data, now.width, now.height, { threshold: 0.2 });
    const share = differing / (now.width * now.height);
    if (share > tolerance) {
      const name = file.replace(/^.*\//, "");
      writeFileSync(join(tmpdir(), `now-${name}`), screen);
      writeFileSync(join(tmpdir(), `marks-${name}`), PNG.sync.write(marks));
    }
    expect(share, `${file} looks different: the folder ${tmpdir()} has it as it is now`).toBeLessThanOrEqual(tolerance);
  }

  const sizes = [
    { name: "wide", width: 1280, height: 900 },
    { name: "narrow", width: 390, height: 844 },
  ] as const;

  describe.each(["light", "dark"] as const)("%s", (colorScheme) => {
    test.each(sizes)("an episode, $name", async ({ name, width, height }) => {
      await openEpisode({ width, height, colorScheme });
      await looksLike(`${references}episode-${name}-${colorScheme}.png`, 150_000);
    });
  });

  test("the open screen", async () => {
    await open({ width: 1280, height: 800 });
    await looksLike(`${references}open.png`, 150_000);
  });

  // The panels in the order in which the story is told.
  const shown = ["signal/front", "signal/wrist", "signal/joint_pos", "reward", "signal/grip_force", "label/phase"];
  const story = `show=${encodeURIComponent(JSON.stringify(shown))}`;

  test("the picture of the README", async () => {
    await openEpisode({ width: 1280, height: 1010, view: `t=222&tab=findings&${story}` });
    await looksLike(`${docs}viewer.png`, 300_000);
  });

  test("the picture of the guide: the moment when the prediction went wrong", async () => {
    await openEpisode({ width: 1280, height: 800, view: `t=213&range=190,250&${story}` });
    await looksLike(`${docs}viewer-moment.png`, 300_000);
  });
});
