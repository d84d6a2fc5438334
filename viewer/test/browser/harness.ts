// A browser, the built page, and a server of files that counts and delays.
//
// SHARD_CHROMIUM is the path of the browser; without it, the usual places are looked at. Where there is none, these tests
// are skipped, unless SHARD_REQUIRE_BROWSER is set.

import { existsSync, readFileSync } from "node:fs";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";
import { type Browser, chromium, type Page } from "playwright-core";

const usual = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"].map(
  (name) => `/usr/bin/${name}`,
);
const executable = process.env["SHARD_CHROMIUM"] ?? usual.find((path) => existsSync(path));
const mustRun = Boolean(process.env["SHARD_REQUIRE_BROWSER"]);

/** Whether these tests are skipped. */
export const hasNoBrowser = executable === undefined && !mustRun;

/** The built page, which the set-up of these tests has made. */
export const viewerFile = new URL("../../dist/viewer.html", import.meta.url);

/** A name of the server of these tests that Chromium does not take for this computer, so pages of it have no cryptography. */
export const plainHost = "plain.example";

export function launch(): Promise<Browser> {
  return chromium.launch({
    ...(executable === undefined ? {} : { executablePath: executable }),
    args: [
      "--no-sandbox",
      "--enable-precise-memory-info",
      "--js-flags=--expose-gc",
      `--host-resolver-rules=MAP ${plainHost} 127.0.0.1`,
    ],
  });
}

/** What happened on a page that should not have. */
export interface Watched {
  readonly errors: string[];
  /** Requests of the page itself, without those for blobs and data. */
  readonly requests: string[];
}

export function watch(page: Page): Watched {
  const watched: Watched = { errors: [], requests: [] };
  page.setDefaultTimeout(15_000);
  page.on("pageerror", (error) => watched.errors.push(error.message));
  page.on("console", (message) => {
    if (message.type() === "error") watched.errors.push(message.text());
  });
  page.on("request", (request) => {
    if (!/^(blob|data|file):/.test(request.url())) watched.requests.push(request.url());
  });
  return watched;
}

/** A file that is served: in memory, or made up where it is read. */
export interface Served {
  readonly size: number;
  read(offset: number, length: number): Uint8Array;
}

export function inMemory(bytes: Uint8Array): Served {
  return { size: bytes.length, read: (offset, length) => bytes.subarray(offset, offset + length) };
}

export interface Answered {
  readonly path: string;
  readonly bytes: number;
  /** When the answer was sent, in milliseconds since 1970. */
  readonly at: number;
}

export interface Server {
  /** Such as http://127.0.0.1:1234. */
  readonly origin: string;
  readonly files: Map<string, Served>;
  readonly answers: Answered[];
  /** How many requests for one file have waited for their answers at the same time. */
  mostAtOnce: number;
  /** What the server does wrong: 401, no ranges, hidden headers, no CORS. */
  fault: "auth" | "ranges" | "expose" | "cors" | null;
  close(): void;
}

/** Serves the page at `/viewer.html` and files below `/files/`, each answer after `delay` milliseconds. */
export async function serve(delay = 0): Promise<Server> {
  const files = new Map<string, Served>();
  const answers: Answered[] = [];
  const waiting = new Map<string, number>();
  const html = readFileSync(viewerFile);
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url ?? "/", "http://127.0.0.1");
    if (pathname === "/viewer.html") {
      response.writeHead(200, { "content-type": "text/html; charset=utf-8" }).end(html);
      return;
    }
    const now = (waiting.get(pathname) ?? 0) + 1;
    waiting.set(pathname, now);
    made.mostAtOnce = Math.max(made.mostAtOnce, now);
    setTimeout(() => {
      waiting.set(pathname, (waiting.get(pathname) ?? 0) - 1);
      answer(pathname, request.headers.range ?? "", response);
    }, delay);
  });
  const answer = (pathname: string, range: string, response: ServerResponse) => {
    const file = files.get(decodeURIComponent(pathname.replace(/^\/files\//, "")));
    if (made.fault !== "cors") response.setHeader("access-control-allow-origin", "*");
    if (made.fault !== "expose") response.setHeader("access-control-expose-headers", "content-range, etag");
    if (file === undefined || made.fault === "auth") {
      response.writeHead(file === undefined ? 404 : 401).end();
      return;
    }
    const match = /^bytes=(\d+)-(\d+)$/.exec(range);
    if (!match || made.fault === "ranges") {
      response.writeHead(200, { "content-length": file.size });
      response.end();
      return;
    }
    const first = Number(match[1]);
    const end = Math.min(Number(match[2]) + 1, file.size);
    const bytes = file.read(first, end - first);
    response.writeHead(206, {
      "content-range": `bytes ${first}-${end - 1}/${file.size}`,
      "content-length": bytes.length,
      "cache-control": "no-store",
      etag: '"1"',
    });
    response.end(bytes);
    answers.push({ path: pathname, bytes: bytes.length, at: Date.now() });
  };
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const made: Server = {
    origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    files,
    answers,
    mostAtOnce: 0,
    fault: null,
    close() {
      server.closeAllConnections();
      server.close();
    },
  };
  return made;
}

/** The address of the built page on this computer. */
export function fileAddress(fragment = ""): string {
  return `file://${fileURLToPath(viewerFile)}${fragment}`;
}

/** Opens files of this computer, as a user who chooses them. */
export async function choose(page: Page, files: readonly { name: string; bytes: Uint8Array }[]): Promise<void> {
  await page.setInputFiles(
    "[data-testid=files]",
    files.map(({ name, bytes }) => ({ name, mimeType: "application/octet-stream", buffer: Buffer.from(bytes) })),
  );
}

/** Waits until the panel of a channel has drawn something, which it says in words. */
export async function drawn(page: Page, key: string): Promise<string> {
  // What is out of sight is not drawn.
  await page.locator(`[data-panel="${key}"]`).scrollIntoViewIfNeeded();
  const summary = page.locator(`[data-panel="${key}"] > p.hidden`);
  await page.waitForFunction(
    (name) => (document.querySelector(`[data-panel="${name}"] > p.hidden`)?.textContent ?? "") !== "",
    key,
    { polling: "raf" },
  );
  return (await summary.textContent()) ?? "";
}

interface HeapUsage {
  readonly usedSize: number;
  /** Array buffers. */
  readonly backingStorageSize?: number;
}

/** What a page and its workers hold when garbage is gone: objects and arrays, in bytes. */
export async function heapOf(page: Page): Promise<number> {
  const session = await page.context().newCDPSession(page);
  const workers: string[] = [];
  session.on("Target.attachedToTarget", ({ sessionId }) => workers.push(sessionId));
  await session.send("Target.setAutoAttach", { autoAttach: true, waitForDebuggerOnStart: false, flatten: false });
  const waiting = new Map<string, (usage: HeapUsage) => void>();
  session.on("Target.receivedMessageFromTarget", ({ sessionId, message }) => {
    const { id, result } = JSON.parse(message) as { id: number; result: HeapUsage };
    if (id === 2) waiting.get(sessionId)?.(result);
  });
  await session.send("HeapProfiler.collectGarbage");
  const usages: HeapUsage[] = [(await session.send("Runtime.getHeapUsage")) as HeapUsage];
  for (const sessionId of workers) {
    const answer = new Promise<HeapUsage>((done) => waiting.set(sessionId, done));
    for (const [at, method] of ["HeapProfiler.collectGarbage", "Runtime.getHeapUsage"].entries()) {
      const message = JSON.stringify({ id: at + 1, method });
      await session.send("Target.sendMessageToTarget", { sessionId, message });
    }
    usages.push(await answer);
  }
  await session.detach();
  if (workers.length === 0) throw new Error("the page has no worker");
  return usages.reduce((sum, { usedSize, backingStorageSize = 0 }) => sum + usedSize + backingStorageSize, 0);
}
