// Set files: one small file that knows all shards of a set (spec/shardpack.md, section 9.3).

import { fromHex } from "../core/bytes.js";
import { broken, invalid, located, ShardError, shortened } from "../core/errors.js";
import { isInteger, isObject, type JsonObject } from "../core/json.js";
import { type Manifest, type ManifestRow, readManifest } from "../core/manifest.js";
import { openShard } from "../core/reader.js";
import { type Source, type SourceLike, toSource } from "../core/source.js";
import { type Footer, footerSize, readFooter } from "./layout.js";
import { openShardPack, type ShardPackReader } from "./reader.js";
import type { PackRecord } from "./record.js";
import { countNumbers, isFileName } from "./set-names.js";
import type { PackOptions } from "./shard-bytes.js";
import { checkFooter } from "./shard-index.js";

export const setFormat = "shardpack-set";
export const setVersion = 1;
export const mostShards = 32_768;
const mostParts = 65_536;
const longestRevision = 255;

/** Opens a set file, with its folder: shards are read through the source's `sibling`. No shard is looked at. */
export async function openShardSet(given: SourceLike, options: PackOptions = {}): Promise<ShardSet> {
  const source = toSource(given);
  const reader = await openShard(source, options);
  try {
    const manifest = await readManifest(reader);
    return new ShardSet(source, manifest, options);
  } catch (error) {
    await source.close();
    throw located(error, source.path);
  }
}

/** A dataset of many shards. Shards are opened when they are first needed. `openShardSet` makes one. */
export class ShardSet {
  /** `name`, `revision`, `created`, `user`, `schema`, `records` and others. */
  readonly fields: JsonObject;
  /** The names of the shards, in order. */
  readonly names: readonly string[];
  /** What the last bytes of each shard must say. */
  readonly footers: readonly Footer[];
  readonly #source: Source;
  readonly #options: PackOptions;
  readonly #shards = new Map<number, Promise<ShardPackReader>>();
  /** The number of the first record of each shard, and of all records. */
  readonly #starts: number[] = [0];

  /** Use `openShardSet`. Throws a ShardError if the manifest breaks a rule of set files. */
  constructor(source: Source, manifest: Manifest, options: PackOptions) {
    const { files: _files, ...fields } = manifest.fields;
    checkSetFields(manifest.fields, manifest.files.length);
    this.fields = fields;
    this.names = manifest.files.map((row) => row.uri);
    this.footers = manifest.files.map(rowFooter);
    for (const { recordCount } of this.footers) this.#starts.push(this.length + recordCount);
    if (!isInteger(manifest.fields, "records") || fields["records"] !== this.length) {
      const details = { expected: this.length, found: shortened(String(fields["records"])) };
      throw broken("size_mismatch", "P-SET-3", "'records' is not the sum of the shards", details);
    }
    this.#source = source;
    this.#options = options;
  }

  /** The number of records of all shards. */
  get length(): number {
    return this.#starts[this.#starts.length - 1];
  }

  /** A shard by its place in `names`. It stays open until the set is closed. */
  shard(number: number): Promise<ShardPackReader> {
    let shard = this.#shards.get(number);
    if (shard === undefined) {
      shard = this.#open(number);
      this.#shards.set(number, shard);
      // A failure may pass: the next call tries again.
      shard.catch(() => this.#shards.delete(number));
    }
    return shard;
  }

  async #open(number: number): Promise<ShardPackReader> {
    const name = this.names[number];
    if (name === undefined) {
      throw invalid("the set has no shard of this number", { path: this.#source.path, found: number });
    }
    if (this.#source.sibling === undefined) throw invalid("this source cannot open the files beside the set file");
    let shard: ShardPackReader;
    try {
      shard = await openShardPack(await this.#source.sibling(name), this.#options);
    } catch (error) {
      throw missingShard(error, name, await this.#interruption()) ?? error;
    }
    const differs = difference(this.footers[number], shard.footer);
    if (differs === undefined) return shard;
    await shard.close();
    const details = { path: shard.path, ...differs };
    const problem = `not the shard that the set file names${await this.#interruption()}`;
    throw broken("reference_mismatch", "P-SET-7", problem, details);
  }

  /**
   * What to do if the Python library was stopped while it replaced the shards of this folder: some of them are new, and the
   * set file may be old. It finishes that when it opens the set.
   */
  async #interruption(): Promise<string> {
    if (this.#source.isRemote || this.#source.sibling === undefined) return "";
    try {
      await (await this.#source.sibling(".shardpack-switch")).close();
    } catch (error) {
      if (error instanceof ShardError && error.code === "missing_file") return "";
      throw error;
    }
    return ": the set is being replaced, or that was interrupted; `shardpack info` of the Python library finishes it";
  }

  /** The record of this number, counted over all shards. */
  async record(number: number): Promise<PackRecord> {
    if (!Number.isInteger(number) || number < 0 || number >= this.length) {
      const details = { path: this.#source.path, expected: `0 or more, below ${this.length}`, found: number };
      throw invalid("the set has no record of this number", details);
    }
    let low = 0;
    for (let high = this.names.length; high - low > 1; ) {
      const middle = (low + high) >> 1;
      if (this.#starts[middle] <= number) low = middle;
      else high = middle;
    }
    return await (await this.shard(low)).record(number - this.#starts[low]);
  }

  /** The number of the record with this key; undefined if there is none. Opens all shards. */
  async find(key: string): Promise<number | undefined> {
    let found: number | undefined;
    for (let number = 0; number < this.names.length; number++) {
      const inside = await (await this.shard(number)).find(key);
      if (inside === undefined) continue;
      if (found !== undefined) {
        const problem = `the key ${JSON.stringify(shortened(key))} occurs twice in the set`;
        throw broken("duplicate_name", "P-REC-10", problem, { path: this.#source.path });
      }
      found = this.#starts[number] + inside;
    }
    return found;
  }

  /** The record with this key. Throws `entry_not_found` if there is none. */
  async byKey(key: string): Promise<PackRecord> {
    const number = await this.find(key);
    if (number !== undefined) return await this.record(number);
    const problem = `the set has no record with the key ${JSON.stringify(shortened(key))}`;
    throw new ShardError("entry_not_found", problem, { path: this.#source.path });
  }

  /** All records, shard by shard. */
  async *records(): AsyncGenerator<PackRecord> {
    for (let number = 0; number < this.names.length; number++) yield* (await this.shard(number)).records();
  }

  [Symbol.asyncIterator](): AsyncGenerator<PackRecord> {
    return this.records();
  }

  /** Closes all shards. */
  async close(): Promise<void> {
    const opened = [...this.#shards.values()];
    this.#shards.clear();
    for (const shard of opened) await (await shard.catch(() => undefined))?.close();
    await this.#source.close();
  }
}

/** The error about a shard that does not exist; undefined if the error is about something else. */
function missingShard(error: unknown, name: string, why: string): ShardError | undefined {
  if (!(error instanceof ShardError)) return undefined;
  const isMissing = error.code === "missing_file" || (error.code === "io_error" && error.found === "404");
  if (!isMissing) return undefined;
  const problem = `the set file names the shard ${JSON.stringify(name)}, which does not exist${why}`;
  return broken("missing_file", "P-SET-7", problem, { path: error.path });
}

function difference(expected: Footer, found: Footer): { expected: string; found: string } | undefined {
  for (const field of Object.keys(expected) as (keyof Footer)[]) {
    if (expected[field] === found[field]) continue;
    return { expected: `${field} ${expected[field]}`, found: `${found[field]}` };
  }
  return undefined;
}

/** Checks the fields of a set file (P-SET-1, P-SET-5, P-SET-6). */
function checkSetFields(fields: JsonObject, shards: number): void {
  const { format, version, name, revision, created, user, schema, part, parts } = fields;
  if (format !== setFormat) {
    const details = { expected: setFormat, found: shortened(String(format)) };
    throw broken("bad_metadata", "P-SET-1", "the manifest is not a set file", details);
  }
  if (version !== setVersion || !isInteger(fields, "version")) {
    const details = { expected: setVersion, found: shortened(String(version)) };
    throw broken("unsupported_version", "P-SET-1", "the set file has an unknown version", details);
  }
  if (shards === 0) throw broken("bad_metadata", "P-SET-5", "the set has no shards");
  if (shards > mostShards) {
    const details = { expected: `at most ${mostShards}`, found: shards };
    throw broken("limit_exceeded", "P-SET-5", "the set has too many shards", details);
  }
  const wrong = (field: string, expected: string) =>
    broken("bad_metadata", "P-SET-6", `'${field}' of the set file is wrong`, { expected });
  if (typeof name !== "string" || !isFileName(name) || countNumbers(name) !== 1) {
    throw wrong("name", "a file name with one number");
  }
  const characters = typeof revision === "string" ? [...revision].length : 0;
  if (characters < 1 || characters > longestRevision) throw wrong("revision", `1 to ${longestRevision} characters`);
  if (typeof created !== "string") throw wrong("created", "a string");
  if (!isObject(user)) throw wrong("user", "an object");
  if (schema !== undefined && !isObject(schema)) throw wrong("schema", "an object");
  if (part === undefined && parts === undefined) return;
  const areIntegers = isInteger(fields, "part") && isInteger(fields, "parts");
  if (!areIntegers || !(1 <= Number(part) && Number(part) <= Number(parts) && Number(parts) <= mostParts)) {
    throw wrong("part", `an integer from 1 to 'parts', which is at most ${mostParts}`);
  }
}

/** The footer that a row states, after all rules about rows are checked (P-SET-2 to P-SET-4). */
function rowFooter(row: ManifestRow, number: number): Footer {
  const { uri, sha256, size, records, footer: text } = row;
  const what = `row ${number} of the set file`;
  if (!isFileName(uri)) {
    throw broken("unsafe_path", "P-SET-4", `${what} does not name a file beside it`, { found: shortened(uri) });
  }
  const incomplete = (expected: string) => broken("bad_metadata", "P-SET-2", `${what} is incomplete`, { expected });
  if ((sha256 ?? null) === null || (size ?? null) === null) throw incomplete("sha256 and size");
  if (!isInteger(row, "records")) throw incomplete("an integer under 'records'");
  const stored = typeof text === "string" && text.length === 2 * footerSize ? fromHex(text) : undefined;
  if (stored === undefined) throw incomplete(`${2 * footerSize} lower-case hex digits under 'footer'`);
  let footer: Footer;
  try {
    footer = checkFooter(stored, readFooter(stored).totalSize, stored);
  } catch (cause) {
    throw broken("bad_metadata", "P-SET-2", `${what} has a bad footer`, { cause });
  }
  if (size !== footer.totalSize || records !== footer.recordCount) {
    const expected = `${footer.totalSize} bytes, ${footer.recordCount} records`;
    const details = { expected, found: `${size} bytes, ${records} records` };
    throw broken("size_mismatch", "P-SET-3", `${what} contradicts its footer`, details);
  }
  return footer;
}
