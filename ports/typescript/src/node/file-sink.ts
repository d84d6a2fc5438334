import { randomBytes } from "node:crypto";
import { type FileHandle, open, rename, unlink } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import type { Sink } from "../core/sink.js";
import { ioError } from "../core/source.js";
import { largestCall } from "./file.js";

const pieceSize = 1024 * 1024;

/** How a file is written to disk. */
export interface FileSinkOptions {
  /** False does not wait until the file is on disk: faster, but a power failure can lose it. */
  sync?: boolean;
}

/**
 * Writes a file beside its place and renames it when it is complete. If the size of the head is not known, the data is
 * spooled to a second file and copied behind the head.
 */
export class FileSink implements Sink {
  readonly path: string;
  readonly #sync: boolean;
  #file: Temporary | undefined;
  #spool: Temporary | undefined;

  constructor(path: string, options: FileSinkOptions = {}) {
    this.path = path;
    this.#sync = options.sync ?? true;
  }

  async begin(headSize: number | undefined): Promise<void> {
    await this.#io("cannot write", async () => {
      this.#file = await Temporary.create(this.path);
      if (headSize === undefined) this.#spool = await Temporary.create(this.path);
      else this.#file.position = headSize;
    });
  }

  async append(bytes: Uint8Array): Promise<void> {
    await this.#io("cannot write", async () => (this.#spool ?? this.#file)?.append(bytes));
  }

  async finish(head: Uint8Array): Promise<void> {
    await this.#io("cannot write", async () => {
      const file = this.#file as Temporary;
      await file.flush();
      await writeAll(file.handle, head, 0);
      if (this.#spool) {
        file.position = head.length;
        await this.#spool.copyTo(file);
        await this.#spool.remove();
        this.#spool = undefined;
      }
      if (this.#sync) await file.handle.sync();
      await file.handle.close();
      await rename(file.path, this.path);
      this.#file = undefined;
      if (this.#sync) await syncFolder(dirname(this.path));
    });
  }

  async abort(): Promise<void> {
    await this.#file?.remove();
    await this.#spool?.remove();
    this.#file = this.#spool = undefined;
  }

  async #io(problem: string, run: () => Promise<unknown>): Promise<void> {
    try {
      await run();
    } catch (error) {
      throw ioError(problem, error, this.path);
    }
  }
}

/** A file with a name of its own, which small pieces reach through a buffer. */
class Temporary {
  readonly path: string;
  readonly handle: FileHandle;
  /** Where the buffer goes. */
  position = 0;
  readonly #buffer = new Uint8Array(pieceSize);
  #used = 0;

  private constructor(path: string, handle: FileHandle) {
    this.path = path;
    this.handle = handle;
  }

  static async create(beside: string): Promise<Temporary> {
    const name = `.${basename(beside).slice(0, 100)}-${randomBytes(8).toString("hex")}.partial`;
    const path = join(dirname(beside), name);
    return new Temporary(path, await open(path, "wx+"));
  }

  async append(bytes: Uint8Array): Promise<void> {
    if (this.#used + bytes.length > pieceSize) await this.flush();
    if (bytes.length > pieceSize) {
      await writeAll(this.handle, bytes, this.position);
      this.position += bytes.length;
    } else {
      this.#buffer.set(bytes, this.#used);
      this.#used += bytes.length;
    }
  }

  async flush(): Promise<void> {
    await writeAll(this.handle, this.#buffer.subarray(0, this.#used), this.position);
    this.position += this.#used;
    this.#used = 0;
  }

  async copyTo(target: Temporary): Promise<void> {
    await this.flush();
    const piece = new Uint8Array(Math.min(pieceSize, this.position));
    for (let at = 0; at < this.position; ) {
      const length = Math.min(piece.length, this.position - at);
      const { bytesRead } = await this.handle.read(piece, 0, length, at);
      if (bytesRead === 0) throw new Error("the spooled data is incomplete");
      await writeAll(target.handle, piece.subarray(0, bytesRead), target.position);
      target.position += bytesRead;
      at += bytesRead;
    }
  }

  async remove(): Promise<void> {
    await this.handle.close().catch(() => undefined); // closed already, or it failed before
    await unlink(this.path).catch(() => undefined);
  }
}

async function writeAll(file: FileHandle, bytes: Uint8Array, position: number): Promise<void> {
  for (let done = 0; done < bytes.length; ) {
    const length = Math.min(bytes.length - done, largestCall);
    const { bytesWritten } = await file.write(bytes, done, length, position + done);
    done += bytesWritten;
  }
}

async function syncFolder(path: string): Promise<void> {
  if (process.platform === "win32") return; // Windows opens no folders
  const folder = await open(path, "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}
