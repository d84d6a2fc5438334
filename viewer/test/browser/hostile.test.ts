// Hostile files and texts: the page says what is wrong and lives on, and nothing of a file ever runs.

import { readdirSync, readFileSync } from "node:fs";
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { encoded, reaching } from "./episodes";
import { choose, drawn, fileAddress, hasNoBrowser, launch, watch } from "./harness";

const vectors = new URL("../../../spec/vectors/", import.meta.url);

describe.skipIf(hasNoBrowser)("hostile content", () => {
  let browser: Browser;

  beforeAll(async () => {
    browser = await launch();
  });
  afterAll(() => browser?.close());

  async function open(): Promise<Page> {
    const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
    await page.addInitScript(() => {
      Object.assign(globalThis, { violations: [], ran: false });
      addEventListener("securitypolicyviolation", (event) => {
        const { violatedDirective } = event as SecurityPolicyViolationEvent;
        (globalThis as unknown as { violations: string[] }).violations.push(violatedDirective);
      });
    });
    await page.goto(fileAddress());
    return page;
  }

  const violations = (page: Page) =>
    page.evaluate(() => (globalThis as unknown as { violations: string[] }).violations);

  test("names and texts of a file are texts, whatever they look like", async () => {
    const page = await open();
    const watched = watch(page);
    const markup = "<img src=x onerror='globalThis.ran=true'>";
    const bytes = await encoded(
      reaching(40, {
        id: `<script>globalThis.ran=true</script>\u202e`,
        envId: markup,
        metadata: { task: markup, link: "javascript:globalThis.ran=true", [markup]: markup },
        labels: { phase: [{ start: 0, end: 20, text: markup }] },
        observations: {
          [markup]: { data: new Float32Array(40), unit: markup },
          plain: { text: Array(40).fill(markup) },
        },
        omens: {},
        uncerts: {},
      }),
    );
    await choose(page, [{ name: "hostile.wshard", bytes }]);
    await expect.poll(() => page.locator("h1").textContent()).toBe("<script>globalThis.ran=true</script>\\u{202e}");
    for (const tab of await page.getByRole("tab").all()) await tab.click();
    expect(await page.evaluate(() => (globalThis as unknown as { ran: boolean }).ran)).toBe(false);
    expect(await page.locator("img[onerror], a[href^=javascript]").count()).toBe(0);
    expect(await violations(page)).toEqual([]);
    expect(watched.errors).toEqual([]);
    await page.close();
  });

  test("the policy of the page lets nothing else run, and no style be added", async () => {
    const page = await open();
    await page.evaluate(() => {
      const script = document.createElement("script");
      script.textContent = "globalThis.ran = true";
      document.body.append(script);
      const style = document.createElement("style");
      style.textContent = "body { display: none }";
      document.body.append(style);
      const handler = document.createElement("div");
      handler.setAttribute("onclick", "globalThis.ran = true");
      document.body.append(handler);
      handler.click();
      const frame = document.createElement("iframe");
      frame.src = "data:text/html,hello";
      document.body.append(frame);
    });
    await expect.poll(async () => new Set(await violations(page)).size).toBeGreaterThanOrEqual(4);
    expect(await page.evaluate(() => (globalThis as unknown as { ran: boolean }).ran)).toBe(false);
    expect(await page.evaluate(() => getComputedStyle(document.body).display)).not.toBe("none");
    await page.close();
  });

  test("every invalid vector is opened: the page says something and lives on", async () => {
    const page = await open();
    const errors: string[] = [];
    page.on("pageerror", (error) => errors.push(error.message));
    const good = await encoded(reaching(60));
    let count = 0;
    for (const folder of readdirSync(vectors).filter((name) => name.startsWith("invalid"))) {
      for (const name of readdirSync(new URL(`${folder}/`, vectors)).filter((one) => one.endsWith(".json"))) {
        const { file, files } = JSON.parse(readFileSync(new URL(`${folder}/${name}`, vectors), "utf8")) as {
          file?: string;
          files?: string[];
        };
        const main = file ?? files?.[0];
        if (main === undefined || !/\.(w?shard|shardpack|partial)$/.test(main)) continue;
        const bytes = readFileSync(new URL(`${folder}/${main}`, vectors));
        if (bytes.length > 40_000_000) continue;
        await page.evaluate(() => {
          document.querySelector<HTMLElement>(".brand")?.click();
        });
        await page.locator("[data-testid=files]").waitFor({ state: "attached" });
        await choose(page, [{ name: main.replace(/^.*\//, ""), bytes }]);
        // A message, or the file is open because what is wrong is in one of its parts.
        await page.waitForFunction(
          () =>
            document.querySelector(".busy") === null &&
            document.querySelector(".problem, .app:is(.episode, .container, .episodes)") !== null,
          undefined,
          { timeout: 20_000 },
        );
        expect(await page.evaluate(() => document.body.innerText.trim().length), `${folder}/${name}`).toBeGreaterThan(
          20,
        );
        count++;
      }
    }
    expect(count).toBeGreaterThan(100);
    await page.evaluate(() => document.querySelector<HTMLElement>(".brand")?.click());
    await page.locator("[data-testid=files]").waitFor({ state: "attached" });
    await choose(page, [{ name: "good.wshard", bytes: good }]);
    await drawn(page, "signal/joint_pos");
    expect(errors).toEqual([]);
    console.log(`${count} invalid vectors opened`);
    await page.close();
  }, 300_000);
});
