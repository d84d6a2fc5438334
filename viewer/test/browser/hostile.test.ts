// Hostile files and texts: the page says what is wrong and lives on, and nothing of a file ever runs.

import { readdirSync, readFileSync, statSync } from "node:fs";
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

  test("a reader that hangs is ended: the page says so, and opens other files", async () => {
    const page = await open();
    await page.clock.install();
    await choose(page, [{ name: "good.wshard", bytes: await encoded(reaching(60)) }]);
    await drawn(page, "signal/joint_pos");
    await page.evaluate(() => {
      const { terminate } = Worker.prototype;
      Object.assign(globalThis, { ended: 0 });
      Worker.prototype.terminate = function () {
        terminate.call(this);
        (globalThis as unknown as { ended: number }).ended++;
      };
    });
    void page
      .workers()[0]
      ?.evaluate(() => {
        for (;;);
      })
      .catch(() => {}); // it is ended
    await page.getByRole("tab", { name: "Identity" }).click();
    await page.getByRole("button", { name: /^Compute it/ }).click();
    await page.clock.runFor(10_000); // the page asks whether the reader still works …
    await page.clock.runFor(30_000); // … and gives it this time
    await page.getByText("did not answer for 30 seconds").first().waitFor();
    expect(await page.evaluate(() => (globalThis as unknown as { ended: number }).ended)).toBe(1);
    await page.locator(".brand").click();
    await choose(page, [{ name: "other.wshard", bytes: await encoded(reaching(60, { id: "other" })) }]);
    await expect.poll(() => page.locator("h1").textContent()).toBe("other");
    await drawn(page, "signal/joint_pos");
    await page.close();
  });

  test("every invalid vector is opened: the page says what is wrong, or shows the rest, and lives on", async () => {
    const page = await open();
    const errors: string[] = [];
    page.on("pageerror", (error) => errors.push(error.message));
    const all = invalidVectors();
    expect(all.length).toBeGreaterThan(1450);
    const silent: string[] = [];
    let told = 0;
    for (let at = 0; at < all.length; at += 50) {
      const batch = all.slice(at, at + 50);
      const messages = await page.evaluate(
        openEach,
        batch.map(({ files }) => files),
      );
      for (const [number, { name, isAtOpening }] of batch.entries()) {
        if (messages[number] !== "") told++;
        else if (isAtOpening) silent.push(name);
      }
    }
    console.log(`${all.length} invalid vectors opened, ${told} with a message at once`);
    expect(silent).toEqual([]);
    await page.evaluate(() => document.querySelector<HTMLElement>(".brand")?.click());
    await page.locator("[data-testid=files]").waitFor({ state: "attached" });
    await choose(page, [{ name: "good.wshard", bytes: await encoded(reaching(60)) }]);
    await drawn(page, "signal/joint_pos");
    expect(errors).toEqual([]);
    await page.close();
  }, 300_000);
});

interface GivenFile {
  readonly path: string;
  readonly base64: string;
}

/** All invalid files that the page opens, each with those beside it. */
function invalidVectors() {
  return readdirSync(vectors)
    .filter((folder) => folder.startsWith("invalid"))
    .flatMap((folder) =>
      readdirSync(new URL(`${folder}/`, vectors))
        .filter((name) => name.endsWith(".json"))
        .map((name) => ({ folder, name })),
    )
    .flatMap(({ folder, name }) => {
      const base = new URL(`${folder}/`, vectors);
      const { file, when } = JSON.parse(readFileSync(new URL(name, base), "utf8")) as { file: string; when: string };
      const [own, inFolder] = file.split("/") as [string, string?];
      const inside = () => readdirSync(new URL(`${own}/`, base), { recursive: true, encoding: "utf8" });
      const paths = inFolder === undefined ? [own] : inside().map((one) => `${own}/${one}`);
      const files = paths
        .filter((path) => statSync(new URL(path, base)).isFile())
        .map((path): GivenFile => {
          const bytes = readFileSync(new URL(path, base));
          return { path, base64: bytes.toString("base64") };
        });
      if (folder === "invalid_sets") {
        // The page shows the packs of a set, whatever the set file says about them; alone, it is a list of entries.
        const alone = files.filter(({ path }) => path === file);
        return [files, alone].map((given) => ({
          name: `${folder}/${name}`,
          files: given,
          isAtOpening: given === alone,
        }));
      }
      // An overview is derived: where it is wrong, the page reads the channel itself.
      return [{ name: `${folder}/${name}`, files, isAtOpening: when === "open" && folder !== "invalid_overviews" }];
    });
}

/** Opens one after the other, as somebody who chooses files. Returns what the page says about each; empty: nothing. */
async function openEach(all: readonly (readonly GivenFile[])[]): Promise<string[]> {
  const wait = () => new Promise((next) => setTimeout(next, 4));
  const said: string[] = [];
  for (const files of all) {
    document.querySelector<HTMLElement>(".brand")?.click();
    const start = performance.now();
    const find = () => document.querySelector<HTMLInputElement>("[data-testid=files]");
    while (find() === null) await wait();
    const chosen = new DataTransfer();
    for (const { path, base64 } of files) {
      const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
      chosen.items.add(new File([bytes], path.replace(/^.*\//, "")));
    }
    // As of a folder that was chosen.
    for (const [number, { path }] of files.entries())
      Object.defineProperty(chosen.files[number], "webkitRelativePath", { value: path });
    const input = find() as HTMLInputElement;
    input.files = chosen.files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
    const isDone = () =>
      document.querySelector(".busy") === null &&
      !document.querySelector(".table-head [role=status]")?.textContent?.includes("…") &&
      document.querySelector(".problem, .app:is(.episode, .container, .episodes)") !== null;
    await wait();
    while (!isDone()) {
      if (performance.now() - start > 20_000) throw new Error(`${files[0]?.path} was neither opened nor refused`);
      await wait();
    }
    // The page of a file without an episode says so, and lists its entries.
    const messages = document.querySelectorAll(".problem, .panel-problem, .bad, .badge.warn, main.container");
    said.push([...messages].map((one) => one.textContent).join(" "));
  }
  return said;
}
