// The built page behind `wshard view`, in a file for sharing and in a notebook, in Chromium: it works, and pages of
// others get nothing.

import { type ChildProcessWithoutNullStreams, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath, pathToFileURL } from "node:url";
import { type Browser, chromium, type Page } from "playwright-core";
import { build } from "vite";
import { afterAll, beforeAll, describe, expect, test } from "vitest";

const usual = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"].map(
  (name) => `/usr/bin/${name}`,
);
const executable = process.env["SHARD_CHROMIUM"] ?? usual.find((path) => existsSync(path));
const root = fileURLToPath(new URL("../../..", import.meta.url));
const python = join(root, ".env/test/bin/python");
const script = fileURLToPath(new URL("served/serve.py", import.meta.url));
const mustRun = Boolean(process.env["SHARD_REQUIRE_BROWSER"]);

describe.skipIf(!mustRun && (executable === undefined || !existsSync(python)))("the served page in Chromium", () => {
  const folder = mkdtempSync(join(tmpdir(), "viewer-"));
  const runs = join(folder, "runs");
  const started: ChildProcessWithoutNullStreams[] = [];
  let browser: Browser;
  let complaints: string[] = [];

  beforeAll(async () => {
    const viewer = join(root, "viewer/");
    await build({ root: viewer, configFile: `${viewer}vite.config.ts`, logLevel: "error", build: { outDir: folder } });
    run("make", runs, "9");
    run("beside", join(runs, "ep_0.wshard"), join(folder, "beside"));
    run("pack", runs, join(folder, "packed"));
    browser = await chromium.launch({
      ...(executable ? { executablePath: executable } : {}),
      args: ["--no-sandbox", "--host-resolver-rules=MAP evil.example 127.0.0.1"],
    });
  }, 120_000);

  afterAll(async () => {
    await browser?.close();
    for (const process of started) process.kill();
    rmSync(folder, { recursive: true, force: true });
  });

  function run(...args: string[]): void {
    const { status, stderr } = spawnSync(python, [script, folder, ...args], { encoding: "utf8" });
    if (status !== 0) throw new Error(stderr);
  }

  /** A program and its lines. */
  function start(args: string[], environment: Record<string, string> = {}) {
    const program = spawn(python, [script, folder, ...args], { env: { ...process.env, ...environment } });
    started.push(program);
    let complaint = "";
    program.stderr.on("data", (text) => {
      complaint += text;
    });
    const lines = createInterface(program.stdout)[Symbol.asyncIterator]();
    const line = async (): Promise<string> => {
      const { done, value } = await lines.next();
      if (done) throw new Error(`serve.py ${args[0]} has ended: ${complaint}`);
      return value;
    };
    return { process: program, line };
  }

  /** The address that `wshard view` prints. */
  async function serve(...args: string[]): Promise<string> {
    const { line } = start(["view", ...args]);
    let text = await line();
    while (!text.startsWith("http:")) text = await line();
    return text;
  }

  async function newPage(): Promise<Page> {
    const page = await browser.newPage();
    complaints = [];
    page.on("console", (message) => {
      if (message.type() === "error") complaints.push(message.text());
    });
    page.on("pageerror", (error) => complaints.push(String(error)));
    return page;
  }

  test("an episode opens, and the token leaves the address", async () => {
    const page = await newPage();
    const address = await serve(join(runs, "ep_1.wshard"));
    await page.goto(address);
    await page.getByText("joint_pos").first().waitFor();
    await page.getByText("ep_1<b>").first().waitFor();
    const token = address.split("token=")[1] as string;
    expect(token).toHaveLength(43);
    expect(page.url()).not.toContain(token);
    expect(await page.title()).not.toBe("owned");
    expect(complaints).toEqual([]);
    await page.close();
  });

  test("the browser is started with a page of this user that leads to the viewer, not with the token", async () => {
    // This "browser" prints its argument.
    const { line } = start(["view-in-browser", join(runs, "ep_1.wshard")], { BROWSER: "echo %s" });
    let argument = await line();
    while (!argument.startsWith("file:")) argument = await line();
    const page = await newPage();
    await page.goto(argument);
    await page.getByText("joint_pos").first().waitFor();
    expect(page.url()).toMatch(/^http:/);
    expect(complaints).toEqual([]);
    await page.close();
  });

  test("a folder is a table", async () => {
    const page = await newPage();
    await page.goto(await serve(runs));
    await page.getByText("ep_2<b>").waitFor();
    await page.getByText("runs/").waitFor();
    await page.getByText("9 episodes").waitFor();
    await page.waitForFunction(() => document.querySelectorAll("svg.spark").length === 9);
    expect(complaints).toEqual([]);
    started.at(-1)?.kill();
    await once(started.at(-1) as ChildProcessWithoutNullStreams, "exit");
    await page.getByText("ep_1<b>").click();
    await page.getByText("“wshard view” does not answer.").waitFor();
    await page.close();
  });

  test("the address of a server that was started again can be pasted into the page, and the token leaves it", async () => {
    const address = await serve(runs);
    const { port } = new URL(address);
    const page = await newPage();
    await page.goto(address);
    await page.getByText("9 episodes").waitFor();
    const before = started.at(-1) as ChildProcessWithoutNullStreams;
    before.kill();
    await once(before, "exit");
    const catalogue = join(folder, "runs", "chosen.parquet");
    run("catalogue", catalogue, "ep_3.wshard", "ep_5.wshard");
    const again = await serve(catalogue, "--port", port);
    await page.evaluate((to) => {
      location.hash = to;
    }, new URL(again).hash);
    // It shows the episodes that a catalogue names now.
    await page.getByText("2 episodes").waitFor();
    expect(page.url()).not.toContain("token");
    await page.getByText("ep_5<b>").click();
    await page.getByText("joint_pos").first().waitFor();
    await page.goBack();
    await page.getByText("2 episodes").waitFor();
    await page.close();
  });

  test("the episodes of a pack have rows before any is read, and what is not shown is named", async () => {
    const page = await newPage();
    const asked: string[] = [];
    page.on("request", (request) => asked.push(new URL(request.url()).pathname));
    await page.route("**/f/*", async (route) => {
      await read;
      await route.continue();
    });
    let start = () => {};
    const read = new Promise<void>((resolve) => {
      start = resolve;
    });
    await page.goto(await serve(join(folder, "packed")));
    await page.getByText("ep_2<b>").waitFor();
    expect(await page.locator("tbody tr").first().textContent()).toContain("1,000");
    await page.getByText("1 file is not shown").click();
    await page.getByText("a link leads out of the folder").waitFor();
    start();
    await page.getByText("ep_1<b>").click();
    await page.getByText("joint_pos").first().waitFor();
    expect(new Set(asked.filter((path) => path.startsWith("/f/"))).size).toBe(1);
    expect(complaints).toEqual([]);
    await page.close();
  });

  test("a page of another site reads nothing, even with the token", async () => {
    const address = await serve(runs);
    const base = address.replace(/#.*/, "");
    const site: Server = createServer((_, answer) => {
      answer.setHeader("content-type", "text/html");
      answer.end("<title>another site</title>");
    });
    await new Promise<void>((resolve) => site.listen(0, "127.0.0.1", resolve));
    const page = await browser.newPage();
    const statuses: number[] = [];
    page.on("response", (response) => {
      if (response.url().startsWith(base)) statuses.push(response.status());
    });
    await page.goto(`http://evil.example:${(site.address() as AddressInfo).port}/`);
    const authorization = `Bearer ${address.split("token=")[1]}`;
    for (const init of [{ headers: { authorization } }, {}, { mode: "no-cors" as const }]) {
      const attempt = ({ url, init }: { url: string; init: RequestInit }) =>
        fetch(url, init).then(
          (answer) => answer.text(),
          () => "blocked",
        );
      for (const path of ["", "files.json", "f/0"]) {
        expect(await page.evaluate(attempt, { url: base + path, init })).toBe("blocked");
      }
    }
    const framed = await page.evaluate(async (url) => {
      const frame = document.createElement("iframe");
      frame.src = url;
      const loaded = new Promise((resolve) => {
        frame.onload = resolve;
      });
      document.body.append(frame);
      await loaded;
      return frame.contentDocument === null; // of another origin: the error page of the browser
    }, base);
    expect(framed).toBe(true);
    expect(new Set(statuses)).not.toContain(200);
    await page.close();
    site.close();
  });

  test("a link on another site opens the page; loaded again without its token, it says what to do", async () => {
    const address = await serve(join(runs, "ep_1.wshard"));
    const site: Server = createServer((_, answer) => {
      answer.setHeader("content-type", "text/html");
      answer.end(`<a href="${address}">the address in a terminal</a>`);
    });
    await new Promise<void>((resolve) => site.listen(0, "127.0.0.1", resolve));
    const page = await browser.newPage();
    await page.goto(`http://evil.example:${(site.address() as AddressInfo).port}/`);
    await page.getByText("the address in a terminal").click();
    await page.getByText("joint_pos").first().waitFor();
    await page.reload();
    await page.getByText("Open the whole address that").waitFor();
    await page.close();
    site.close();
  });

  test("a name that leads here is refused", async () => {
    const { port } = new URL(await serve(runs));
    const page = await browser.newPage();
    const answer = await page.goto(`http://evil.example:${port}/`);
    expect(answer?.status()).toBe(421);
    await page.close();
  });

  test("a recording is followed until it is an episode", async () => {
    const path = join(folder, "live", "ep.wshard");
    const recorder = start(["record", path]);
    recorder.process.stdin.write("\n");
    await recorder.line();
    run("make", join(folder, "live"), "2");
    const table = await newPage();
    await table.goto(await serve(join(folder, "live")));
    await table.getByText("3 episodes").waitFor();
    expect(await table.locator("tbody .badge").textContent()).toBe("recording");
    const page = await newPage();
    await page.goto(await serve(`${path}.partial`));
    await page.getByText("100 steps").waitFor();
    recorder.process.stdin.write("\n");
    await recorder.line();
    await page.getByText("200 steps").waitFor();
    const opened = page.waitForResponse((answer) => answer.url().endsWith("/f/1") && answer.status() === 206);
    recorder.process.stdin.end();
    await opened;
    await page.getByText("200 steps").waitFor();
    await table.locator("tbody tr").filter({ hasText: "ep.wshard" }).filter({ hasText: "200" }).waitFor();
    expect(await table.locator("tbody .badge").count()).toBe(0);
    await table.getByText("3 episodes").waitFor();
    await table.close();
    await page.close();
  });

  test("a recording in several files is followed until it is an episode in chunks", async () => {
    const path = join(folder, "rolled", "ep.wshard");
    const recorder = start(["record", path, "150"]);
    recorder.process.stdin.write("\n");
    await recorder.line();
    const page = await newPage();
    await page.goto(await serve(`${path}.partial`));
    await page.getByText("100 steps").waitFor();
    for (let flush = 0; flush < 4; flush++) {
      recorder.process.stdin.write("\n");
      await recorder.line();
    }
    await page.getByText(/ chunks$/).waitFor();
    expect(await page.getByText("not finished").count()).toBe(1);
    recorder.process.stdin.end();
    await page.getByText("500 steps").waitFor();
    await page.getByText("4 chunks").waitFor();
    expect(await page.getByText("not finished").count()).toBe(0);
    await page.close();
  });

  test("a folder in which one recording follows the other has a row for each, however many files it has", async () => {
    const runs = join(folder, "runs of a robot");
    run("make", runs, "1");
    const page = await newPage();
    await page.goto(await serve(runs));
    // Nothing is recorded yet, and one episode is opened at once.
    await page.getByText("joint_pos").first().waitFor();
    const first = start(["record", join(runs, "ep_1.wshard"), "150"]);
    const flush = async (recorder: typeof first) => {
      recorder.process.stdin.write("\n");
      await recorder.line();
    };
    await flush(first);
    const table = await newPage();
    await table.goto(await serve(runs));
    const row = (name: string) => table.locator("tbody tr").filter({ hasText: name });
    await table.getByText("2 episodes").waitFor();
    expect(await row("ep_1").locator(".badge").textContent()).toBe("recording");
    for (let times = 0; times < 4; times++) await flush(first);
    await row("ep_1_manifest").getByText("recording").waitFor();
    await table.getByText("2 episodes").waitFor();
    await row("ep_1_manifest").click();
    await table.getByText("3 chunks").waitFor();
    expect(await table.getByText("not finished").count()).toBe(1);
    for (let times = 0; times < 2; times++) await flush(first);
    await table.getByText("4 chunks").waitFor();
    first.process.stdin.end();
    await table.getByText("700 steps").waitFor();
    await table.getByText("not finished").waitFor({ state: "detached" });
    await table.locator(".crumb").first().click();
    const second = start(["record", join(runs, "ep_2.wshard")]);
    await flush(second);
    await row("ep_2").getByText("recording").waitFor();
    expect(await row("ep_1_manifest").locator(".badge").count()).toBe(0);
    expect(await row("ep_1_manifest").textContent()).toContain("700");
    await table.getByText("3 episodes").waitFor();
    second.process.stdin.end();
    await row("ep_2").filter({ hasText: "100" }).waitFor();
    expect(await table.locator("tbody .badge").count()).toBe(0);
    await page.locator(".crumb:enabled").first().click();
    await page.getByText("3 episodes").waitFor();
    expect(complaints).toEqual([]);
    await table.close();
    await page.close();
  });

  test("a recording whose recorder was killed says so and how to save it, and then becomes its episode", async () => {
    const path = join(folder, "killed", "it's.wshard");
    const recorder = start(["record", path]);
    recorder.process.stdin.write("\n");
    await recorder.line();
    run("make", join(folder, "killed"), "1");
    const table = await newPage();
    await table.goto(await serve(join(folder, "killed")));
    const row = table.locator("tbody tr").filter({ hasText: "it's" });
    await row.getByText("recording").waitFor();
    const page = await newPage();
    await page.goto(await serve(`${path}.partial`));
    await page.getByText("100 steps").waitFor();
    await page.getByText("not finished").waitFor();
    recorder.process.kill("SIGKILL");
    await row.getByText("not finished").waitFor();
    await row.getByText("wshard recover 'it'\\''s.wshard.partial'").waitFor();
    await page.locator("header .badge", { hasText: "not finished: recorder gone" }).waitFor();
    await page.getByRole("tab", { name: "Metadata" }).click();
    await page.getByText("Its recorder is gone. Save what it recorded").waitFor();
    run("recover", path);
    await row.locator(".badge").waitFor({ state: "detached" });
    await row.filter({ hasText: "100" }).waitFor();
    await table.getByText("2 episodes").waitFor();
    expect(complaints).toEqual([]);
    await table.close();
    await page.close();
  });

  test("a folder that is opened from a disk shows all episodes, with the predictions beside them that belong to them", async () => {
    const page = await newPage();
    await page.goto(String(pathToFileURL(join(folder, "viewer.html"))));
    await page.setInputFiles("[data-testid=folder]", runs);
    await page.getByText("9 episodes").waitFor();
    expect(await page.locator("tbody tr").filter({ hasText: "1,000" }).count()).toBe(9);
    for (const name of ["a", "b"]) {
      await page.reload();
      await page.setInputFiles("[data-testid=folder]", join(folder, "beside", name));
      await page.getByText("joint_pos").first().waitFor();
      expect((await page.getByText("policy").count()) > 0).toBe(name === "a");
      const note = page.getByRole("button", { name: "1 part was left out" });
      expect(await note.count()).toBe(name === "a" ? 0 : 1);
      if (name === "a") continue;
      await note.click();
      await page.getByText("an episode with other content").waitFor();
    }
    expect(complaints).toEqual([]);
    await page.close();
  });

  test("a file for sharing opens from a disk without a request", async () => {
    const file = join(folder, "ep.html");
    run("html", join(runs, "ep_0.wshard"), file);
    const page = await newPage();
    const requests: string[] = [];
    page.on("request", (request) => {
      if (!/^(file|blob):/.test(request.url())) requests.push(request.url());
    });
    await page.goto(String(pathToFileURL(file)));
    await page.getByText("joint_pos").first().waitFor();
    await page.getByText("ep_0<b>").first().waitFor();
    expect(await page.title()).not.toBe("owned");
    expect(requests).toEqual([]);
    expect(complaints).toEqual([]);
    await page.close();
  });

  test("in a notebook, two cells fetch the page once and read through the kernel", async () => {
    // Chunks are checked with SHA-256, which the browser does not have there.
    const recorded = join(folder, "cell", "ep.wshard");
    const recorder = start(["record", recorded, "50"]);
    recorder.process.stdin.end("\n\n");
    await once(recorder.process, "close");
    const kernel = start(["kernel", join(folder, "cell")]);
    await kernel.line();
    const asked: string[] = [];
    let last = Promise.resolve();
    const ask = (question: { path: string }) => {
      asked.push(question.path);
      // One after the other, as messages come to a kernel.
      const answer = last.then(async () => {
        kernel.process.stdin.write(`${JSON.stringify(question)}\n`);
        return JSON.parse(await kernel.line()) as { answer: object; bytes: string | null };
      });
      last = answer.then(() => {});
      return answer;
    };
    const widget = readFileSync(join(root, "src/wshard/viewer/widget.js"), "utf8");
    const page = await newPage();
    await page.exposeFunction("ask", ask);
    await page.goto("about:blank");
    // As text: Vitest would rewrite an import.
    await page.addScriptTag({
      type: "module",
      content: `const url = URL.createObjectURL(new Blob([${JSON.stringify(widget)}], { type: "text/javascript" }));
        window.widget = (await import(url)).default;`,
    });
    await page.waitForFunction(() => "widget" in window);
    await page.evaluate(() => {
      const listeners = new Set<(answer: object, buffers: DataView[]) => void>();
      const model = {
        get: (name: string) => (name === "height" ? 300 : "version"),
        on: (event: string, listener: never) => event === "msg:custom" && listeners.add(listener),
        off: (_: string, listener: never) => listeners.delete(listener),
        send: async (question: { id: string }) => {
          const { answer, bytes } = await (window as never as { ask: (q: object) => Promise<never> }).ask(question);
          const buffers = bytes === null ? [] : [Uint8Array.from(atob(bytes), (one: string) => one.charCodeAt(0))];
          const views = buffers.map(({ buffer }) => new DataView(buffer));
          for (const listener of listeners) listener({ ...(answer as object), id: question.id }, views);
        },
      };
      const { widget } = window as never as { widget: { render(given: object): void } };
      for (let cell = 0; cell < 2; cell++) widget.render({ model, el: document.body });
    });
    for (const cell of [0, 1]) {
      const frame = page.frameLocator("iframe").nth(cell);
      await frame.getByText("4 chunks").waitFor();
      await frame.locator('[data-panel="reward"] canvas').first().waitFor();
    }
    expect(asked.filter((path) => path === "/")).toHaveLength(1);
    expect(complaints).toEqual([]);
    await page.close();
  });
});
