// The page that the Python package carries is the page that these sources build.

import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { inflateRawSync } from "node:zlib";
import { expect, test } from "vitest";

const folder = fileURLToPath(new URL("..", import.meta.url));
const carried = join(folder, "../src/wshard/viewer/viewer.html");

/** The text of a page with its worker unpacked: what zlib makes of the same text depends on the version of Node. */
function unpacked(path: string): string {
  const page = readFileSync(path, "utf8").replaceAll(/'sha256-[A-Za-z0-9+/=]+'/g, "'sha256'");
  const packed = /(["'`])([A-Za-z0-9+/]{10000,}={0,2})\1/.exec(page);
  expect(packed, "the worker is in the page").not.toBeNull();
  const [literal, , code] = packed as unknown as [string, string, string];
  return page.replace(literal, () => inflateRawSync(Buffer.from(code, "base64")).toString());
}

test.skipIf(!existsSync(carried))(
  "the page of the Python package is what the sources build: make viewer",
  () => {
    const target = mkdtempSync(join(tmpdir(), "viewer-"));
    try {
      const vite = join(folder, "node_modules/vite/bin/vite.js");
      // In a process of its own: the environment of tests builds another page.
      execFileSync(process.execPath, [vite, "build", "--outDir", target, "--logLevel", "error"], {
        cwd: folder,
        env: { ...process.env, NODE_ENV: "production", VITEST: "" },
        stdio: ["ignore", "ignore", "pipe"],
      });
      const isSame = unpacked(join(target, "viewer.html")) === unpacked(carried);
      expect(isSame, "src/wshard/viewer/viewer.html is older than its sources: run make viewer").toBe(true);
    } finally {
      rmSync(target, { recursive: true, force: true });
    }
  },
  120_000,
);
