// The decoder of zstd against the reference implementation: real frames, and frames that were damaged. It needs Python
// rather than a browser.

import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { ShardError } from "@shard-format/core";
import { expect, test } from "vitest";
import { decodeFrames } from "../../../ports/typescript/src/core/zstd";
import { zstd } from "../../src/worker/zstd";
import { python } from "./python";

interface Case {
  readonly frames: Uint8Array;
  /** The SHA-256 of the content; null if the reference refuses the frames. */
  readonly expected: string | null;
  readonly room: number;
}

function* cases(): Generator<Case> {
  const folder = mkdtempSync(join(tmpdir(), "frames-"));
  const file = join(folder, "frames");
  execFileSync(python, [fileURLToPath(new URL("make_frames.py", import.meta.url)), file], { stdio: "inherit" });
  const bytes = readFileSync(file);
  rmSync(folder, { recursive: true });
  for (let at = 0; at < bytes.length; ) {
    const [size, length, room] = [0, 4, 8].map((from) => bytes.readInt32LE(at + from)) as [number, number, number];
    at += 12;
    const frames = Uint8Array.from(bytes.subarray(at, at + size));
    const digest = bytes.subarray(at + size, at + size + 32).toString("hex");
    yield { frames, expected: length < 0 ? null : digest, room };
    at += size + 32;
  }
}

test("what the reference decodes has the same bytes here, and what it refuses is refused", async () => {
  const counts = { same: 0, refused: 0, stricter: 0 };
  for (const { frames, expected, room } of cases()) {
    const found = await decodeFrames(zstd, frames, room, 1 << 27).catch((error: unknown) => {
      expect(error).toBeInstanceOf(ShardError);
      return null;
    });
    const digest = found && createHash("sha256").update(found).digest("hex");
    // The reference accepts some damaged frames that the specification does not allow: streams with bits that are left
    // over, and blocks larger than the window.
    if (digest === null && expected !== null) counts.stricter++;
    else {
      expect(digest).toBe(expected);
      counts[digest === null ? "refused" : "same"]++;
    }
  }
  expect(counts.same).toBeGreaterThan(650);
  expect(counts.refused).toBeGreaterThan(1000);
  expect(counts.stricter).toBeLessThan(counts.refused / 50);
});
