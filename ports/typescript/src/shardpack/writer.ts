// Writing one shard, record by record, in one pass.

import { concat } from "../core/bytes.js";
import { broken, invalid, located, ShardError, shortened } from "../core/errors.js";
import { canonicalBytes, type JsonObject, parseJsonObject } from "../core/json.js";
import type { Sink } from "../core/sink.js";
import { ioError } from "../core/source.js";
import { xxh64 } from "../core/xxh64.js";
import { type Footer, indexParts, mostRecords, version } from "./layout.js";
import type { PackRecord } from "./record.js";
import {
  type EncodedRecord,
  type EncodingOptions,
  type Entries,
  RecordEncoder,
  type RecordOptions,
} from "./record-encoder.js";
import { makeIndex } from "./shard-index.js";

export interface PackWriterOptions extends EncodingOptions {
  /** Your own fields about the shard. */
  metadata?: JsonObject;
  /** The time that the shard states: a text as it is, or a `Date`; the current time by default. */
  created?: string | Date;
}

/** Records are handed to the sink in batches of this size. */
const batchSize = 1 << 20;
/** A shard with more names of entries than this has no schema. */
export const mostNames = 256;

/** Bytes of the metadata of a usual shard, to tell its size before it is known. */
const usualMetadata = 1024;

/** A time as the index has it: RFC 3339, UTC, in seconds. */
export function creationTime(created: string | Date = new Date()): string {
  if (typeof created === "string") return created;
  if (Number.isNaN(created.getTime())) throw invalid("the time of creation is not a time");
  return `${created.toISOString().slice(0, 19)}Z`;
}

/** P-REC-10 */
export function refuseTaken(key: string, keys: ReadonlySet<string>): void {
  if (!keys.has(key)) return;
  throw broken("invalid_argument", "P-REC-10", `the key ${JSON.stringify(shortened(key))} was written before`);
}

/** What the index says about the entries of all records: the content type of each name and how many records have it. */
export type Schema = Record<string, { content_type: string; records: number }>;

/** Writes one shard, record by record. The file is complete when `finish` is done. */
export class ShardPackWriter {
  readonly #sink: Sink;
  readonly #encoder: RecordEncoder;
  readonly #created: string;
  readonly #metadata: JsonObject;
  readonly #keys: Set<string>;
  readonly #starts: number[] = [];
  readonly #hashes: bigint[] = [];
  readonly #schema = new Map<string, { contentType: string; records: number }>();
  #otherFields: JsonObject = {};
  /** Bytes of records that wait to be written. */
  #pending: Uint8Array[] = [];
  #pendingSize = 0;
  #position = 0;
  #hasBegun = false;
  #isOpen = true;
  #footer: Footer | undefined;
  /** Calls are done one after the other, even if nobody waits for them. */
  #last: Promise<unknown> = Promise.resolve();

  /** `keys` has keys that are taken, such as those of other shards of a set. The writer adds its own. */
  constructor(sink: Sink, options: PackWriterOptions = {}, keys: Set<string> = new Set()) {
    this.#sink = sink;
    this.#keys = keys;
    this.#encoder = new RecordEncoder(options);
    this.#created = creationTime(options.created);
    // A copy, and bad values are refused now rather than after an hour.
    this.#metadata = parseJsonObject(canonicalBytes(options.metadata ?? {}));
  }

  /** The number of records. */
  get length(): number {
    return this.#starts.length;
  }

  /** About how many bytes the shard has with one more record of this size. */
  sizeWith(recordSize: number): number {
    return this.#position + recordSize + indexParts(this.length + 1, usualMetadata).end;
  }

  /** What the last bytes of the shard say, after `finish`. */
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
    return this.#inTurn(async () => this.#add(await this.#encoder.encode(key, entries, options)));
  }

  /** Adds a record of another shard without decoding its entries. */
  async copy(record: PackRecord): Promise<void> {
    return this.#inTurn(async () => this.#add(await this.#encoder.copy(record)));
  }

  /** Adds a record that an encoder with the same options has made. */
  async writeEncoded(record: EncodedRecord): Promise<void> {
    return this.#inTurn(() => this.#add(record));
  }

  /** Keeps the fields of an older shard that this library does not know. */
  keepFields(fields: JsonObject): void {
    const { created: _created, schema: _schema, user: _user, version: _version, ...others } = fields;
    this.#otherFields = { ...others, ...this.#otherFields };
  }

  /** Writes the index and completes the file. */
  async finish(): Promise<void> {
    return this.#inTurn(() =>
      this.#writing(async () => {
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
        await this.#sink.finish(new Uint8Array(0));
        this.#footer = footer;
        this.#isOpen = false;
      }),
    );
  }

  /** Drops the file, after the calls before this one. After `finish` it does nothing. */
  async abort(): Promise<void> {
    const ended = this.#last.then(() => this.#end());
    this.#last = ended.catch(() => undefined);
    return ended;
  }

  async #end(): Promise<void> {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    this.#pending = [];
    await this.#sink.abort();
  }

  #inTurn(run: () => Promise<void>): Promise<void> {
    const done = this.#last.then(async () => {
      try {
        if (!this.#isOpen) throw new ShardError("closed", "the writer is finished");
        await run();
      } catch (error) {
        throw located(error, this.#sink.path);
      }
    });
    this.#last = done.catch(() => undefined);
    return done;
  }

  async #add(record: EncodedRecord): Promise<void> {
    const { key, bytes } = record;
    refuseTaken(key, this.#keys);
    if (this.length >= mostRecords) throw broken("limit_exceeded", "P-IDX-1", "one shard cannot have more records");
    this.#keys.add(key);
    this.#starts.push(this.#position);
    this.#hashes.push(xxh64(record.encodedKey));
    this.#position += bytes.length;
    for (const { name, contentType } of record.kinds) this.#count(name, contentType);
    this.#pending.push(bytes);
    this.#pendingSize += bytes.length;
    if (this.#pendingSize >= batchSize) await this.#writing(() => this.#flush());
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
    if (!this.#hasBegun) await this.#sink.begin(0);
    this.#hasBegun = true;
    const pending = this.#pending;
    this.#pending = [];
    this.#pendingSize = 0;
    await this.#sink.append(pending.length === 1 ? pending[0] : concat(pending));
  }

  /** Does something after which the shard cannot be completed if it fails. */
  async #writing(run: () => Promise<void>): Promise<void> {
    try {
      await run();
    } catch (error) {
      await this.#end();
      throw ioError("cannot write", error, this.#sink.path);
    }
  }
}
