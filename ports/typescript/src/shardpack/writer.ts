// Writing one shard, record by record, in one pass.

import { concat } from "../core/bytes.js";
import { broken, invalid, located, ShardError, shortened } from "../core/errors.js";
import { canonicalBytes, type JsonObject } from "../core/json.js";
import { xxh64 } from "../core/xxh64.js";
import { type Footer, mostRecords, version } from "./layout.js";
import type { PackRecord } from "./record.js";
import {
  type EncodedRecord,
  type EncodingOptions,
  RecordEncoder,
  type StoredEntry,
  type StoredMetadata,
} from "./record-encoder.js";
import { makeIndex } from "./shard-index.js";

/**
 * Where a writer puts the bytes of a shard, from the first to the last. The writer of a `WritableStream` is one; so is
 * a file that a browser lets a page write.
 */
export interface PackOutput {
  /** What errors call the file. */
  readonly path?: string | undefined;
  write(bytes: Uint8Array): unknown;
  /** Called once, after the last byte. */
  close?(): unknown;
  /** Called once, if the shard will not be finished. */
  abort?(): unknown;
}

export interface PackWriterOptions extends EncodingOptions {
  /** Your own fields about the shard. */
  metadata?: JsonObject;
  /** The time that the shard states: a text as it is, or a `Date`; the current time by default. */
  created?: string | Date;
}

export interface RecordOptions {
  /** What a reader can know about the sample without reading its entries. */
  metadata?: JsonObject;
  /** Content types of entries whose names do not tell them. */
  contentTypes?: Readonly<Record<string, string>>;
}

/** Contents by name: bytes, or text that is written as UTF-8. The order is kept; an object has names such as "0" first. */
export type Entries = Readonly<Record<string, Uint8Array | string>> | ReadonlyMap<string, Uint8Array | string>;

/** Records are handed to the output in batches of this size. */
const batchSize = 1 << 20;
/** A shard with more names of entries than this has no schema. */
const mostNames = 256;

/** A time as the index has it: RFC 3339, UTC, in seconds. */
export function creationTime(created: string | Date = new Date()): string {
  if (typeof created === "string") return created;
  if (Number.isNaN(created.getTime())) throw invalid("the time of creation is not a time");
  return `${created.toISOString().slice(0, 19)}Z`;
}

/** What the index says about the entries of all records: the content type of each name and how many records have it. */
export type Schema = Record<string, { content_type: string; records: number }>;

/** Writes one shard. Calls must not overlap: await each. */
export class ShardPackWriter {
  readonly encoder: RecordEncoder;
  readonly #output: PackOutput;
  readonly #created: string;
  readonly #metadata: JsonObject;
  readonly #keys: Set<string>;
  readonly #starts: number[] = [];
  readonly #hashes: bigint[] = [];
  readonly #schema = new Map<string, { contentType: string; records: number }>();
  #otherFields: JsonObject = {};
  #pending: Uint8Array[] = [];
  #pendingSize = 0;
  #position = 0;
  #state: "open" | "writing" | "closed" = "open";
  #footer: Footer | undefined;

  /** `keys` has keys that must not be written, such as those of other shards of a set. The writer adds its own. */
  constructor(output: PackOutput, options: PackWriterOptions = {}, keys: Set<string> = new Set()) {
    this.encoder = new RecordEncoder(options);
    this.#output = output;
    this.#created = creationTime(options.created);
    this.#metadata = options.metadata ?? {};
    this.#keys = keys;
    canonicalBytes(this.#metadata); // refuses bad values now rather than after an hour
  }

  /** The number of records. */
  get length(): number {
    return this.#starts.length;
  }

  /** Bytes of the records, without the index. */
  get size(): number {
    return this.#position;
  }

  /** What the last bytes of the shard say, after `close`. */
  get footer(): Footer | undefined {
    return this.#footer;
  }

  /** The names of entries with their content types; undefined if there are too many. */
  get schema(): Schema | undefined {
    if (this.#schema.size > mostNames) return undefined;
    const schema: Schema = Object.create(null);
    for (const [name, { contentType, records }] of this.#schema) schema[name] = { content_type: contentType, records };
    return schema;
  }

  /** Adds a record. A record that cannot be written changes nothing, and you can go on. */
  async write(key: string, entries: Entries, options: RecordOptions = {}): Promise<void> {
    const pairs = entries instanceof Map ? entries.entries() : Object.entries(entries);
    const { metadata, contentTypes = {} } = options;
    await this.#add(async () => await this.encoder.encode(key, pairs, metadata, contentTypes));
  }

  /** Adds a record of another shard without decoding its entries. */
  async copy(record: PackRecord): Promise<void> {
    await this.#add(async () => {
      const { key } = record;
      record.checkMetadataEncoding();
      const stored: StoredEntry[] = [];
      for (const entry of record.entries()) {
        const { name, contentType, encodingNumber: encoding, size: originalSize, crc32c } = entry;
        stored.push({ name, contentType, encoding, originalSize, crc32c, data: await entry.readStored() });
      }
      const metadata: StoredMetadata = { encoding: record.metadataEncoding, data: record.storedMetadata };
      return this.encoder.assemble(key, stored, metadata);
    });
  }

  /** Adds a record that an encoder with the same options has made. */
  async writeEncoded(record: EncodedRecord): Promise<void> {
    await this.#add(async () => record);
  }

  /** Keeps fields of the index of an older shard that this library does not know. */
  keepFields(fields: JsonObject): void {
    const { created: _created, schema: _schema, user: _user, version: _version, ...others } = fields;
    this.#otherFields = { ...others, ...this.#otherFields };
  }

  async #add(make: () => Promise<EncodedRecord>): Promise<void> {
    this.#begin();
    let record: EncodedRecord;
    try {
      record = await make();
      this.#check(record.key);
    } catch (error) {
      this.#state = "open";
      throw located(error, this.#output.path);
    }
    this.#keys.add(record.key);
    this.#starts.push(this.#position);
    this.#hashes.push(xxh64(record.encodedKey));
    this.#position += record.bytes.length;
    for (const { name, contentType } of record.kinds) this.#count(name, contentType);
    this.#pending.push(record.bytes);
    this.#pendingSize += record.bytes.length;
    await this.#finishing(async () => {
      if (this.#pendingSize >= batchSize) await this.#flush();
    });
    this.#state = "open";
  }

  #begin(): void {
    const { path } = this.#output;
    if (this.#state === "closed") throw new ShardError("closed", "the writer is closed", { path });
    if (this.#state === "writing") throw invalid("another call is not finished: await it", { path });
    this.#state = "writing";
  }

  #check(key: string): void {
    if (this.#keys.has(key)) {
      const problem = `the key ${JSON.stringify(shortened(key))} was written before`;
      throw broken("invalid_argument", "P-REC-10", problem);
    }
    if (this.length >= mostRecords) throw broken("limit_exceeded", "P-IDX-1", "one shard cannot have more records");
  }

  #count(name: string, contentType: string): void {
    const known = this.#schema.get(name);
    if (known === undefined) {
      // One name too many is enough to know that there is no schema.
      if (this.#schema.size <= mostNames) this.#schema.set(name, { contentType, records: 1 });
      return;
    }
    if (known.contentType !== contentType) known.contentType = "";
    known.records++;
  }

  async #flush(): Promise<void> {
    const pending = this.#pending;
    this.#pending = [];
    this.#pendingSize = 0;
    await this.#output.write(pending.length === 1 ? pending[0] : concat(pending));
  }

  /** Does something after which the shard cannot be finished if it fails. */
  async #finishing(run: () => Promise<void>): Promise<void> {
    try {
      await run();
    } catch (cause) {
      const { path } = this.#output;
      await this.abort();
      throw cause instanceof ShardError
        ? located(cause, path)
        : new ShardError("io_error", "cannot write", { path, cause });
    }
  }

  /** Writes the index and closes the output. */
  async close(): Promise<void> {
    if (this.#footer !== undefined) return;
    this.#begin();
    await this.#finishing(async () => {
      const { schema } = this;
      const fields: JsonObject = {
        ...this.#otherFields,
        created: this.#created,
        user: this.#metadata,
        version,
        ...(schema === undefined ? {} : { schema }),
      };
      const { data, footer } = makeIndex(this.#starts, this.#hashes, this.#position, fields);
      this.#pending.push(data);
      await this.#flush();
      await this.#output.close?.();
      this.#footer = footer;
    });
    this.#state = "closed";
  }

  /** Gives up the shard. You can call it at any time; after `close` it does nothing. */
  async abort(): Promise<void> {
    if (this.#state === "closed") return;
    this.#state = "closed";
    this.#pending = [];
    await this.#output.abort?.();
  }
}

/** Collects a shard in memory. */
export class BytesOutput implements PackOutput {
  readonly #pieces: Uint8Array[] = [];

  write(bytes: Uint8Array): void {
    this.#pieces.push(bytes);
  }

  /** What was written so far. */
  bytes(): Uint8Array {
    return concat(this.#pieces);
  }
}
