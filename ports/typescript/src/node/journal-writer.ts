// The file of a journal while it is recorded: locked, appended to and synced (spec/journal.md, section 9).

import { constants } from "node:fs";
import { type FileHandle, mkdir, open, unlink } from "node:fs/promises";
import { dirname } from "node:path";
import { invalid } from "../core/errors.js";
import { ioError } from "../core/source.js";
import { isStillNamed, takeLock } from "./locking.js";

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
        if (!(await file.stat()).isFile()) throw invalid("cannot record: not a regular file", { path });
        if (!(await takeLock(file, path))) {
          throw invalid("another writer is recording to this file", { path, rule: "J-4" });
        }
        if (await isStillNamed(file, path)) return new JournalFile(path, file);
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
    if (await isStillNamed(this.#file, this.path)) await unlink(this.path);
    await this.close();
  }

  /** Releases the file. The journal stays on disk. A second call does nothing. */
  async close(): Promise<void> {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    await this.#file.close();
  }
}
