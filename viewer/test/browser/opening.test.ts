// Opening: from addresses, from this computer, and what is read until something can be seen.

import type { Browser, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { encoded, huge, reaching } from "./episodes";
import {
  choose,
  drawn,
  fileAddress,
  hasNoBrowser,
  inMemory,
  launch,
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
    server.files.set("long.wshard", await huge());
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

  test("a remote episode of 2 GB shows its first plot after at most 3 requests and 1 MB", async () => {
    await page.goto(`${server.origin}/viewer.html#src=${server.origin}/files/long.wshard`);
    const started = Date.now();
    const first = await page.waitForFunction(
      () =>
        [...document.querySelectorAll(".panel.over-time > p.hidden")].some((one) =>
          / from \S+ to |Return of the episode: \d/.test(one.textContent ?? ""),
        ) && Date.now(),
      undefined,
      { polling: "raf" },
    );
    const at = Number(await first.jsonValue());
    const before = server.answers.filter((answer) => answer.at <= at);
    const bytes = before.reduce((sum, answer) => sum + answer.bytes, 0);
    console.log(
      `first plot: ${before.length} requests, ${Math.round(bytes / 1000)} KB, ${at - started} ms with 30 ms a request`,
    );
    expect(before.length).toBeLessThanOrEqual(3);
    expect(bytes).toBeLessThan(1_000_000);
    await drawn(page, "signal/camera");
    console.log(server.answers.map((one) => one.bytes).join(" "));
    const camera = server.answers.reduce((sum, answer) => sum + answer.bytes, 0);
    console.log(`first picture: ${server.answers.length} requests, ${Math.round(camera / 1000)} KB`);
    expect(camera).toBeLessThan(1_000_000);
    expect(watched.errors).toEqual([]);
  });
});
