// Everybody can use the page: no serious finding of axe on any screen, everything by keyboard, small and enlarged
// windows, and no movement for those who want none.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Browser, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { encoded, reaching, waves } from "./episodes";
import { choose, drawn, fileAddress, hasNoBrowser, launch, type Watched, watch } from "./harness";

const axeSource = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

describe.skipIf(hasNoBrowser)("accessibility", () => {
  let browser: Browser;
  let page: Page;
  let watched: Watched;
  let episode: Uint8Array;
  let other: Uint8Array;

  beforeAll(async () => {
    browser = await launch();
    episode = await encoded(reaching());
    other = await encoded(reaching(150, { id: "reach_002" }));
  });
  afterAll(() => browser?.close());
  beforeEach(async () => {
    page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
    watched = watch(page);
    await page.goto(fileAddress());
  });
  afterEach(async () => {
    expect(watched.errors).toEqual([]);
    await page.close();
  });

  async function openEpisode() {
    await choose(page, [{ name: "reach.wshard", bytes: episode }]);
    await drawn(page, "signal/joint_pos");
  }

  async function openTable() {
    await choose(page, [
      { name: "a.wshard", bytes: episode },
      { name: "b.wshard", bytes: other },
      { name: "broken.wshard", bytes: new Uint8Array(100) },
    ]);
    await page.getByText("reach_002").first().waitFor();
  }

  /** The serious findings of axe about what is on the screen, by rule and place. */
  async function serious(): Promise<string[]> {
    await page.evaluate(axeSource);
    return page.evaluate(async () => {
      const { axe } = window as unknown as { axe: typeof import("axe-core") };
      const { violations } = await axe.run(document, { resultTypes: ["violations"] });
      return violations
        .filter(({ impact }) => impact === "serious" || impact === "critical")
        .flatMap(({ id, nodes }) => nodes.map(({ target, failureSummary }) => `${id}: ${target} ${failureSummary}`));
    });
  }

  describe.each(["light", "dark"] as const)("%s: axe finds nothing serious", (colorScheme) => {
    beforeEach(() => page.emulateMedia({ colorScheme, reducedMotion: "reduce" }));

    test("on the open screen, and where a file could not be opened", async () => {
      expect(await serious()).toEqual([]);
      await choose(page, [{ name: "broken.wshard", bytes: new Uint8Array(100) }]);
      await page.getByRole("alert").waitFor();
      expect(await serious()).toEqual([]);
    });

    test("on the table", async () => {
      await openTable();
      expect(await serious()).toEqual([]);
    });

    test("on an episode with each tab of the inspector, and on the help", async () => {
      await openEpisode();
      expect(await serious()).toEqual([]);
      await openInspector();
      for (const tab of await page.getByRole("tab").all()) {
        await tab.click();
        expect(await serious(), (await tab.textContent()) ?? "").toEqual([]);
      }
      await page.keyboard.press("?");
      await page.getByRole("dialog").waitFor();
      expect(await serious()).toEqual([]);
    });

    test("on a comparison", async () => {
      await openTable();
      await page.keyboard.press("Enter");
      await drawn(page, "signal/joint_pos");
      await page.keyboard.press("c");
      await page.locator(".compare").waitFor();
      expect(await serious()).toEqual([]);
    });
  });

  test("the numbers of a drawing are a table, which the keyboard opens, reads and leaves", async () => {
    await openEpisode();
    const plot = page.getByRole("region", { name: "joint_pos", exact: true });
    expect(
      await plot.evaluate((one) => document.getElementById(one.getAttribute("aria-describedby") ?? "")?.textContent),
    ).toMatch(/joint_pos, steps 0 to 200\..*prediction − recorded from .* to 2 \(step 150\)/);
    const button = plot.getByRole("button", { name: "Table of joint_pos" });
    await button.focus();
    await page.keyboard.press("Enter");
    await plot.getByRole("table").waitFor();
    expect(await button.getAttribute("aria-expanded")).toBe("true");
    const headers = await plot.getByRole("columnheader").allTextContents();
    expect(headers.slice(0, 4)).toEqual(["step", "time", "0 recorded", "0 predicted by dreamer"]);
    expect(headers).toContain("2 error");
    expect(await plot.getByRole("caption").textContent()).toContain("50 rows");
    expect(await serious()).toEqual([]);

    // Hide is the next button; then the settings of the plot, and what is below it.
    const focus = () => page.evaluate(() => document.activeElement?.getAttribute("aria-label") ?? "");
    for (let at = 0; (at < 8 && (await focus()) !== "Table of joint_pos") || at === 0; at++)
      await page.keyboard.press("Tab");
    expect(await plot.locator(".panel-table").evaluate((one) => one === document.activeElement)).toBe(true);
    await page.keyboard.press("Tab");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await expect.poll(() => page.locator(".time-cursor").getAttribute("aria-valuenow")).toBe("4");

    for (let at = 0; at < 4; at++) await page.keyboard.press("+");
    await expect.poll(() => plot.getByRole("caption").textContent()).toContain("Each row is a step");
    const [step, , recorded] = await plot.getByRole("row").nth(1).locator("th, td").allTextContents();
    expect(Math.fround(Number(recorded))).toBe(waves(200, 3)[3 * Number(step)]);
    await button.focus();
    await page.keyboard.press("Enter");
    expect(await plot.getByRole("table").count()).toBe(0);
  });

  test("the table of a picture follows the cursor", async () => {
    await openEpisode();
    const camera = page.getByRole("region", { name: "camera", exact: true });
    await camera.getByRole("button", { name: "Table of camera" }).click();
    await page.keyboard.press("ArrowRight");
    await expect.poll(() => camera.getByRole("caption").textContent()).toBe("What is shown at step 1.");
    await expect
      .poll(() => camera.getByRole("rowheader").allTextContents())
      .toEqual(["recorded red", "recorded green", "recorded blue"]);
  });

  async function openInspector() {
    if ((await page.getByRole("tab").count()) === 0) await page.getByRole("button", { name: /inspector/i }).click();
    await page.getByRole("tab").first().waitFor();
  }

  test("the keyboard alone reaches every control, and the focus is always visible", async () => {
    await openTable();
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowUp");
    await page.keyboard.press("Enter");
    await drawn(page, "signal/joint_pos");
    const unseen: string[] = [];
    const reached = new Set<string>();
    for (let at = 0; at < 150; at++) {
      await page.keyboard.press("Tab");
      const one = await page.evaluate(() => {
        const element = document.activeElement as HTMLElement | null;
        if (element === null || element === document.body) return null;
        const style = getComputedStyle(element);
        const { width, height } = element.getBoundingClientRect();
        const isMarked =
          (style.outlineStyle !== "none" && Number.parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none";
        const name =
          element.getAttribute("aria-label") ?? element.title ?? element.textContent?.trim().slice(0, 40) ?? "";
        const path = `${element.tagName.toLowerCase()}.${element.className} ${name}`;
        return { path, isSeen: isMarked && width > 0 && height > 0, isSlider: element.role === "slider" };
      });
      if (one === null) {
        if (at > 10) break;
        continue;
      }
      reached.add(one.path);
      if (!one.isSeen) unseen.push(one.path);
    }
    expect(unseen).toEqual([]);
    const all = [...reached].join("\n");
    for (const name of [/^button/m, /^select/m, /slider|time-cursor/m, /^input/m]) expect(all).toMatch(name);
  });

  test("the time line is a slider that says step and time", async () => {
    await openEpisode();
    const slider = page.locator(".time-cursor");
    await slider.focus();
    await page.keyboard.press("ArrowRight");
    await expect.poll(() => slider.getAttribute("aria-valuenow")).toBe("1");
    expect(await slider.getAttribute("aria-valuetext")).toMatch(/step 1\b.*s/i);
  });

  test("the place of the cursor is told once it rests for half a second", async () => {
    await openEpisode();
    await page.clock.install();
    await page.clock.pauseAt(Date.now() + 60_000);
    const said = page.locator(".readout [role=status]");
    await page.locator(".time-cursor").focus();
    for (let step = 0; step < 5; step++) {
      await page.keyboard.press("ArrowRight");
      await page.clock.runFor(300);
      expect(await said.textContent()).not.toMatch(/^step [1-5]/);
    }
    await page.clock.runFor(300);
    expect(await said.textContent()).toMatch(/^step 5,/);
  });

  test("a button switches between dark and light, whatever the machine prefers, and plots follow", async () => {
    await page.emulateMedia({ colorScheme: "light" });
    await openEpisode();
    const look = () =>
      page.evaluate(() => {
        const canvas = document.querySelector<HTMLCanvasElement>('[data-panel="signal/joint_pos"] canvas');
        return [getComputedStyle(document.body).backgroundColor, canvas?.toDataURL()];
      });
    const [light, drawnLight] = await look();
    await page.getByRole("button", { name: "Dark or light" }).click();
    await expect.poll(async () => (await look())[0]).not.toBe(light);
    await expect.poll(async () => (await look())[1]).not.toBe(drawnLight);
    await page.getByRole("button", { name: "Dark or light" }).click();
    await expect.poll(look).toEqual([light, drawnLight]);
  });

  test("nothing moves by itself for people who want less motion", async () => {
    await page.emulateMedia({ reducedMotion: "reduce" });
    await openEpisode();
    const moving = await page.evaluate(() =>
      document
        .getAnimations()
        .filter(({ playState }) => playState === "running")
        .map((one) => String((one.effect as KeyframeEffect | null)?.target?.className)),
    );
    expect(moving).toEqual([]);
    const long = await page.evaluate(() =>
      [...document.querySelectorAll("*")]
        .filter((element) => {
          const { transitionDuration, transitionProperty } = getComputedStyle(element);
          const seconds = Math.max(...transitionDuration.split(",").map((one) => Number.parseFloat(one)));
          return seconds > 0.01 && /transform|all|left|top|width|height/.test(transitionProperty);
        })
        .map(({ className }) => String(className)),
    );
    expect(long).toEqual([]);
  });

  /** Whether something reaches out of the window to the right, and what. */
  const tooWide = () =>
    page.evaluate(() => {
      if (document.documentElement.scrollWidth <= innerWidth) return [];
      return [...document.querySelectorAll("body *")]
        .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
        .slice(0, 8)
        .map((one) => `${one.tagName.toLowerCase()}.${one.className}`);
    });

  // At 200 %, a window of 1280 × 800 has room for 640 × 400.
  describe.each([
    ["320 pixels", { width: 320, height: 640 }],
    ["1280 pixels at 200 %", { width: 640, height: 400 }],
  ])("a window of %s", (_name, size) => {
    beforeEach(() => page.setViewportSize(size));

    test("shows the open screen, the table and an episode without scrolling sideways", async () => {
      expect(await tooWide()).toEqual([]);
      await openTable();
      expect(await tooWide()).toEqual([]);
      await page.keyboard.press("Enter");
      await drawn(page, "signal/camera");
      expect(await tooWide()).toEqual([]);
      const stage = await page.locator(".stage").boundingBox();
      expect(stage?.height).toBeGreaterThan(120);
      const play = await page.locator(".play-button").boundingBox();
      expect((play?.x ?? 999) + (play?.width ?? 0)).toBeLessThanOrEqual(size.width);
      expect((play?.y ?? 999) + (play?.height ?? 0)).toBeLessThanOrEqual(size.height);
      await page.locator(".play-button").click();
      await expect
        .poll(async () => Number(await page.locator(".time-cursor").getAttribute("aria-valuenow")))
        .toBeGreaterThan(0);
    });

    test("has controls of at least 24 pixels", async () => {
      await openEpisode();
      const small = await page.evaluate(() =>
        [...document.querySelectorAll<HTMLElement>("button, select, input, [role=slider], [role=tab], a[href]")]
          .filter((one) => one.checkVisibility({ opacityProperty: true, visibilityProperty: true }))
          .map((one) => ({ one, box: one.getBoundingClientRect() }))
          .filter(({ box }) => box.width > 0 && (box.width < 23.5 || box.height < 23.5))
          .map(
            ({ one, box }) => `${one.tagName}.${one.className} ${Math.round(box.width)} × ${Math.round(box.height)}`,
          ),
      );
      expect([...new Set(small)]).toEqual([]);
    });
  });
});
