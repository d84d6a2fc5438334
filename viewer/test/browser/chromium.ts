// A Chromium and a server of the viewer's sources for tests.

import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { type Browser, chromium, type Page } from "playwright-core";
import { PNG } from "pngjs";
import { createServer, type ViteDevServer } from "vite";

const usual = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"].map(
  (name) => `/usr/bin/${name}`,
);
const executable = process.env["SHARD_CHROMIUM"] ?? usual.find((path) => existsSync(path));

/** Whether there is a browser, or must be one. */
export const canRun = executable !== undefined || Boolean(process.env["SHARD_REQUIRE_BROWSER"]);

/** A folder for pictures that people look at; without it none are made. */
export const pictures = process.env["SHARD_VIEWER_PICTURES"];

export class Chromium {
  /** What the console said as errors. */
  complaints: string[] = [];
  private server: ViteDevServer | undefined;
  private browser: Browser | undefined;
  private page: Page | undefined;

  /** Open a page of the viewer's folder. */
  async open(path: string): Promise<Page> {
    const root = fileURLToPath(new URL("../..", import.meta.url));
    this.server = await createServer({
      root,
      configFile: `${root}vite.config.ts`,
      server: { port: 0, host: "127.0.0.1", hmr: false, watch: null, fs: { strict: false } },
      logLevel: "error",
    });
    await this.server.listen();
    this.browser = await chromium.launch({
      ...(executable ? { executablePath: executable } : {}),
      args: ["--no-sandbox"],
    });
    const page = await this.browser.newPage();
    page.on("console", (message) => {
      if (message.type() === "error") this.complaints.push(message.text());
    });
    page.on("pageerror", (error) => this.complaints.push(String(error)));
    await page.goto(`${this.server.resolvedUrls?.local[0] ?? ""}${path}`);
    this.page = page;
    return page;
  }

  async screenshot(): Promise<PNG> {
    if (this.page === undefined) throw new Error("no page is open");
    return PNG.sync.read(await this.page.screenshot());
  }

  async close(): Promise<void> {
    await this.browser?.close();
    await this.server?.close();
  }
}

/** Red, green and blue of a pixel. */
export function pixel(png: PNG, x: number, y: number): number[] {
  const at = 4 * (y * png.width + x);
  return Array.from(png.data.subarray(at, at + 3));
}
