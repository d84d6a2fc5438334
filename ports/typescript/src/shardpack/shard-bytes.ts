// The bytes of a shard, and what reading them needs: limits and a zstd library.

import { located, ShardError } from "../core/errors.js";
import type { OpenOptions } from "../core/reader.js";
import { defaultLimits, type Limits } from "../core/registry.js";
import { checkLength, type Source } from "../core/source.js";

/** How shards are read. */
export type PackOptions = Pick<OpenOptions, "limits" | "zstd">;

/** Where a record finds its bytes: the file, or a part of it that is in memory already. */
export class ShardBytes {
  /** What errors call the shard: a path or a URL. */
  readonly name: string | undefined;
  readonly limits: Limits;
  readonly options: PackOptions;
  readonly #read: Source["read"];
  #isClosed = false;

  constructor(name: string | undefined, options: PackOptions, read: Source["read"]) {
    this.name = name;
    this.limits = { ...defaultLimits, ...options.limits };
    this.options = options;
    this.#read = read;
  }

  /** Exactly these bytes. */
  async read(offset: number, size: number): Promise<Uint8Array> {
    if (this.#isClosed) throw new ShardError("closed", "the reader is closed", { path: this.name });
    return await this.#read(offset, size);
  }

  /** Ends reading, except of what is in memory. */
  close(): void {
    this.#isClosed = true;
  }

  /** The same shard, with the bytes from `start` on in memory. What is outside of them is read as before. */
  withPart(start: number, part: Uint8Array): ShardBytes {
    return new ShardBytes(this.name, this.options, async (offset, size) => {
      const at = offset - start;
      if (at >= 0 && at + size <= part.length) return part.subarray(at, at + size);
      return await this.read(offset, size);
    });
  }

  /** Does something whose errors are to name the shard. */
  locate<T>(run: () => T): T {
    try {
      return run();
    } catch (error) {
      throw located(error, this.name);
    }
  }
}

/** A part of a shard that is all there is: nothing else can be read. */
export function onlyPart(name: string | undefined, options: PackOptions, start: number, part: Uint8Array): ShardBytes {
  return new ShardBytes(name, options, async (offset, size) => {
    const found = part.subarray(offset - start, offset - start + size);
    checkLength(found.length, size, offset);
    return found;
  });
}
