import { ByteBuffer, encodeUtf8, sha256, viewOf } from "./bytes.js";
import { crc32c } from "./crc32c.js";
import { type EncodeOptions, encodeEntry } from "./encode.js";
import { broken, invalid, located, ShardError } from "./errors.js";
import { Identity, schemaDigest } from "./identity.js";
import { canonicalBytes, type JsonObject, parseJsonObject } from "./json.js";
import {
  alignUp,
  type Codec,
  checksumsFlag,
  codecs,
  contentTypesFlag,
  type Header,
  headerSize,
  type IndexEntry,
  identityEntry,
  indexEntrySize,
  isAlignment,
  littleEndianFlag,
  packEntry,
  packHeader,
  reservedHeadFlag,
  roomForName,
  schemaFlag,
  version,
} from "./layout.js";
import { ContentType, defaultLimits, Role } from "./registry.js";
import { checkSchema } from "./schema.js";
import type { Sink } from "./sink.js";
import { xxh64 } from "./xxh64.js";
import type { ZstdProvider } from "./zstd.js";

const longestName = 65535;
/** Padding: no alignment needs more. */
const zeros = /* @__PURE__ */ new Uint8Array(64);

/** How a file is written. */
export interface WriterOptions {
  /** What the file is for; see Role. */
  role?: number;
  /** Every entry starts on a multiple of this: 0, 16, 32 or 64 (the default). */
  alignment?: number;
  /** How entries are stored that do not say it themselves. */
  compression?: Codec;
  /** Level of zstd, 3 unless it is given. */
  level?: number;
  /** Compresses zstd entries. */
  zstd?: ZstdProvider;
  /** The schema section. */
  schema?: JsonObject;
  /** Adds the entry `meta/identity` at the end. */
  identity?: boolean;
  /** Names of all entries in order: a file on disk is then written in place, and the bytes are the same. */
  names?: readonly string[];
  /** Reserves a head for at most this number of entries: a file on disk is then written in place. */
  maxEntries?: number;
}

/** How one entry is written. */
export interface EntryOptions extends EncodeOptions {
  /** A hint about what the entry holds; see ContentType. */
  contentType?: number;
  /** Bit k is the k-th name of the schema's `tag_dictionary`. */
  tagBits?: number;
}

/** Writes entries one by one. The file is complete when `finish` returns. */
export class ShardWriter {
  readonly #sink: Sink;
  readonly #options: WriterOptions;
  readonly #role: number;
  readonly #alignment: number;
  /** Of the head; undefined until it is known. */
  readonly #headSize: number | undefined;
  readonly #rows: IndexEntry[] = [];
  /** As they stand in the string table. */
  readonly #names = new ByteBuffer();
  readonly #digests = new Map<string, string>();
  readonly #seen = new Set<string>();
  /** Bytes of data. Offsets count from the start of the data section until the end. */
  #position = 0;
  #state: "open" | "done" | "failed" = "open";
  /** Calls are done one after the other, even if nobody waits for them. */
  #last: Promise<unknown> = Promise.resolve();

  constructor(sink: Sink, options: WriterOptions = {}) {
    this.#sink = sink;
    this.#options = options;
    this.#role = options.role ?? Role.unknown;
    this.#alignment = options.alignment ?? 64;
    try {
      this.#check();
      this.#headSize = this.#knownHeadSize();
    } catch (error) {
      throw located(error, sink.path);
    }
  }

  #check(): void {
    const { compression = "none", maxEntries = 1, names, schema, level = 3 } = this.#options;
    if (!isAlignment(this.#alignment)) {
      throw invalid("unknown alignment", { expected: "0, 16, 32 or 64", found: this.#alignment });
    }
    if (!isUnsigned(this.#role, 0xff)) throw invalid("a role is a number from 0 to 255", { found: this.#role });
    if (!codecs.includes(compression)) throw invalid("unknown compression", { found: compression });
    if (!Number.isInteger(level)) throw invalid("the level is not an integer", { found: level });
    const most = Math.min(defaultLimits.maxEntries, Math.floor(defaultLimits.maxStringTableBytes / roomForName));
    if (!isUnsigned(maxEntries, most) || maxEntries === 0) {
      throw invalid("a head cannot be reserved for this number", { expected: `1 to ${most}`, found: maxEntries });
    }
    if (names !== undefined && this.#options.maxEntries !== undefined) {
      throw invalid("give names or maxEntries, not both");
    }
    if (schema !== undefined) schemaBytes(schema);
  }

  #knownHeadSize(): number | undefined {
    const { names, maxEntries, identity } = this.#options;
    if (names !== undefined) {
      const all = identity ? [...names, identityEntry] : names;
      const size = all.reduce((sum, name) => sum + nameBytes(name).length + this.#terminator, 0);
      return this.#sizeOfHead(all.length, size);
    }
    if (maxEntries === undefined) return undefined;
    return alignUp(headerSize + (indexEntrySize + roomForName) * maxEntries, this.#alignment);
  }

  /** Episodes have no NUL behind names (S-NAM-7). */
  get #terminator(): number {
    return this.#role === Role.wshard ? 0 : 1;
  }

  #sizeOfHead(count: number, namesSize: number): number {
    return alignUp(headerSize + indexEntrySize * count + namesSize, this.#alignment);
  }

  /** Writes an entry. Its bytes may be changed after the call is done. */
  async write(name: string, data: ArrayBufferView, options: EntryOptions = {}): Promise<void> {
    return this.#inTurn(async () => {
      if (name === identityEntry && this.#options.identity) throw invalid("the writer adds this entry itself");
      await this.#write(name, new Uint8Array(data.buffer, data.byteOffset, data.byteLength), options);
    }, name);
  }

  /** Writes the head and completes the file. */
  async finish(): Promise<void> {
    return this.#inTurn(async () => {
      try {
        await this.#finish();
        this.#state = "done";
      } catch (error) {
        await this.#fail();
        throw error;
      }
    });
  }

  /** Ends the writer without a file, unless it is finished. A second call does nothing. */
  async abort(): Promise<void> {
    await this.#last.catch(() => undefined);
    if (this.#state === "open") await this.#fail();
  }

  async #fail(): Promise<void> {
    this.#state = "failed";
    await this.#sink.abort();
  }

  #inTurn<T>(run: () => Promise<T>, entry?: string): Promise<T> {
    const turn = this.#last.then(async () => {
      try {
        if (this.#state !== "open") throw new ShardError("closed", "the writer is closed");
        return await run();
      } catch (error) {
        const problem = "there is not enough memory";
        const known = error instanceof RangeError ? new ShardError("limit_exceeded", problem, { cause: error }) : error;
        throw located(known, this.#sink.path, entry);
      }
    });
    this.#last = turn.catch(() => undefined);
    return turn;
  }

  async #write(name: string, data: Uint8Array, options: EntryOptions): Promise<void> {
    const { contentType = ContentType.unknown, tagBits = 0 } = options;
    if (!isUnsigned(contentType, 0xffff) || !isUnsigned(tagBits, 0xffff)) {
      throw invalid("content type and tag bits are numbers from 0 to 65535", { found: `${contentType}, ${tagBits}` });
    }
    const bytes = nameBytes(name);
    this.#checkPlace(name);
    const { compression = "none", level = 3, zstd } = this.#options;
    const { stored, flags } = await encodeEntry(data, { codec: compression, level, ...options }, zstd);
    const row = {
      nameOffset: this.#names.length,
      nameLength: bytes.length,
      flags,
      diskSize: stored.length,
      origSize: data.length,
      crc32c: crc32c(data),
      contentType,
      tagBits,
    };
    if (this.#options.identity && name !== identityEntry) this.#digests.set(name, await sha256(data));
    this.#rows.push({ ...row, dataOffset: await this.#append(stored) });
    this.#names.append(bytes);
    this.#names.append(zeros.subarray(0, this.#terminator));
    this.#seen.add(name);
  }

  /** Writes a block on the next aligned offset, and returns the offset. */
  async #append(stored: Uint8Array): Promise<number> {
    const start = alignUp(this.#position, this.#alignment);
    try {
      if (this.#rows.length === 0) await this.#sink.begin(this.#headSize);
      if (start > this.#position) await this.#sink.append(zeros.subarray(0, start - this.#position));
      if (stored.length > 0) await this.#sink.append(stored);
    } catch (error) {
      await this.#fail();
      throw error;
    }
    this.#position = start + stored.length;
    return start;
  }

  #checkPlace(name: string): void {
    const { names, maxEntries } = this.#options;
    const place = this.#rows.length;
    if (this.#seen.has(name)) throw broken("duplicate_name", "S-NAM-4", "the entry is written twice");
    if (names !== undefined && name !== identityEntry && names[place] !== name) {
      throw invalid("another entry was announced for this place", { expected: names[place] ?? "no more entries" });
    }
    const most = maxEntries ?? defaultLimits.maxEntries;
    if (place >= most) {
      throw new ShardError("limit_exceeded", "more entries than a head has room for", { expected: `at most ${most}` });
    }
  }

  async #finish(): Promise<void> {
    const { schema, identity, names } = this.#options;
    if (names !== undefined && this.#rows.length < names.length) {
      const details = { expected: names.length, found: this.#rows.length };
      throw invalid("not all announced entries were written", details);
    }
    if (identity) {
      const made = new Identity(this.#digests, this.#role, await schemaDigest(schema));
      const text = encodeUtf8(made.text()) as Uint8Array;
      await this.#write(identityEntry, text, { contentType: ContentType.json, codec: "none" });
    }
    const section = schema === undefined ? undefined : schemaBytes(schema);
    const head = this.#head(section?.length ?? 0);
    if (this.#rows.length === 0) await this.#sink.begin(this.#headSize);
    if (section) await this.#sink.append(section);
    await this.#sink.finish(head);
  }

  /** Header, index and names, up to the data section. */
  #head(schemaSize: number): Uint8Array {
    const count = this.#rows.length;
    const needed = this.#sizeOfHead(count, this.#names.length);
    const size = this.#headSize ?? needed;
    const tableStart = headerSize + indexEntrySize * count;
    if (needed > size || size - tableStart > defaultLimits.maxStringTableBytes) {
      const details = { expected: `at most ${size} bytes`, found: needed };
      throw new ShardError("limit_exceeded", "the names need more room than the head has", details);
    }
    const bytes = new Uint8Array(size);
    const view = viewOf(bytes);
    bytes.set(this.#names.bytes, tableStart);
    this.#rows.forEach((row, i) => {
      const nameStart = tableStart + row.nameOffset;
      const hash = xxh64(bytes.subarray(nameStart, nameStart + row.nameLength));
      const placed = { ...row, dataOffset: row.dataOffset + size };
      packEntry(view, headerSize + indexEntrySize * i, placed, hash);
    });
    bytes.set(packHeader(this.#header(size, schemaSize)));
    return bytes;
  }

  #header(headSize: number, schemaSize: number): Header {
    const dataEnd = headSize + this.#position;
    let flags: number = littleEndianFlag | checksumsFlag;
    if (this.#options.schema !== undefined) flags |= schemaFlag;
    if (this.#options.maxEntries !== undefined) flags |= reservedHeadFlag;
    if (this.#rows.some((row) => row.contentType !== 0)) flags |= contentTypesFlag;
    return {
      version,
      role: this.#role,
      flags,
      alignment: this.#alignment,
      compressionDefault: codecs.indexOf(this.#options.compression ?? "none"),
      indexEntrySize,
      entryCount: this.#rows.length,
      stringTableOffset: headerSize + indexEntrySize * this.#rows.length,
      dataSectionOffset: headSize,
      schemaOffset: this.#options.schema === undefined ? 0 : dataEnd,
      totalFileSize: dataEnd + schemaSize,
    };
  }
}

function isUnsigned(value: number, largest: number): boolean {
  return Number.isInteger(value) && value >= 0 && value <= largest;
}

/** S-NAM-6 */
function nameBytes(name: string): Uint8Array {
  const bytes = encodeUtf8(name);
  if (bytes !== undefined && bytes.length > 0 && bytes.length <= longestName && !name.includes("\0")) return bytes;
  const expected = `1 to ${longestName} bytes of UTF-8 without NUL`;
  throw invalid("the name cannot be stored", { rule: "S-NAM-6", expected });
}

/** The schema section, which readers must accept. */
function schemaBytes(schema: JsonObject): Uint8Array {
  const bytes = canonicalBytes(schema);
  try {
    checkSchema(parseJsonObject(bytes));
  } catch (cause) {
    if (cause instanceof ShardError && cause.code === "limit_exceeded") throw cause;
    throw invalid("the schema section is wrong", { cause });
  }
  return bytes;
}
