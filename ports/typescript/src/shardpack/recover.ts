// Recovering the records of a shard that is cut or damaged (spec/shardpack.md, section 12).

import { ShardError } from "../core/errors.js";
import { isObject, type JsonObject } from "../core/json.js";
import type { Sink } from "../core/sink.js";
import { type Source, type SourceLike, toSource } from "../core/source.js";
import { metadataEncodings } from "./encodings.js";
import {
  alignments,
  blockStartSize,
  headParts,
  indexMarker,
  type RecordFields,
  readBlockStart,
  readRecordFields,
  recordHeadSize,
  recordMarker,
  version,
} from "./layout.js";
import { openRecord, openShardPack, type ShardPackReader } from "./reader.js";
import type { PackRecord } from "./record.js";
import { type PackOptions, ShardBytes } from "./shard-bytes.js";
import { type PackWriterOptions, ShardPackWriter } from "./writer.js";

/** Something that could not be recovered. */
export interface LostPart {
  /** Where it starts in the damaged file. */
  readonly offset: number;
  readonly size: number;
  /** The key of the record, if it is known. */
  readonly key: string | undefined;
  /** What is wrong with it. */
  readonly reason: string;
}

/** What `recoverShardPack` did. */
export interface Recovery {
  /** How many records were recovered. */
  readonly records: number;
  readonly lost: readonly LostPart[];
  /** Whether the offsets of the index could be followed. */
  readonly hadIndex: boolean;
}

/** Bytes to search for a marker at a time. */
const searchSize = 1 << 20;
/** What can be tried of a file without data: with sixteen times its size, this bounds the work on a file full of false heads. */
const leastBudget = 64 << 20;
/** What it costs to try a head, besides its bytes. */
const triedHead = 4096;

/**
 * Writes a new shard with every undamaged record of a damaged one, as it was stored.
 *
 * If the index is undamaged, its offsets are followed. Otherwise the file is read from its start; after damage the
 * search goes on at the next marker that an undamaged head follows. Fields of the shard, its time and its alignment are
 * kept if they are known.
 */
export async function recoverShardPack(
  given: SourceLike,
  sink: Sink,
  options: PackOptions & PackWriterOptions = {},
): Promise<Recovery> {
  const source = toSource(given);
  try {
    return await recover(source, sink, options);
  } finally {
    await source.close();
  }
}

async function recover(source: Source, sink: Sink, options: PackOptions & PackWriterOptions): Promise<Recovery> {
  // The reader must not close the source when it finds damage.
  const reader = await openUndamaged(borrowed(source), options);
  const lost: LostPart[] = [];
  const found = reader ? alongIndex(reader, lost) : scan(await SearchedFile.open(source, options), lost);
  const fields = fieldsOf(reader);
  const { created, user } = fields;
  let writer: ShardPackWriter | undefined;
  const start = (alignment?: number) =>
    new ShardPackWriter(sink, {
      ...(typeof created === "string" ? { created } : {}),
      ...(isObject(user) ? { metadata: user } : {}),
      ...(alignment === undefined ? {} : { alignment: alignment as 1 | 8 | 64 }),
      ...options,
    });
  try {
    for await (const record of found) {
      writer ??= start(record.alignment);
      const reason = await copy(writer, record);
      if (reason !== undefined) lost.push({ offset: record.offset, size: record.size, key: keyOf(record), reason });
    }
    writer ??= start();
    writer.keepFields(fields);
    await writer.finish();
  } catch (error) {
    await writer?.abort();
    throw error;
  }
  lost.sort((a, b) => a.offset - b.offset);
  return { records: writer.length, lost, hadIndex: reader !== undefined };
}

/** The same source, which others cannot close. */
function borrowed(source: Source): Source {
  return {
    path: source.path,
    stats: source.stats,
    start: () => source.start(),
    read: (offset, length) => source.read(offset, length),
    close: async () => {},
  };
}

/** Whether an error tells that the file is damaged, rather than that it cannot be read or written. */
function isDamage(error: unknown): error is ShardError {
  return error instanceof ShardError && !["io_error", "closed", "missing_extra"].includes(error.code);
}

/** A reader, if the offsets of the index are undamaged. */
async function openUndamaged(source: Source, options: PackOptions): Promise<ShardPackReader | undefined> {
  try {
    const reader = await openShardPack(source, options);
    void reader.offsets;
    return reader;
  } catch (error) {
    if (isDamage(error)) return undefined;
    throw error;
  }
}

function fieldsOf(reader: ShardPackReader | undefined): JsonObject {
  try {
    return reader?.metadata ?? {};
  } catch (error) {
    if (isDamage(error)) return {};
    throw error;
  }
}

/** Adds a record; returns why that is not possible. */
async function copy(writer: ShardPackWriter, record: PackRecord): Promise<string | undefined> {
  try {
    await writer.copy(record);
    return undefined;
  } catch (error) {
    if (isDamage(error)) return error.message;
    throw error;
  }
}

function keyOf(record: PackRecord): string | undefined {
  try {
    return record.key;
  } catch {
    return undefined;
  }
}

async function* alongIndex(reader: ShardPackReader, lost: LostPart[]): AsyncGenerator<PackRecord> {
  const { offsets } = reader;
  for (let number = 0; number < reader.length; number++) {
    let record: PackRecord;
    try {
      record = await reader.record(number);
    } catch (error) {
      if (!isDamage(error)) throw error;
      const offset = offsets[number];
      lost.push({ offset, size: offsets[number + 1] - offset, key: undefined, reason: error.message });
      continue;
    }
    yield record;
  }
}

async function* scan(file: SearchedFile, lost: LostPart[]): AsyncGenerator<PackRecord> {
  const { size: end } = file;
  let position = 0;
  while (end - position >= blockStartSize) {
    const { size, marker } = readBlockStart(await file.read(position, blockStartSize));
    if (marker === indexMarker) return;
    if (size === 0 && marker === 0 && (await file.isZero(position))) return;
    let reason = marker === recordMarker ? "the file ends inside this record" : "no record starts here";
    if (marker === recordMarker && size <= end - position) {
      try {
        const record = await file.record(position, size);
        yield record;
        position += size;
        continue;
      } catch (error) {
        if (!isDamage(error)) throw error;
        reason = error.message;
      }
    }
    const following = await file.nextRecord(position + 1);
    lost.push({ offset: position, size: following - position, key: undefined, reason });
    position = following;
  }
  if (position < end && !(await file.isZero(position))) {
    const reason = "the file ends inside a record";
    lost.push({ offset: position, size: end - position, key: undefined, reason });
  }
}

/** A file without an index, in which heads of records are searched. */
class SearchedFile {
  readonly size: number;
  readonly #source: Source;
  readonly #shard: ShardBytes;
  /** Bytes that may still be tried: bounds the work on a file that is full of false markers. */
  #budget: number;
  /** The part of the file that was read last. */
  #window: { start: number; bytes: Uint8Array } = { start: 0, bytes: new Uint8Array(0) };

  constructor(source: Source, size: number, options: PackOptions) {
    this.size = size;
    this.#source = source;
    this.#shard = new ShardBytes(source.path, options, (offset, length) => this.read(offset, length));
    this.#budget = leastBudget + 16 * size;
  }

  static async open(source: Source, options: PackOptions): Promise<SearchedFile> {
    return new SearchedFile(source, (await source.start()).size, options);
  }

  /** Reads a part of the file. Parts that follow one another share a read. */
  async read(offset: number, length: number): Promise<Uint8Array> {
    const { start, bytes } = this.#window;
    if (offset >= start && offset + length <= start + bytes.length) {
      return bytes.subarray(offset - start, offset - start + length);
    }
    if (length > searchSize) return await this.#source.read(offset, length);
    const found = await this.#source.read(offset, Math.min(searchSize, this.size - offset));
    this.#window = { start: offset, bytes: found };
    return found.subarray(0, length);
  }

  async record(offset: number, size: number): Promise<PackRecord> {
    return await openRecord(this.#shard, offset, size);
  }

  /** Whether all bytes from here on are zero. */
  async isZero(offset: number): Promise<boolean> {
    for (let at = offset; at < this.size; at += searchSize) {
      const block = await this.read(at, Math.min(searchSize, this.size - at));
      if (block.some((byte) => byte !== 0)) return false;
    }
    return true;
  }

  /** Where the next undamaged head starts, or the end of the file. */
  async nextRecord(offset: number): Promise<number> {
    for (let at = offset; at < this.size; at += searchSize) {
      const block = await this.#source.read(at, Math.min(searchSize + recordHeadSize, this.size - at));
      for (let marker = findMarker(block, 8); marker >= 0; marker = findMarker(block, marker + 1)) {
        const start = marker - 8;
        if (start + recordHeadSize > block.length || this.#budget < 0) break;
        const fields = readRecordFields(block.subarray(start));
        if (isPlausible(fields, this.size - at - start) && (await this.#isRecord(at + start, fields)))
          return at + start;
      }
    }
    return this.size;
  }

  async #isRecord(offset: number, fields: RecordFields): Promise<boolean> {
    this.#budget -= headParts(fields).end + triedHead;
    try {
      await this.record(offset, fields.recordSize);
      return true;
    } catch (error) {
      if (isDamage(error)) return false;
      throw error;
    }
  }
}

/** Whether fields can be those of a head, so that it pays to read it. */
function isPlausible(fields: RecordFields, room: number): boolean {
  const { version: found, metadataEncoding, alignment, flags, recordSize, keySize } = fields;
  const isKnown = found === version && metadataEncoding < metadataEncodings.length && flags === 0;
  const headSize = headParts(fields).end;
  return isKnown && alignments.includes(alignment) && keySize > 0 && headSize <= recordSize && recordSize <= room;
}

/** Where "SPR1" is in a block, from a place on; -1 if it is not there. */
function findMarker(block: Uint8Array, from: number): number {
  for (let at = block.indexOf(0x53, from); at >= 0; at = block.indexOf(0x53, at + 1)) {
    if (block[at + 1] === 0x50 && block[at + 2] === 0x52 && block[at + 3] === 0x31) return at;
  }
  return -1;
}
