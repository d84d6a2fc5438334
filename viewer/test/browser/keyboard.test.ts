// The keys of the page, and what the mouse does on plots.

import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { encoded, reaching, waves } from "./episodes";
import { choose, drawn, fileAddress, hasNoBrowser, launch, type Watched, watch } from "./harness";

describe.skipIf(hasNoBrowser)("keys and mouse", () => {
  let browser: Browser;
  let page: Page;
  let watched: Watched;

  beforeAll(async () => {
    browser = await launch();
    page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
    watched = watch(page);
  });
  afterAll(() => browser?.close());
  beforeEach(async () => {
    await page.goto("about:blank");
    await page.goto(fileAddress());
    await choose(page, [{ name: "reach.wshard", bytes: await encoded(reaching()) }]);
    await drawn(page, "signal/joint_pos");
  });

  const cursor = async () => Number(await page.locator(".time-cursor").getAttribute("aria-valuenow"));
  const range = async () => {
    const ends = page.locator(".handle");
    return [0, 1].map(async (at) => Number(await ends.nth(at).getAttribute("aria-valuenow")));
  };
  const press = async (...keys: string[]) => {
    for (const key of keys) await page.keyboard.press(key);
  };

  test("arrows move by one step, by ten with Shift, and to labels with Alt", async () => {
    await press("ArrowRight", "ArrowRight", "Shift+ArrowRight", "ArrowLeft");
    await expect.poll(cursor).toBe(11);
    await press("Alt+ArrowRight");
    await expect.poll(cursor).toBe(80);
    await press("End");
    await expect.poll(cursor).toBe(199);
    await press("Home");
    await expect.poll(cursor).toBe(0);
  });

  test("plus zooms in and F shows all; Space plays and stops", async () => {
    await press("+", "+");
    await expect.poll(async () => (await Promise.all(await range()))[1]).toBeLessThan(200);
    await press("f");
    await expect.poll(async () => Promise.all(await range())).toEqual([0, 200]);
    await press(" ");
    await expect.poll(cursor).toBeGreaterThan(2);
    await press(" ");
    await expect.poll(() => page.locator(".play-button").getAttribute("aria-label")).toBe("Play");
  });

  test("B, E and numbers switch band, error and dimensions", async () => {
    const panel = page.locator("[data-panel='signal/joint_pos']");
    expect(await panel.locator(".values li .swatch").count()).toBe(3);
    await press("2");
    await expect.poll(() => panel.locator(".values li .swatch").count()).toBe(1);
    await press("2");
    await expect.poll(() => panel.locator(".values li .swatch").count()).toBe(3);
    expect(await panel.locator(".error-strip").count()).toBe(1);
    await press("e");
    await expect.poll(() => panel.locator(".error-strip").count()).toBe(0);
  });

  test("a slash goes to the filter, Escape leaves it, and a question mark shows the keys", async () => {
    await press("/");
    await page.keyboard.type("grip");
    await expect.poll(() => page.locator(".tree-row").count()).toBe(1);
    await press("Escape", "?");
    await expect.poll(() => page.locator("dialog[open] kbd").count()).toBeGreaterThan(20);
    await press("Escape");
    await expect.poll(() => page.locator("dialog[open]").count()).toBe(0);
  });

  test("the wheel zooms at the pointer, dragging moves along, a click puts the cursor there", async () => {
    const body = page.locator("[data-panel='signal/joint_pos'] .panel-body");
    await body.scrollIntoViewIfNeeded();
    const box = await body.boundingBox();
    if (box === null) throw new Error("the plot is not there");
    const [left, inner] = [box.x + 64, box.width - 76];
    await page.mouse.move(left + inner / 2, box.y + 100);
    await page.mouse.wheel(0, -300);
    await expect.poll(async () => (await Promise.all(await range()))[0]).toBeGreaterThan(10);
    const [start = 0, end = 0] = await Promise.all(await range());
    // The middle, where the pointer was, is still in the middle.
    expect(Math.abs((start + end) / 2 - 100)).toBeLessThan(2);
    await page.mouse.down();
    await page.mouse.move(left + inner / 4, box.y + 100, { steps: 4 });
    await page.mouse.up();
    await expect.poll(async () => (await Promise.all(await range()))[0]).toBeGreaterThan(start);
    const [from = 0, to = 0] = await Promise.all(await range());
    await page.mouse.click(left + inner / 2, box.y + 100);
    await expect.poll(async () => Math.abs((await cursor()) - (from + to) / 2)).toBeLessThan(2);
    await page.mouse.dblclick(left + inner / 2, box.y + 100);
    await expect.poll(async () => Promise.all(await range())).toEqual([0, 200]);
  });

  test("two fingers zoom, also on two plots: what is between them stays there, and the cursor where it is", async () => {
    const [upper, lower] = ["signal/gripper", "action/ctrl"].map((key) =>
      page.locator(`[data-panel='${key}'] .panel-body`),
    );
    await lower?.scrollIntoViewIfNeeded();
    const [above, below] = [await upper?.boundingBox(), await lower?.boundingBox()];
    if (!above || !below) throw new Error("the plots are not there");
    const [left, inner] = [above.x + 64, above.width - 76];
    const session = await page.context().newCDPSession(page);
    const touch = (type: "touchStart" | "touchMove" | "touchEnd", ...shares: number[]) =>
      session.send("Input.dispatchTouchEvent", {
        type,
        touchPoints: shares.map((share, id) => ({
          x: left + share * inner,
          y: (id === 0 ? above.y + above.height : below.y) + (id === 0 ? -20 : 40),
          id,
        })),
      });
    await touch("touchStart", 0.4);
    await touch("touchStart", 0.4, 0.6);
    for (const by of [0.05, 0.1, 0.15, 0.2]) await touch("touchMove", 0.4 - by, 0.6 + by);
    // From 80 to 120, and now at 20 % and 80 %.
    await expect.poll(async () => Promise.all(await range())).toEqual([67, 133]);
    for (const by of [0.05, 0.1]) await touch("touchMove", 0.2 + by, 0.8 + by);
    await expect.poll(async () => Promise.all(await range())).toEqual([60, 127]);
    await touch("touchEnd", 0.3);
    await touch("touchEnd");
    expect(await cursor()).toBe(0);
    // One finger moves along again.
    await touch("touchStart", 0.5);
    for (const share of [0.55, 0.6, 0.65]) await touch("touchMove", share);
    await touch("touchEnd");
    await expect.poll(async () => (await Promise.all(await range()))[0]).toBeLessThan(56);
    await session.detach();
  });

  test("the readout has the exact values at the cursor", async () => {
    await press("End", "Shift+ArrowLeft");
    const values = waves(200, 3);
    const first = page.locator("[data-panel='signal/joint_pos'] .values .value").first();
    const expected = String(Number((values[189 * 3] as number).toPrecision(5))).replace("-", "−");
    await expect.poll(() => first.textContent()).toBe(expected);
    expect(watched.errors).toEqual([]);
  });
});
