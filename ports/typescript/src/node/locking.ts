// Exclusive locks of files (flock). Node has no call for them.

import { spawn } from "node:child_process";
import { type FileHandle, open, stat } from "node:fs/promises";
import { invalid, ShardError } from "../core/errors.js";

const perl = 'open(my $file, ">&=", 3) or exit 2; exit(flock($file, $ARGV[0]) ? 0 : 1)';

/** Programs that lock a file that they inherit as descriptor 3. The lock then belongs to the open file, which is ours. */
function lockers(wait: boolean): [string, ...string[]][] {
  const exclusive = 2 + (wait ? 0 : 4); // LOCK_EX, LOCK_NB
  return [
    ["flock", "-x", ...(wait ? [] : ["-n"]), "3"],
    ["perl", "-e", perl, String(exclusive)],
  ];
}

/** Takes the lock of an open file; returns whether this process has it. The system releases it when the file is closed. */
export async function takeLock(file: FileHandle, path: string, wait = false): Promise<boolean> {
  for (const [program, ...given] of lockers(wait)) {
    const status = await run(program, given, file.fd);
    if (status === 0 || status === 1) return status === 0;
    if (status !== undefined) {
      throw new ShardError("io_error", "cannot lock the file", { path, found: `${program} ended with ${status}` });
    }
  }
  const problem = "no program that locks files was found";
  throw new ShardError("missing_extra", problem, { path, expected: "flock or perl" });
}

/** The exit code of a program; undefined if there is no such program. */
function run(program: string, given: readonly string[], descriptor: number): Promise<number | undefined> {
  return new Promise((done, failed) => {
    const child = spawn(program, given, { stdio: ["ignore", "ignore", "ignore", descriptor] });
    child.on("error", (error: NodeJS.ErrnoException) => (error.code === "ENOENT" ? done(undefined) : failed(error)));
    child.on("close", (status) => done(status ?? -1));
  });
}

/** Whether a path still leads to an open file. */
export async function isStillNamed(file: FileHandle, path: string): Promise<boolean> {
  const [named, own] = [await stat(path).catch(() => undefined), await file.stat()];
  return named?.ino === own.ino && named.dev === own.dev;
}

/**
 * Runs something while no other writer can replace a file (W-SID-7). A file that does not exist needs no lock. Where
 * nothing can lock files, as on Windows, it runs without one: nobody else holds a lock there either.
 */
export async function whileLocked<T>(path: string, work: () => Promise<T>): Promise<T> {
  for (;;) {
    const file = await open(path, "r").catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return undefined;
      throw error;
    });
    if (file === undefined) return work();
    try {
      if (!(await file.stat()).isFile()) throw invalid("not a regular file", { path });
      await takeLock(file, path, true).catch((error: unknown) => {
        if (!(error instanceof ShardError) || error.code !== "missing_extra") throw error;
      });
      // Another writer may have replaced the file while we waited.
      if (await isStillNamed(file, path)) return await work();
    } finally {
      await file.close();
    }
  }
}
