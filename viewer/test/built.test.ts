// The page that the Python package carries is the page that these sources build.

import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { gunzipSync } from "node:zlib";
import { expect, test } from "vitest";

const folder = fileURLToPath(new URL("..", import.meta.url));
const carried = join(folder, "../src/wshard/viewer/viewer.html.gz");

test.skipIf(!existsSync(carried))("the Python package carries at most 400 KB of it", () => {
  expect(readFileSync(carried).length).toBeLessThanOrEqual(400_000);
});

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
      // Unpacked: other versions of gzip make other bytes.
      const isSame = readFileSync(join(target, "viewer.html")).equals(gunzipSync(readFileSync(carried)));
      expect(isSame, "src/wshard/viewer/viewer.html.gz is older than its sources: run make viewer").toBe(true);
    } finally {
      rmSync(target, { recursive: true, force: true });
    }
  },
  120_000,
);
