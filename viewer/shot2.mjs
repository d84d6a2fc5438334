import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

const path = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

import { existsSync } from "node:fs";

const executablePath = process.env.SHARD_CHROMIUM ?? path.find((p) => existsSync(p));
const browser = await chromium.launch({ ...(executablePath ? { executablePath } : {}), args: ["--no-sandbox"] });
for (const [w, h, scheme] of [
  [1280, 1500, "light"],
  [1280, 1500, "dark"],
  [390, 1500, "dark"],
]) {
  const page = await browser.newPage({ viewport: { width: w, height: h }, colorScheme: scheme });
  page.on("console", (m) => {
    if (m.type() === "error") console.log("console", m.text());
  });
  page.on("pageerror", (e) => console.log("pageerror", e.message));
  await page.goto(`file:///tmp/w/vdata/viewer/dist/viewer.html`);
  await page.setInputFiles("[data-testid=files]", [
    {
      name: "bands.wshard",
      mimeType: "application/octet-stream",
      buffer: readFileSync("/tmp/w/vdata-shots/bands.wshard"),
    },
  ]);
  await page.waitForSelector('[data-panel="signal/force"]');
  await page.waitForTimeout(2500);
  for (let i = 0; i < 60; i++) await page.keyboard.press("ArrowRight");
  await page.waitForTimeout(800);
  await page.screenshot({ path: `/tmp/w/vdata-shots/a-${w}-${scheme}.png` });
  await page.locator('[data-panel="action/ctrl"]').scrollIntoViewIfNeeded();
  await page.locator('[data-panel="action/ctrl"]').hover();
  for (let i = 0; i < 3; i++) await page.keyboard.press("+");
  const force = page.locator('[data-panel="signal/force"]');
  await force.getByLabel("Uncertainty").selectOption("entropy");
  await force.getByRole("button", { name: /^Table of/ }).click();
  await page.waitForTimeout(1200);
  await page.screenshot({ path: `/tmp/w/vdata-shots/c-${w}-${scheme}.png` });
  console.log(w, scheme, await page.locator("section.panel p.hidden").allTextContents());
  await page.close();
}
await browser.close();
