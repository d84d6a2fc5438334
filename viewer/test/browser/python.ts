// The Python library, for episodes that it writes and for `wshard view`.
//
// SHARD_PYTHON is an interpreter that has it; without it, the environment of the Python tests is taken.

import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";

export const python =
  process.env["SHARD_PYTHON"] ?? fileURLToPath(new URL("../../../.env/test/bin/python", import.meta.url));

/** Writes some of the episodes of make_episodes.py. */
export function makeEpisodes(folder: string, ...names: string[]): void {
  const script = fileURLToPath(new URL("make_episodes.py", import.meta.url));
  execFileSync(python, [script, folder, ...names], { stdio: "inherit" });
}
