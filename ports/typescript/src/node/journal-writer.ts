// The file of a journal while it is recorded: locked, appended to and synced (spec/journal.md, section 9).

import { spawnSync } from "node:child_process";
import { constants } from "node:fs";
import { type FileHandle, mkdir, open, stat, unlink } from "node:fs/promises";
import { dirname } from "node:path";
import { invalid, ShardError } from "../core/errors.js";
import { ioError } from "../core/source.js";

/** Programs that lock a file that they inherit as descriptor 3. The lock then belongs to the open file, which is ours. */
const lockers: readonly (readonly [string, ...string[]])[] = [
  ["flock", "-x", "-n", "3"],
  ["perl", "-MFcntl=:flock", "-e", 'open(my $file, ">&=", 3) or exit 2; exit(flock($file, LOCK_EX | LOCK_NB) ? 0 : 1)'],
];

/** Appends frames to a journal. Only one writer can have a journal open; the system releases it when the process dies. */
export class JournalFile {
  readonly path: string;
  /** Bytes in complete frames. */
  position = 0;
  readonly #file: FileHandle;
  #isOpen = true;

  private constructor(path: string, file: FileHandle) {
    this.path = path;
    this.#file = file;
  }

  /** Opens and locks a journal, which is made if it does not exist (J-4). */
  static async open(path: string): Promise<JournalFile> {
    for (;;) {
      let file: FileHandle | undefined;
      try {
        await mkdir(dirname(path), { recursive: true });
        file = await open(path, constants.O_RDWR | constants.O_CREAT);
        const found = await file.stat();
        if (!found.isFile()) throw invalid("cannot record: not a regular file", { path });
        takeLock(file.fd, path);
        const named = await stat(path).catch(() => undefined);
        if (named?.ino === found.ino && named.dev === found.dev) return new JournalFile(path, file);
        // Another writer finished, and removed the file after we had opened it.
        await file.close();
      } catch (error) {
        await file?.close();
        throw ioError("cannot record", error, path);
      }
    }
  }

  /** Bytes that an earlier recording has left in the file. */
  async oldSize(): Promise<number> {
    return (await this.#file.stat()).size;
  }

  /** Removes what an earlier recording has left. */
  async clear(): Promise<void> {
    if ((await this.oldSize()) > 0) await this.#file.truncate(0);
  }

  /** Appends complete frames. */
  async append(frames: readonly Uint8Array[]): Promise<void> {
    let at = this.position;
    for (const frame of frames) {
      for (let done = 0; done < frame.length; ) {
        const { bytesWritten } = await this.#file.write(frame, done, frame.length - done, at + done);
        done += bytesWritten;
      }
      at += frame.length;
    }
    this.position = at;
  }

  /** Waits until the disk has everything that was written. */
  async sync(): Promise<void> {
    await this.#file.datasync();
  }

  /** As `sync`, for a new journal: its name must survive a loss of power too. */
  async syncWithName(): Promise<void> {
    await this.sync();
    const folder = await open(dirname(this.path), "r");
    try {
      await folder.sync();
    } finally {
      await folder.close();
    }
  }

  /** Deletes the journal while the lock keeps others from starting a new one under its name. */
  async remove(): Promise<void> {
    const [named, own] = [await stat(this.path).catch(() => undefined), await this.#file.stat()];
    if (named?.ino === own.ino && named.dev === own.dev) await unlink(this.path);
    await this.close();
  }

  /** Releases the file. The journal stays on disk. A second call does nothing. */
  async close(): Promise<void> {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    await this.#file.close();
  }
}

/** Takes the exclusive lock of an open file. Node has no call for it. */
function takeLock(descriptor: number, path: string): void {
  for (const [program, ...given] of lockers) {
    const { status, error } = spawnSync(program, given, { stdio: ["ignore", "ignore", "ignore", descriptor] });
    if (error !== undefined && (error as NodeJS.ErrnoException).code === "ENOENT") continue;
    if (status === 0) return;
    if (status === 1) throw invalid("another writer is recording to this file", { path, rule: "J-4" });
    throw new ShardError("io_error", "cannot lock the journal", { path, found: `${program} ended with ${status}` });
  }
  const expected = lockers.map(([program]) => program).join(" or ");
  throw new ShardError("missing_extra", "recording needs a program that locks files", { path, rule: "J-4", expected });
}
