// Writing a dataset of many shards, and the set file that lists them.

import { createHash } from "node:crypto";
import { access } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { toHex } from "../core/bytes.js";
import { broken, invalid, ShardError } from "../core/errors.js";
import { canonicalBytes, type JsonObject } from "../core/json.js";
import { manifestEntry } from "../core/layout.js";
import type { ManifestRow } from "../core/manifest.js";
import { ContentType, Role } from "../core/registry.js";
import type { Sink } from "../core/sink.js";
import { ShardWriter } from "../core/writer.js";
import { type Footer, writeFooter } from "../shardpack/layout.js";
import type { PackRecord } from "../shardpack/record.js";
import { type EncodedRecord, type Entries, RecordEncoder, type RecordOptions } from "../shardpack/record-encoder.js";
import { mostShards, setFormat, setVersion } from "../shardpack/set.js";
import { SetName } from "../shardpack/set-names.js";
import {
  creationTime,
  mostNames,
  type PackWriterOptions,
  refuseTaken,
  type Schema,
  ShardPackWriter,
} from "../shardpack/writer.js";
import { FileSink, type FileSinkOptions } from "./file-sink.js";
import { withDefaults } from "./shardpack.js";

/** A set file leaves out a schema that is larger. */
const largestSchema = 64 << 10;

export interface SetWriterOptions extends PackWriterOptions, FileSinkOptions {
  /** A new shard starts before a file would grow above this; 1 GiB by default. A larger record gets a shard of its own. */
  maxBytes?: number;
  /** A new shard starts after this many records. */
  maxRecords?: number;
  /** Names this state of the set; the time of creation by default. */
  revision?: string;
}

/**
 * Starts a set of shards: `createShardSet("data/train-%06d.shardpack")`. Each shard appears under its name when it is
 * complete, and the set file at the end. Files that are there already are an error: a set is not replaced.
 */
export function createShardSet(path: string, options: SetWriterOptions = {}): ShardSetWriter {
  return new ShardSetWriter(path, options);
}

/** Writes a set of shards. Keys are unique in the whole set. `createShardSet` makes one. */
export class ShardSetWriter {
  readonly #folder: string;
  readonly #name: SetName;
  readonly #options: SetWriterOptions & { created: string };
  readonly #encoder: RecordEncoder;
  readonly #keys = new Set<string>();
  readonly #rows: ManifestRow[] = [];
  readonly #schemas: (Schema | undefined)[] = [];
  #current: { writer: ShardPackWriter; sink: HashedSink } | undefined;
  #records = 0;
  #isOpen = true;
  /** Calls are done one after the other, even if nobody waits for them. */
  #last: Promise<unknown> = Promise.resolve();

  constructor(path: string, options: SetWriterOptions) {
    this.#folder = dirname(path);
    this.#name = new SetName(basename(path));
    const given = withDefaults(options);
    this.#options = { ...given, created: creationTime(given.created) };
    this.#encoder = new RecordEncoder(given);
    for (const [name, value] of Object.entries({ maxBytes: options.maxBytes, maxRecords: options.maxRecords })) {
      if (value !== undefined && !(value >= 1))
        throw invalid(`${name} is too small`, { expected: "1 or more", found: value });
    }
    const characters = [...(options.revision ?? "-")].length;
    if (characters < 1 || characters > 255) throw invalid("the revision does not have 1 to 255 characters");
  }

  /** The number of records of all shards. */
  get length(): number {
    return this.#records;
  }

  /** Adds a record. A record that cannot be written changes nothing, and you can go on. */
  async write(key: string, entries: Entries, options: RecordOptions = {}): Promise<void> {
    return this.#inTurn(async () => this.#add(await this.#encoder.encode(key, entries, options)));
  }

  /** Adds a record of another shard without decoding its entries. */
  async copy(record: PackRecord): Promise<void> {
    return this.#inTurn(async () => this.#add(await this.#encoder.copy(record)));
  }

  /** Completes the last shard and starts the next, whatever the limits say. */
  async startShard(): Promise<void> {
    return this.#inTurn(async () => {
      await this.#writer();
      await this.#finishShard();
    });
  }

  /** Completes the last shard and writes the set file. A set without records has one shard without records. */
  async finish(): Promise<void> {
    return this.#inTurn(async () => {
      if (this.#rows.length === 0) await this.#writer();
      await this.#finishShard();
      await this.#writeSetFile();
      this.#isOpen = false;
    });
  }

  /** Drops the shard that is being written. Shards that are complete stay, without a set file. */
  async abort(): Promise<void> {
    await this.#last;
    this.#isOpen = false;
    await this.#current?.writer.abort();
  }

  #inTurn(run: () => Promise<void>): Promise<void> {
    const done = this.#last.then(async () => {
      if (!this.#isOpen) throw new ShardError("closed", "the writer is finished");
      await run();
    });
    this.#last = done.catch(() => undefined);
    return done;
  }

  async #add(record: EncodedRecord): Promise<void> {
    const { maxBytes = 2 ** 30, maxRecords = Number.POSITIVE_INFINITY } = this.#options;
    // Before a shard is finished for a record that cannot be written.
    refuseTaken(record.key, this.#keys);
    const writer = this.#current?.writer;
    if (writer && writer.length > 0) {
      if (writer.length >= maxRecords || writer.sizeWith(record.bytes.length) > maxBytes) await this.#finishShard();
    }
    await (await this.#writer()).writeEncoded(record);
    this.#records++;
  }

  /** The writer of the current shard. */
  async #writer(): Promise<ShardPackWriter> {
    if (this.#current === undefined) {
      if (this.#rows.length >= mostShards) {
        const details = { expected: `at most ${mostShards}` };
        throw broken("limit_exceeded", "P-SET-5", "the set has too many shards: make them larger", details);
      }
      const path = join(this.#folder, this.#name.shard(this.#rows.length));
      await refuseExisting(path);
      await refuseExisting(join(this.#folder, this.#name.setFile));
      const sink = new HashedSink(new FileSink(path, this.#options));
      this.#current = { sink, writer: new ShardPackWriter(sink, this.#options, this.#keys) };
    }
    return this.#current.writer;
  }

  async #finishShard(): Promise<void> {
    if (this.#current === undefined) return;
    const { writer, sink } = this.#current;
    this.#current = undefined;
    await writer.finish();
    const footer = writer.footer as Footer; // it is there after finish
    this.#rows.push({
      uri: this.#name.shard(this.#rows.length),
      sha256: sink.sha256(),
      size: footer.totalSize,
      records: footer.recordCount,
      footer: toHex(writeFooter(footer)),
    });
    this.#schemas.push(writer.schema);
  }

  async #writeSetFile(): Promise<void> {
    const { created, revision = created, metadata = {} } = this.#options;
    const schema = mergeSchemas(this.#schemas);
    const fields: JsonObject = {
      created,
      files: this.#rows,
      format: setFormat,
      name: this.#name.pattern,
      records: this.#records,
      revision,
      user: metadata,
      version: setVersion,
      ...(schema === undefined ? {} : { schema }),
    };
    const path = join(this.#folder, this.#name.setFile);
    const writer = new ShardWriter(new FileSink(path, this.#options), { role: Role.manifest, names: [manifestEntry] });
    await writer.write(manifestEntry, canonicalBytes(fields), { contentType: ContentType.json });
    await writer.finish();
  }
}

async function refuseExisting(path: string): Promise<void> {
  try {
    await access(path);
  } catch {
    return;
  }
  throw invalid("a file of the set exists already", { path });
}

/** The names of entries over all shards; undefined if one shard does not tell them, or if they are too many. */
function mergeSchemas(schemas: readonly (Schema | undefined)[]): Schema | undefined {
  const merged: Schema = Object.create(null);
  for (const schema of schemas) {
    if (schema === undefined) return undefined;
    for (const [name, { content_type, records }] of Object.entries(schema)) {
      merged[name] ??= { content_type, records: 0 };
      if (merged[name].content_type !== content_type) merged[name].content_type = "";
      merged[name].records += records;
    }
  }
  const isLarge = Object.keys(merged).length > mostNames || canonicalBytes(merged).length > largestSchema;
  return isLarge ? undefined : merged;
}

/** Hashes a file while it is written. Its head must be empty. */
class HashedSink implements Sink {
  readonly #sink: Sink;
  readonly #hash = createHash("sha256");

  constructor(sink: Sink) {
    this.#sink = sink;
  }

  get path(): string | undefined {
    return this.#sink.path;
  }

  begin(headSize: number | undefined): Promise<void> {
    return this.#sink.begin(headSize);
  }

  append(bytes: Uint8Array): Promise<void> {
    this.#hash.update(bytes);
    return this.#sink.append(bytes);
  }

  finish(head: Uint8Array): Promise<void> {
    return this.#sink.finish(head);
  }

  abort(): Promise<void> {
    return this.#sink.abort();
  }

  sha256(): string {
    return this.#hash.digest("hex");
  }
}
