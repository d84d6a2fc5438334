// Opening: from addresses and from this computer. How much is read until something can be seen: targets.test.ts.

import { computeIdentity, openShard } from "@shard-format/core";
import { encodeEpisode, openEpisode } from "@shard-format/core/wshard";
import type { Browser, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { encodeOverviews } from "../../../ports/typescript/src/wshard/overview-writing";
import { encoded, reaching } from "./episodes";
import {
  choose,
  drawn,
  fileAddress,
  hasNoBrowser,
  inMemory,
  launch,
  plainHost,
  type Server,
  serve,
  type Watched,
  watch,
} from "./harness";

describe.skipIf(hasNoBrowser)("opening", () => {
  let browser: Browser;
  let page: Page;
  let watched: Watched;
  let server: Server;

  beforeAll(async () => {
    browser = await launch();
    server = await serve(30);
    server.files.set("reach.wshard", inMemory(await encoded(reaching())));
  });
  afterAll(async () => {
    await browser?.close();
    server?.close();
  });
  beforeEach(async () => {
    page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
    watched = watch(page);
    server.answers.length = 0;
    server.fault = null;
  });
  afterEach(() => page.close());

  test("an overview beside the episode spares reading a long channel, and its spike is there", async () => {
    const samples = new Float32Array(1_500_000).map((_, at) => Math.sin(at / 5000) + (at === 1_234_567 ? 30 : 0));
    const bytes = await encoded(
      reaching(200, {
        observations: { sound: { data: samples, startNs: 0n, samplingRateHz: 375_000 } },
        omens: {},
        uncerts: {},
      }),
    );
    const overview = await encodeOverviews(await openEpisode(bytes));
    if (overview === null) throw new Error("the channel is not long enough");
    server.files.set("sound.wshard", inMemory(bytes));
    server.files.set("sound.wshard.overview", inMemory(overview));
    await page.goto(`${server.origin}/viewer.html#src=${server.origin}/files/sound.wshard`);
    expect(await drawn(page, "signal/sound")).toMatch(/ to (29|30|31)/);
    const read = server.answers.reduce((sum, answer) => sum + answer.bytes, 0);
    expect(read).toBeLessThan(500_000);
  });

  test("a page of plain http, where browsers have no cryptography, verifies an identity and copies it", async () => {
    const bytes = await encodeEpisode(reaching(), { identity: true });
    server.files.set("stated.wshard", inMemory(bytes));
    const origin = server.origin.replace("127.0.0.1", plainHost);
    await page.goto(`${origin}/viewer.html#src=${origin}/files/stated.wshard&tab=identity`);
    expect(await page.evaluate(() => isSecureContext)).toBe(false);
    await page.getByRole("button", { name: /^Verify it/ }).click();
    await page.getByText(/^✓/).waitFor();
    const digest = await page.locator(".identity-digest code").textContent();
    expect(digest).toBe(await (await computeIdentity(await openShard(bytes))).digest());
    await page.getByRole("button", { name: "Copy the identity" }).click();
    const filter = page.getByRole("searchbox");
    await filter.focus();
    await page.keyboard.press("Control+v");
    expect(await filter.inputValue()).toBe(digest);
    expect(watched.errors).toEqual([]);
  });

  test("a file of this computer is opened without any request", async () => {
    await page.goto(fileAddress());
    await choose(page, [{ name: "reach.wshard", bytes: await encoded(reaching()) }]);
    expect(await drawn(page, "signal/joint_pos")).toContain("prediction − recorded from 0 (step 0) to 2 (step 150)");
    await expect.poll(() => page.locator("h1").textContent()).toBe("reach_001");
    expect(watched.requests).toEqual([]);
    expect(watched.errors).toEqual([]);
  });

  test("a catalogue and other files say what to do", async () => {
    await page.goto(fileAddress());
    await choose(page, [{ name: "runs.parquet", bytes: new TextEncoder().encode("PAR1 and more of it PAR1") }]);
    await expect.poll(() => page.locator(".problem p").first().textContent()).toContain("wshard view CATALOGUE");
    await choose(page, [
      { name: "notes.txt", bytes: new TextEncoder().encode("some notes of mine, which are no episode") },
      { name: "more.txt", bytes: new TextEncoder().encode("more") },
    ]);
    await expect.poll(() => page.locator(".problem p").first().textContent()).toContain("wshard convert DATASET");
    expect(watched.errors).toEqual([]);
  });

  test("a worker that fails is replaced: the page says so, and goes on at the same place", async () => {
    await page.goto(fileAddress());
    await choose(page, [{ name: "reach.wshard", bytes: await encoded(reaching()) }]);
    await drawn(page, "signal/joint_pos");
    await page.keyboard.press("End");
    await page.workers()[0]?.evaluate(() => {
      setTimeout(() => {
        throw new Error("no more memory");
      });
    });
    const banner = page.locator(".banner");
    expect(await banner.textContent()).toContain("The part of the page that reads files has stopped");
    expect(await page.locator("h1").textContent()).toBe("reach_001");
    await banner.getByRole("button", { name: "Open it again" }).click();
    await banner.waitFor({ state: "detached" });
    expect(await drawn(page, "signal/joint_pos")).toContain("(step 150)");
    await expect.poll(() => page.locator(".time-cursor").getAttribute("aria-valuenow")).toBe("199");
    expect(page.workers()).toHaveLength(1);
    expect(watched.errors.filter((one) => !one.includes("no more memory"))).toEqual([]);
  });

  test("what was opened last is shown, however late the answers about something else come", async () => {
    server.files.set("other.wshard", inMemory(await encoded(reaching(50, { id: "other" }))));
    await page.goto(`${server.origin}/viewer.html`);
    for (const name of ["other", "reach"]) {
      await page.locator("#address").fill(`files/${name}.wshard`);
      await page.keyboard.press("Enter");
    }
    await expect.poll(() => page.locator("h1").textContent()).toBe("reach_001");
    expect(await page.locator(".problem").count()).toBe(0);
    expect(await page.locator(".busy").count()).toBe(0);
    expect(watched.errors).toEqual([]);
  });

  test("several files are a table, which keys open", async () => {
    await page.goto(fileAddress());
    const files = ["b", "a"].map(async (name) => ({
      name: `${name}.wshard`,
      bytes: await encoded(reaching(50, { id: name })),
    }));
    await choose(page, await Promise.all(files));
    await page.locator("tbody tr").nth(1).waitFor();
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await expect.poll(() => page.locator("h1").textContent()).toBe("b");
    await page.keyboard.press("k");
    await expect.poll(() => page.locator("h1").textContent()).toBe("a");
    expect(watched.errors).toEqual([]);
  });

  test.each([
    ["auth", "asks for a password"],
    ["ranges", "sends only whole files"],
    ["expose", "hides the header Content-Range"],
    ["cors", "Access-Control-Allow-Origin"],
  ] as const)("where the server does not help (%s), the page says what to do", async (fault, said) => {
    server.fault = fault;
    await page.goto(fileAddress(`#src=${server.origin}/files/reach.wshard`));
    await expect.poll(() => page.locator(".problem p").first().textContent()).toContain(said);
    // The page works on.
    await choose(page, [{ name: "reach.wshard", bytes: await encoded(reaching()) }]);
    await drawn(page, "signal/joint_pos");
  });

  test("a link shows the same view, also of a file of this computer", async () => {
    const bytes = await encoded(reaching());
    await page.goto(fileAddress());
    await choose(page, [{ name: "reach.wshard", bytes }]);
    await drawn(page, "signal/joint_pos");
    await page.keyboard.press("+");
    for (let times = 0; times < 3; times++) await page.keyboard.press("Shift+ArrowRight");
    await page.locator("label", { hasText: "gripper" }).locator("input").uncheck();
    await expect.poll(() => page.url()).toContain("t=30&");
    await expect.poll(() => page.url()).toContain("show=");
    const address = page.url();
    const before = await page.locator(".time-cursor").getAttribute("aria-valuetext");

    const other = await browser.newPage({ viewport: { width: 1280, height: 800 } });
    await other.goto(address);
    await expect.poll(() => other.locator(".lead").textContent()).toContain("reach_001");
    await choose(other, [{ name: "reach.wshard", bytes }]);
    await drawn(other, "signal/joint_pos");
    expect(await other.locator(".time-cursor").getAttribute("aria-valuetext")).toBe(before);
    expect(await other.locator("[data-panel='signal/gripper']").count()).toBe(0);
    await expect.poll(() => other.url()).toBe(address);
    await other.close();
  });

  const two = () =>
    Promise.all(
      ["a", "b"].map(async (name) => ({ name: `${name}.wshard`, bytes: await encoded(reaching(50, { id: name })) })),
    );
  const title = () => page.locator("h1").textContent();
  const cursor = () => page.locator(".time-cursor").getAttribute("aria-valuenow");

  test("an address that is edited is followed, and Back leads to what was there before", async () => {
    await page.goto(fileAddress());
    await choose(page, await two());
    await page.locator("tbody tr").first().click();
    await expect.poll(title).toBe("a");
    await expect.poll(() => page.url()).toContain("id=a");
    await page.keyboard.press("ArrowRight");
    await expect.poll(() => page.url()).toContain("t=1");
    const go = (hash: string) =>
      page.evaluate((to) => {
        location.hash = to;
      }, hash);
    await go("file=a.wshard&id=a&t=30&range=20,40&tab=metadata");
    await expect.poll(cursor).toBe("30");
    expect(await page.locator(".handle.start").getAttribute("aria-valuenow")).toBe("20");
    await page.getByRole("tab", { selected: true }).waitFor();
    await go("file=b.wshard&id=b&t=7");
    await expect.poll(title).toBe("b");
    await expect.poll(cursor).toBe("7");
    // What the page writes into the address is not followed: nothing moves any more.
    await expect.poll(() => page.url()).toContain("file=b.wshard&id=b&t=7&tab=metadata");
    await page.goBack();
    await expect.poll(title).toBe("a");
    await expect.poll(cursor).toBe("30");
    await page.goBack();
    await expect.poll(cursor).toBe("1");
    expect(await page.locator(".handle.start").getAttribute("aria-valuenow")).toBe("0");
    await page.goBack();
    await page.locator("tbody tr").first().waitFor();
    await page.goForward();
    await expect.poll(title).toBe("a");
    await go("file=c.wshard&id=c");
    await expect.poll(() => page.locator(".problem").textContent()).toContain("c.wshard");
    expect(watched.errors).toEqual([]);
  });

  test("flagged episodes are marked in the table, sorted to its top, and in the link", async () => {
    await page.goto(fileAddress());
    await choose(page, await two());
    await page.locator("tbody tr").nth(1).waitFor();
    expect(await page.locator("thead").textContent()).not.toContain("Flag");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("x");
    await page.locator("thead").getByText("Flag").click();
    await expect.poll(() => page.locator("tbody tr").first().textContent()).toMatch(/^b⚑/);
    await page.locator("tbody tr").first().click();
    await expect.poll(title).toBe("b");
    const button = page.getByRole("button", { name: "Flag", exact: true });
    expect(await button.getAttribute("aria-pressed")).toBe("true");
    await page.keyboard.press("k");
    await expect.poll(title).toBe("a");
    await button.click();
    const flagged = encodeURIComponent('["a.wshard","b.wshard"]').replaceAll("%2C", ",");
    await expect.poll(() => page.url()).toContain(`flag=${flagged}`);
    const address = page.url();

    const other = await browser.newPage();
    await other.goto(address);
    await choose(other, await two());
    await other.locator(".crumb").first().click();
    await expect.poll(() => other.locator("tbody .flag").count()).toBe(2);
    await other.keyboard.press("x");
    await expect.poll(() => other.locator("tbody .flag").count()).toBe(1);
    await other.close();
    expect(watched.errors).toEqual([]);
  });
});
