// One shard: records by number, by key and in order. Only what you ask for is read.

import { concat, encodeUtf8 } from "../core/bytes.js";
import { broken, invalid, located, ShardError, shortened } from "../core/errors.js";
import type { JsonObject } from "../core/json.js";
import { type Source, type SourceLike, toSource } from "../core/source.js";
import { xxh64 } from "../core/xxh64.js";
import { type Footer, headParts, recordHeadSize } from "./layout.js";
import { checkFields, firstRead, PackRecord, RecordHead } from "./record.js";
import { type PackOptions, ShardBytes } from "./shard-bytes.js";
import { checkFooter, checkIndexSize, ShardIndex } from "./shard-index.js";

/** How much of the end of a file is read first: footer and index of up to about 3000 records. */
const tailSize = 65_536;
/** Records up to this size are read whole: a request costs more than their bytes. */
const smallRecord = 65_536;
/** Records that are read in order are read in runs, which grow from the first to the second of these sizes. */
const leastRun = 65_536;
const mostRun = 8 << 20;

/** Opens a shard: bytes, a `Blob` or `File`, an address of http or https, or any source. A server gets two requests. */
export async function openShardPack(given: SourceLike, options: PackOptions = {}): Promise<ShardPackReader> {
  const source = toSource(given);
  const shard = new ShardBytes(source.path, options, (offset, size) => source.read(offset, size));
  try {
    const { size, head } = await source.start();
    const isWhole = head.length >= size;
    const start = isWhole ? 0 : Math.max(0, size - tailSize);
    const tail = isWhole ? head : await source.read(start, size - start);
    const footer = checkFooter(tail, size, head);
    checkIndexSize(footer, shard.limits);
    const { indexOffset } = footer;
    const data =
      indexOffset >= start
        ? tail.subarray(indexOffset - start)
        : concat([await source.read(indexOffset, start - indexOffset), tail]);
    const index = new ShardIndex(data, footer, shard.limits);
    return new ShardPackReader(source, isWhole ? shard.withPart(0, head) : shard, index);
  } catch (error) {
    await source.close();
    throw located(error, source.path);
  }
}

/** Gives the records of one shard by number, by key and in order. `openShardPack` makes one. */
export class ShardPackReader {
  readonly source: Source;
  readonly footer: Footer;
  readonly #shard: ShardBytes;
  readonly #index: ShardIndex;

  /** Use `openShardPack`. */
  constructor(source: Source, shard: ShardBytes, index: ShardIndex) {
    this.source = source;
    this.footer = index.footer;
    this.#shard = shard;
    this.#index = index;
  }

  /** A path or a URL; undefined for bytes in memory. */
  get path(): string | undefined {
    return this.source.path;
  }

  /** The number of records. */
  get length(): number {
    return this.footer.recordCount;
  }

  /** The fields of the shard: `created`, `schema`, `user`, `version` and others. */
  get metadata(): JsonObject {
    return this.#shard.locate(() => this.#index.metadata);
  }

  /** Where each record starts, and where the last one ends: `length` + 1 numbers. */
  get offsets(): Float64Array {
    return this.#shard.locate(() => this.#index.offsets);
  }

  /** The record of this number. */
  async record(number: number): Promise<PackRecord> {
    const { offsets } = this;
    if (!Number.isInteger(number) || number < 0 || number >= this.length) {
      const expected = this.length === 0 ? "nothing: the shard is empty" : `0 to ${this.length - 1}`;
      throw invalid("the shard has no record of this number", { path: this.path, expected, found: number });
    }
    return await openRecord(this.#shard, offsets[number], offsets[number + 1] - offsets[number]);
  }

  /** The number of the record with this key; undefined if there is none. */
  async find(key: string): Promise<number | undefined> {
    const encoded = encodeUtf8(key);
    let found: number | undefined;
    if (encoded === undefined) return found;
    const numbers = this.#shard.locate(() => [...this.#index.recordsWithHash(xxh64(encoded))]);
    for (const number of numbers) {
      if ((await this.record(number)).key !== key) continue;
      if (found !== undefined) {
        const problem = `the records ${found} and ${number} have the same key ${JSON.stringify(shortened(key))}`;
        throw broken("duplicate_name", "P-REC-10", problem, { path: this.path });
      }
      found = number;
    }
    return found;
  }

  /** The record with this key. Throws `entry_not_found` if there is none. */
  async byKey(key: string): Promise<PackRecord> {
    const number = await this.find(key);
    if (number !== undefined) return await this.record(number);
    const problem = `the shard has no record with the key ${JSON.stringify(shortened(key))}`;
    throw new ShardError("entry_not_found", problem, { path: this.path });
  }

  /** The records in order, from number `start` up to but without `stop`. Small records share requests. */
  async *records(start = 0, stop = this.length): AsyncGenerator<PackRecord> {
    const { offsets } = this;
    const last = Math.min(stop, this.length);
    let run = leastRun;
    for (let number = Math.max(0, start); number < last; ) {
      const begin = offsets[number];
      let end = number + 1;
      while (end < last && offsets[end + 1] - begin <= run) end++;
      const size = offsets[end] - begin;
      // A record that is larger than a run is not read ahead.
      const shard = size > run ? this.#shard : this.#shard.withPart(begin, await this.#shard.read(begin, size));
      for (; number < end; number++) {
        yield await openRecord(shard, offsets[number], offsets[number + 1] - offsets[number]);
      }
      run = Math.min(2 * run, mostRun);
    }
  }

  [Symbol.asyncIterator](): AsyncGenerator<PackRecord> {
    return this.records();
  }

  /** Closes the file. Records that you have can read what is in memory. */
  async close(): Promise<void> {
    this.#shard.close();
    await this.source.close();
  }
}

/** Opens the record at an offset. The caller has seen that so many bytes are there. */
export async function openRecord(shard: ShardBytes, offset: number, size: number): Promise<PackRecord> {
  try {
    let data = await shard.read(offset, size <= smallRecord ? size : firstRead);
    const fields = checkFields(data.subarray(0, recordHeadSize), size);
    const headSize = headParts(fields).end;
    if (headSize > data.length) data = await shard.read(offset, headSize);
    return new PackRecord(shard.withPart(offset, data), offset, new RecordHead(data, fields));
  } catch (error) {
    throw located(error, shard.name);
  }
}
