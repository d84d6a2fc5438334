// The viewer in a real JupyterLab with a real kernel: `make test-notebook`, which names the program `jupyter` in
// SHARD_JUPYTER.

import { type ChildProcess, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import type { Browser, FrameLocator, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { hasNoBrowser, launch, viewerFile } from "./harness";

const jupyter = process.env["SHARD_JUPYTER"];

const episode = `
from pathlib import Path

import numpy as np

import wshard.viewer._page as page
from wshard import Episode, load_wshard, save_wshard

page.files = lambda _: Path(${JSON.stringify(dirname(fileURLToPath(viewerFile)))})  # the page that was just built
ep = Episode("lift_cup", "Reach-v1")
ep.timebase.tick_hz = 30
ep.observations["joint_pos"] = np.sin(np.arange(300, dtype="f4") / 20).reshape(300, 1)
save_wshard(ep, "ep.wshard")
load_wshard("ep.wshard").view()
`;

const chunks = `
from wshard import WShardStreamWriter
from wshard.streaming import StreamOptions
from wshard.viewer import widget

channels = [{"id": "state", "dtype": "f32", "shape": [2]}]
options = StreamOptions(max_steps_per_file=50)
with WShardStreamWriter("rolled/ep.wshard", "rolled", channels, options=options) as writer:
    writer.begin_episode("Reach-v1")
    for step in range(200):
        writer.write_timestep({"state": [step, -step]}, reward=1.0)
    writer.end_episode()
widget("rolled")
`;

function notebook(...sources: string[]): string {
  const cells = sources.map((source, at) => ({
    cell_type: "code",
    id: `cell-${at}`,
    metadata: {},
    execution_count: null,
    outputs: [],
    source: source.trim(),
  }));
  const kernelspec = { name: "python3", display_name: "Python 3", language: "python" };
  return JSON.stringify({ nbformat: 4, nbformat_minor: 5, metadata: { kernelspec }, cells });
}

describe.skipIf(hasNoBrowser || jupyter === undefined)("in JupyterLab", () => {
  const folder = mkdtempSync(join(tmpdir(), "viewer-"));
  let lab: ChildProcess;
  let browser: Browser;
  let page: Page;

  beforeAll(async () => {
    const settings = join(folder, "settings");
    const set = (name: string, values: object) => {
      const file = join(settings, "@jupyterlab", `${name}.jupyterlab-settings`);
      mkdirSync(dirname(file), { recursive: true });
      writeFileSync(file, JSON.stringify(values));
    };
    set("apputils-extension/themes", { theme: "JupyterLab Dark" });
    set("apputils-extension/notification", { fetchNews: "false" });
    mkdirSync(join(folder, "work"));
    writeFileSync(join(folder, "work/n.ipynb"), notebook(episode, chunks));
    const options = [
      "--no-browser",
      "--allow-root",
      "--ip=127.0.0.1",
      "--port=0",
      "--IdentityProvider.token=token",
      "--LabApp.news_url=None",
      "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
      "--LabApp.extension_manager=readonly",
      `--ServerApp.root_dir=${join(folder, "work")}`,
    ];
    lab = spawn(jupyter as string, ["lab", ...options], {
      env: { ...process.env, HOME: folder, JUPYTERLAB_SETTINGS_DIR: settings },
      stdio: ["ignore", "ignore", "pipe"],
    });
    let address = "";
    const said: string[] = [];
    for await (const line of createInterface(lab.stderr as NodeJS.ReadableStream)) {
      said.push(line);
      address = /http:\/\/127\.0\.0\.1:\d+\//.exec(line)?.[0] ?? "";
      if (address !== "") break;
    }
    if (address === "") throw new Error(said.join("\n"));
    lab.stderr?.resume();
    browser = await launch();
    // The theme of the notebook counts, not that of the machine.
    page = await browser.newPage({ viewport: { width: 1280, height: 1900 }, colorScheme: null });
    await page.goto(`${address}lab/tree/n.ipynb?token=token`);
    await page.getByText("Python 3 (ipykernel) | Idle").waitFor(); // before that, it would ask for a kernel
    await page.getByText("Run", { exact: true }).first().click();
    await page.getByText("Run All Cells", { exact: true }).first().click();
  }, 120_000);

  afterAll(async () => {
    await browser?.close();
    lab?.kill();
    if (lab?.exitCode === null) await new Promise((done) => lab.once("exit", done));
    rmSync(folder, { recursive: true, force: true });
  });

  const cell = (at: number): FrameLocator => page.frameLocator("iframe[title='Episode viewer']").nth(at);

  test("a cell shows an episode in the theme of the notebook, and follows the cursor", async () => {
    const cursor = cell(0).locator(".time-cursor");
    await cursor.focus();
    for (let tens = 0; tens < 3; tens++) await page.keyboard.press("Shift+ArrowRight");
    await expect.poll(() => cursor.getAttribute("aria-valuenow")).toBe("30");
    const value = cell(0).locator('[data-panel="signal/joint_pos"] .values .value');
    await expect.poll(() => value.first().textContent()).toBe("0.99749"); // sin(1.5)
    expect(await cursor.evaluate(() => matchMedia("(prefers-color-scheme: dark)").matches)).toBe(true);
  });

  test("another cell shows an episode in chunks, which are checked without the cryptography of the browser", async () => {
    await cell(1).getByText("4 chunks").waitFor();
    await cell(1).locator('[data-panel="signal/state"] canvas').first().waitFor();
    expect(await cell(1).locator(".panel-problem").count()).toBe(0);
  });
});
