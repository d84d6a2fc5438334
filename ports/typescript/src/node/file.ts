import { constants } from "node:fs";
import { type FileHandle, open, realpath } from "node:fs/promises";
import { dirname, isAbsolute, relative, resolve, sep } from "node:path";
import { ShardError } from "../core/errors.js";
import { checkLength, firstRead, ioError, type ReadOptions, type Source, type SourceStats } from "../core/source.js";

/** Node reads and writes less than 2 GiB in one call. */
export const largestCall = 2 ** 30;

/** A file on disk. It is opened when it is first read. */
export class FileSource implements Source {
  readonly path: string;
  readonly stats: SourceStats = { requests: 0, bytes: 0 };
  #file: Promise<FileHandle> | undefined;

  constructor(path: string) {
    this.path = path;
  }

  #open(): Promise<FileHandle> {
    // Without O_NONBLOCK, opening a named pipe would wait for a writer.
    this.#file ??= open(this.path, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0));
    return this.#file;
  }

  async start(at = 0): Promise<{ size: number; head: Uint8Array }> {
    try {
      const status = await (await this.#open()).stat();
      if (!status.isFile()) throw new ShardError("invalid_argument", "not a regular file", { path: this.path });
      return { size: status.size, head: await this.read(at, Math.max(0, Math.min(status.size - at, firstRead))) };
    } catch (error) {
      throw ioError("cannot open", error, this.path);
    }
  }

  async read(offset: number, length: number, { signal }: ReadOptions = {}): Promise<Uint8Array> {
    if (length === 0) return new Uint8Array(0);
    signal?.throwIfAborted();
    this.stats.requests++;
    let done = 0;
    try {
      const file = await this.#open();
      const bytes = new Uint8Array(length);
      while (done < length) {
        const { bytesRead } = await file.read(bytes, done, Math.min(length - done, largestCall), offset + done);
        if (bytesRead === 0) break;
        done += bytesRead;
        signal?.throwIfAborted();
      }
      this.stats.bytes += done;
      checkLength(done, length, offset);
      return bytes;
    } catch (error) {
      signal?.throwIfAborted();
      throw ioError("cannot read", error, this.path);
    }
  }

  /** A file beside this one. Links may not lead out of the folder (S-MAN-4). */
  async sibling(path: string): Promise<Source> {
    const folder = dirname(resolve(this.path));
    const target = resolve(folder, path);
    try {
      const inside = relative(await realpath(folder), await realpath(target));
      if (inside !== ".." && !inside.startsWith(`..${sep}`) && !isAbsolute(inside)) return new FileSource(target);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw ioError("cannot open", error, target);
      throw new ShardError("missing_file", "the file does not exist", { path: target, rule: "S-MAN-5" });
    }
    throw new ShardError("unsafe_path", "a path leaves its folder", { rule: "S-MAN-4", path: this.path, found: path });
  }

  async close(): Promise<void> {
    const file = await this.#file?.catch(() => undefined);
    this.#file = undefined;
    await file?.close();
  }
}
