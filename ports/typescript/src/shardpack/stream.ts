// Reading a shard from start to end without its index: answers of servers, pipes, files that are still written.

import { concat } from "../core/bytes.js";
import { broken, located, ShardError } from "../core/errors.js";
import { ioError } from "../core/source.js";
import {
  blockStartSize,
  footerSize,
  headParts,
  indexMarker,
  leastRecordSize,
  readBlockStart,
  recordMarker,
} from "./layout.js";
import { checkFields, PackRecord, RecordHead } from "./record.js";
import { onlyPart, type PackOptions, ShardBytes } from "./shard-bytes.js";
import { checkFooter, checkIndexSize, ShardIndex } from "./shard-index.js";

/** Bytes that can only be read forwards. */
export type ByteStream = ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;

export interface StreamOptions extends PackOptions {
  /** Refuse larger records, which would have to be in memory; 1 GiB by default. */
  maxRecordBytes?: number;
  /** What errors call the stream. */
  name?: string;
}

/**
 * The records of a shard, in order. Each is in memory as a whole, and stays valid while you read on.
 *
 * Throws `truncated` after the last complete record if the stream ends before the index does.
 */
export async function* streamRecords(stream: ByteStream, options: StreamOptions = {}): AsyncGenerator<PackRecord> {
  const queue = new ByteQueue(stream);
  try {
    yield* readBlocks(queue, options);
  } catch (error) {
    throw located(error, options.name);
  } finally {
    await queue.cancel();
  }
}

async function* readBlocks(queue: ByteQueue, options: StreamOptions): AsyncGenerator<PackRecord> {
  const { name, maxRecordBytes = 2 ** 30 } = options;
  const { limits } = new ShardBytes(name, options, async () => new Uint8Array(0));
  for (let position = 0, count = 0; ; count++) {
    const start = await queue.take(blockStartSize);
    if (start.length < blockStartSize) throw cut(position, start.length, "P-FTR-1");
    // Space that a writer reserved and did not use.
    if (start.every((byte) => byte === 0)) throw cut(position, 0, "P-FTR-1");
    const { size, marker } = readBlockStart(start);
    const isIndex = marker === indexMarker;
    if (!isIndex && marker !== recordMarker) {
      const found = `0x${marker.toString(16)} at byte ${position + 8}`;
      throw broken("bad_magic", "P-REC-2", "neither a record nor the index starts here", { found });
    }
    if (isIndex ? size < blockStartSize : size < leastRecordSize) {
      const details = { expected: `at least ${leastRecordSize} bytes`, found: size };
      throw broken("bad_offset", "P-REC-1", "a block is smaller than its head", details);
    }
    const most = isIndex ? limits.maxIndexBytes : maxRecordBytes;
    if (size > most) {
      const problem = `${isIndex ? "an index" : "a record"} is too large to read from a stream`;
      const details = { expected: `at most ${most} bytes`, found: `${size} bytes` };
      throw isIndex
        ? broken("limit_exceeded", "P-IDX-1", problem, details)
        : new ShardError("limit_exceeded", problem, details);
    }
    const data = concat([start, await queue.take(size - blockStartSize)]);
    if (data.length < size) throw cut(position, data.length, isIndex ? "P-FTR-1" : "P-REC-7");
    if (isIndex) {
      checkEnd(data, position, count, limits);
      if ((await queue.take(1)).length > 0) throw broken("trailing_data", "P-FTR-5", "bytes follow the footer");
      return;
    }
    const fields = checkFields(data, size);
    const head = new RecordHead(data.subarray(0, headParts(fields).end), fields);
    const record = new PackRecord(onlyPart(name, options, position, data), position, head);
    yield record;
    position += size;
  }
}

function cut(position: number, found: number, rule: string): ShardError {
  return broken("truncated", rule, "the stream ends before the index of the shard", {
    found: `${found} bytes after the last complete record, which ends at byte ${position}`,
  });
}

/** Whether footer and index head fit the records that were read. */
function checkEnd(data: Uint8Array, position: number, count: number, limits: ShardBytes["limits"]): void {
  const footer = checkFooter(data.subarray(-footerSize), position + data.length, data);
  if (footer.indexOffset !== position || footer.recordCount !== count) {
    const expected = `${footer.recordCount} records up to byte ${footer.indexOffset}`;
    const details = { expected, found: `${count} records up to byte ${position}` };
    throw broken("size_mismatch", "P-IDX-2", "the footer does not fit the records before it", details);
  }
  checkIndexSize(footer, limits);
  new ShardIndex(data, footer, limits);
}

/** Gives the bytes of a stream in the sizes that are asked for. Memory grows as bytes arrive, so a false size costs nothing. */
class ByteQueue {
  readonly #next: () => Promise<Uint8Array | undefined>;
  readonly #cancel: () => Promise<unknown>;
  /** What was read and not taken. */
  #rest: Uint8Array = new Uint8Array(0);
  #isDone = false;

  constructor(stream: ByteStream) {
    // Not every browser can iterate over a ReadableStream.
    if ("getReader" in stream) {
      const reader = stream.getReader();
      this.#next = async () => (await reader.read()).value;
      this.#cancel = () => reader.cancel();
    } else {
      const iterator = stream[Symbol.asyncIterator]();
      this.#next = async () => {
        const { done, value } = await iterator.next();
        return done ? undefined : value;
      };
      this.#cancel = async () => iterator.return?.();
    }
  }

  /** The next `size` bytes, or fewer at the end of the stream. */
  async take(size: number): Promise<Uint8Array> {
    const pieces: Uint8Array[] = [];
    let missing = size;
    while (missing > 0) {
      if (this.#rest.length === 0) {
        const piece = await this.#pull();
        if (piece === undefined) break;
        this.#rest = piece;
      }
      const piece = this.#rest.subarray(0, missing);
      this.#rest = this.#rest.subarray(piece.length);
      pieces.push(piece);
      missing -= piece.length;
    }
    return pieces.length === 1 ? pieces[0] : concat(pieces);
  }

  async #pull(): Promise<Uint8Array | undefined> {
    if (this.#isDone) return undefined;
    try {
      const piece = await this.#next();
      if (piece === undefined) this.#isDone = true;
      return piece;
    } catch (error) {
      this.#isDone = true;
      throw ioError("cannot read the stream", error);
    }
  }

  async cancel(): Promise<void> {
    if (this.#isDone) return;
    this.#isDone = true;
    await this.#cancel();
  }
}
