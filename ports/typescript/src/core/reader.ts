import { concat } from "./bytes.js";
import { checkChecksum, checkSizes, codecOf, decodeEntry, decodeRun, hasChecksum, isFiltered } from "./content.js";
import { broken, invalid, located, ShardError } from "./errors.js";
import { type Filters, filterFrameSize, filterHeadSize, maxDescription, parseFilters } from "./filters.js";
import { Index, parseHeader } from "./head.js";
import { checkJsonSize, type JsonObject, parseJsonObject } from "./json.js";
import type { Codec, Header, IndexEntry } from "./layout.js";
import { defaultLimits, type Limits } from "./registry.js";
import { checkSchema } from "./schema.js";
import { type SeekFrame, SeekTable, seekTableSize, seekTailSize } from "./seekable.js";
import { type ReadOptions, type Source, type SourceLike, toSource } from "./source.js";
import { loadZstd, type Zstd, type ZstdProvider } from "./zstd.js";

/** How much is read at once of pieces that follow each other. */
const readAhead = 65536;
/** How much of a window's surroundings is read before it is known where its frames are, and how much at most. */
const slack = 2 * readAhead;
const mostGuessed = 128 * readAhead;

/** How a file is read. */
export interface OpenOptions {
  /** Decodes zstd entries. */
  zstd?: ZstdProvider;
  /** What the file may ask for; raise one for files that you trust. */
  limits?: Partial<Limits>;
  /** False leaves out the checksums of entries. Structure is always checked. */
  checksums?: boolean;
}

/** What the index says about one entry. */
export interface Entry {
  readonly name: string;
  /** Undefined if the flags of the entry contradict each other; reading it says why. */
  readonly codec: Codec | undefined;
  /** A hint about what the entry holds; see ContentType. */
  readonly contentType: number;
  /** Bit k is the k-th name of the schema's `tag_dictionary`. */
  readonly tagBits: number;
  readonly dataOffset: number;
  /** Stored bytes. */
  readonly diskSize: number;
  /** Bytes after decompression. A number above 2⁵³ is not exact, and such an entry cannot be read. */
  readonly origSize: number;
  /** CRC-32C of the content; undefined if the file has none of this entry. */
  readonly crc32c: number | undefined;
  readonly isFiltered: boolean;
}

interface Seeking {
  table?: SeekTable | undefined;
  filters?: Filters | undefined;
}

/** Opens a file: bytes, a Blob, a URL or anything that reads at an offset. Close the reader of a source that needs it. */
export async function openShard(source: SourceLike, options: OpenOptions = {}): Promise<ShardReader> {
  const from = toSource(source);
  try {
    const { size, head: first } = await from.start();
    const limits = { ...defaultLimits, ...options.limits };
    const header = parseHeader(first, size, limits);
    let head = first;
    if (header.dataSectionOffset > first.length) {
      head = concat([first, await from.read(first.length, header.dataSectionOffset - first.length)]);
    }
    return new ShardReader(from, head, header, limits, options);
  } catch (error) {
    await from.close();
    throw located(error, from.path);
  }
}

/** Gives the entries of a file by name. `openShard` makes one. */
export class ShardReader {
  declare readonly source: Source;
  declare readonly header: Header;
  declare readonly limits: Readonly<Limits>;
  /** The index as it is stored, for tools that check files. */
  declare readonly index: Index;
  /** The first bytes of the file: 64 at least. */
  declare readonly head: Uint8Array;
  readonly #zstdProvider: ZstdProvider | undefined;
  readonly #checksums: boolean;
  readonly #seekings = new Map<string, Promise<Seeking>>();
  #zstd: Promise<Zstd> | undefined;
  #closed = false;
  /** Where the last read ended, and what was read behind it. */
  #lastEnd = Number.POSITIVE_INFINITY;
  #ahead: { start: number; bytes: Uint8Array } = { start: 0, bytes: new Uint8Array(0) };

  /** Use `openShard`. */
  constructor(source: Source, head: Uint8Array, header: Header, limits: Limits, options: OpenOptions) {
    this.source = source;
    this.header = header;
    this.limits = limits;
    this.head = head;
    this.index = new Index(head, header, limits);
    this.#zstdProvider = options.zstd;
    this.#checksums = options.checksums ?? true;
  }

  /** The path or URL of the file; undefined if it has none. */
  get path(): string | undefined {
    return this.source.path;
  }

  /** All names, in the order of the index. */
  get names(): readonly string[] {
    return this.index.names;
  }

  /** Ends the reader and closes its source. A second call does nothing. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.source.close();
  }

  has(name: string): boolean {
    return this.index.find(name) !== undefined;
  }

  /** What the index says about an entry. Nothing is read. */
  entry(name: string): Entry {
    try {
      return this.#entry(name, this.#row(name));
    } catch (error) {
      throw located(error, this.path, name);
    }
  }

  /** What the index says about all entries, in its order. */
  *entries(): Generator<Entry> {
    for (const name of this.names) yield this.entry(name);
  }

  /**
   * All bytes of an entry, decompressed and checked. They can be a view of the bytes that were opened, and of other
   * entries: do not change them.
   */
  async read(name: string, options?: ReadOptions): Promise<Uint8Array> {
    return this.#located(name, async () => {
      const row = this.#row(name);
      const codec = checkSizes(row, this.header, this.limits);
      const stored = await this.readStored(row.dataOffset, row.diskSize, options);
      const content =
        codec === "none" ? stored : await decodeEntry(row, codec, stored, this.limits, () => this.#loadZstd());
      if (this.#checksums && hasChecksum(row, this.header)) checkChecksum(row, content);
      return content;
    });
  }

  /**
   * The bytes of an entry from `start` up to, not including, `end`. Of a seekable entry only the frames that hold them
   * are read, decoded and checked; of a raw entry only the bytes themselves are read, without a check.
   */
  async readRange(name: string, start: number, end: number, options?: ReadOptions): Promise<Uint8Array> {
    return this.#located(name, async () => {
      const row = this.#row(name);
      const codec = checkSizes(row, this.header, this.limits);
      const size = row.origSize;
      if (!Number.isInteger(start) || !Number.isInteger(end) || start < 0 || start > end || end > size) {
        throw invalid("the range is outside the entry", { expected: `0 to ${size}`, found: `${start} to ${end}` });
      }
      if (start === end) return new Uint8Array(0);
      if (codec === "none") return this.readStored(row.dataOffset + start, end - start, options);
      const isKnown = this.#seekings.has(name);
      const seeking = this.#seeking(name, row);
      if (!isKnown && codec === "zstd") await this.#guess(row, start, end, options);
      const { table, filters } = await seeking;
      if (!table) return (await this.read(name, options)).subarray(start, end);
      const first = table.frameAt(start);
      const last = table.frameAt(end - 1) + 1;
      const from = table.stored[first];
      const stored = await this.readStored(row.dataOffset + from, table.stored[last] - from, options);
      const run = await decodeRun(stored, table, first, last, filters, this.limits, await this.#loadZstd());
      return run.subarray(start - table.content[first], end - table.content[first]);
    });
  }

  /** An entry that must be a JSON object. `rule` is the rule of the specification that says so. */
  async readJson(name: string, rule = "S-SCH-2"): Promise<JsonObject> {
    return this.#located(name, async () => {
      const what = "the entry";
      checkJsonSize(this.#row(name).origSize, what, this.limits.maxJsonBytes);
      return parseJsonObject(await this.read(name), { what, rule, ...this.limits });
    });
  }

  /** The schema section; undefined if the file has none. */
  async schema(): Promise<JsonObject | undefined> {
    return this.#located(undefined, async () => {
      const { schemaOffset, dataSectionOffset, totalFileSize } = this.header;
      if (schemaOffset === 0) return undefined;
      const blocks = this.index.inOrder();
      const start = Math.max(dataSectionOffset, blocks.at(-1)?.end ?? 0);
      if (schemaOffset < start || schemaOffset > totalFileSize) {
        const details = { expected: `${start} to ${totalFileSize}`, found: schemaOffset };
        throw broken("bad_metadata", "S-SCH-1", "the schema section is out of range", details);
      }
      const what = "the schema section";
      const size = totalFileSize - schemaOffset;
      checkJsonSize(size, what, this.limits.maxJsonBytes);
      const schema = parseJsonObject(await this.readStored(schemaOffset, size), { what, ...this.limits });
      checkSchema(schema);
      return schema;
    });
  }

  /** The frames of a seekable entry; undefined for any other. */
  async seekFrames(name: string): Promise<SeekFrame[] | undefined> {
    return this.#located(name, async () => {
      const { table } = await this.#seeking(name, this.#row(name));
      return table && Array.from({ length: table.count }, (_, i) => table.frame(i));
    });
  }

  /** What was done to the frames of an entry before they were compressed; undefined for nothing. */
  async filters(name: string): Promise<Filters | undefined> {
    return this.#located(name, async () => (await this.#filters(this.#row(name)))?.filters);
  }

  /** Bytes of the file. Short pieces that follow each other are fetched together. */
  async readStored(offset: number, length: number, options?: ReadOptions): Promise<Uint8Array> {
    if (this.#closed) throw new ShardError("closed", "the reader is closed");
    const end = offset + length;
    if (end <= this.head.length) return this.head.subarray(offset, end);
    const { start, bytes } = this.#ahead;
    if (offset >= start && end <= start + bytes.length) return bytes.subarray(offset - start, end - start);
    const cut = offset < start ? start : start + bytes.length;
    if (this.source.isRemote && offset < cut && cut < end) {
      // Some of it was read ahead: only the rest is asked for.
      const parts = [this.readStored(offset, cut - offset, options), this.readStored(cut, end - cut, options)];
      return concat(await Promise.all(parts));
    }
    const distance = offset - this.#lastEnd;
    this.#lastEnd = end;
    if (distance < 0 || distance >= readAhead || length >= readAhead) return this.source.read(offset, length, options);
    const found = await this.source.read(offset, Math.min(readAhead, this.header.totalFileSize - offset), options);
    this.#ahead = { start: offset, bytes: found };
    return found.subarray(0, length);
  }

  #row(name: string): IndexEntry {
    const number = this.index.find(name);
    if (number === undefined) throw new ShardError("entry_not_found", "no such entry");
    return this.index.row(number);
  }

  #entry(name: string, row: IndexEntry): Entry {
    let codec: Codec | undefined;
    try {
      codec = codecOf(row, this.header);
    } catch {
      // One damaged entry does not hide the others.
    }
    const { nameOffset, nameLength, flags, ...facts } = row;
    const crc32c = hasChecksum(row, this.header) ? row.crc32c : undefined;
    return { name, codec, ...facts, crc32c, isFiltered: isFiltered(row) };
  }

  #loadZstd(): Promise<Zstd> {
    this.#zstd ??= loadZstd(this.#zstdProvider);
    return this.#zstd;
  }

  /** How to read parts of an entry. Kept, because parts are read again and again. */
  #seeking(name: string, row: IndexEntry): Promise<Seeking> {
    let found = this.#seekings.get(name);
    if (!found) {
      found = this.#readSeeking(row);
      this.#seekings.set(name, found);
      found.catch(() => this.#seekings.delete(name)); // the next call may have more luck
    }
    return found;
  }

  async #readSeeking(row: IndexEntry): Promise<Seeking> {
    if (codecOf(row, this.header) !== "zstd") return {};
    const disk = row.diskSize;
    const end = row.dataOffset + disk;
    const first = Math.min(disk, seekTailSize);
    const [tail, described] = await Promise.all([this.readStored(end - first, first), this.#filters(row)]);
    const size = seekTableSize(tail, disk);
    if (size === 0) return {};
    const bytes = size <= first ? tail.subarray(first - size) : await this.readStored(end - size, size);
    const table = SeekTable.parse(bytes, disk, row.origSize, described?.size ?? 0);
    return { table, filters: described?.filters };
  }

  /**
   * Reads ahead where the frames of a window are if all compress alike. Only the seek table says where they are, but a
   * remote source gives both in one round trip.
   */
  async #guess({ dataOffset, diskSize, origSize }: IndexEntry, from: number, to: number, options?: ReadOptions) {
    const ratio = diskSize / origSize;
    const start = dataOffset + Math.max(0, Math.floor(from * ratio) - slack);
    const size = dataOffset + Math.min(diskSize, Math.ceil(to * ratio) + slack) - start;
    if (this.source.isRemote && size <= mostGuessed) {
      this.#ahead = { start, bytes: await this.readStored(start, size, options) };
    }
  }

  /** The filters of an entry and the size of the frame that describes them. */
  async #filters(row: IndexEntry): Promise<{ filters: Filters; size: number } | undefined> {
    if (!isFiltered(row)) return undefined;
    codecOf(row, this.header);
    const disk = row.diskSize;
    const head = await this.readStored(row.dataOffset, Math.min(disk, filterHeadSize + maxDescription));
    const size = filterFrameSize(head, disk);
    return { filters: parseFilters(head.subarray(filterHeadSize, size)), size };
  }

  async #located<T>(entry: string | undefined, run: () => Promise<T>): Promise<T> {
    try {
      return await run();
    } catch (error) {
      throw located(error instanceof RangeError ? noMemory(error) : error, this.path, entry);
    }
  }
}

/** What is wrong if an array cannot be made. */
function noMemory(cause: RangeError): ShardError {
  return new ShardError("limit_exceeded", "the entry does not fit in memory", { cause });
}
