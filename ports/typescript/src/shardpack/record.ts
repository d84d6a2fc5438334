// A record: its head, its metadata and its entries (spec/shardpack.md, sections 2 to 6).

import { decodeUtf8, viewOf } from "../core/bytes.js";
import { crc32c } from "../core/crc32c.js";
import { broken, located, ShardError, shortened } from "../core/errors.js";
import { parseJsonObject } from "../core/json.js";
import { alignUp } from "../core/layout.js";
import {
  decodeContent,
  type EncodingName,
  encodings,
  type MetadataEncodingName,
  metadataEncodings,
} from "./encodings.js";
import {
  alignments,
  checked,
  headParts,
  kindLengthsSize,
  largestHead,
  largestRecordMetadata,
  leastRecordSize,
  longestContentType,
  longestKey,
  mostEntries,
  type RecordFields,
  type Row,
  readKindLengths,
  readRecordFields,
  readRow,
  recordHeadSize,
  recordMarker,
  version,
} from "./layout.js";
import { decodeMessagePack, type MessagePackMap, plainMap } from "./messagepack.js";
import type { ShardBytes } from "./shard-bytes.js";

/** How many bytes of a record to read first: they hold the head of nearly every record. */
export const firstRead = 4096;

/** Checks what the first 32 bytes of a record say, before more of it is read. `size` is the size of the record. */
export function checkFields(first: Uint8Array, size: number): RecordFields {
  if (size < leastRecordSize || first.length < recordHeadSize) {
    const details = { expected: `at least ${leastRecordSize} bytes`, found: size };
    throw broken("bad_offset", "P-REC-1", "a record is smaller than its head", details);
  }
  const fields = readRecordFields(first);
  if (fields.marker !== recordMarker) throw broken("bad_magic", "P-REC-2", "no record starts here");
  if (fields.version !== version) {
    const details = { expected: version, found: fields.version };
    throw broken("unsupported_version", "P-REC-3", "a record has an unknown version", details);
  }
  const { metadataEncoding, alignment, flags, keySize, entryCount, metadataSize } = fields;
  if (metadataEncoding >= metadataEncodings.length || !alignments.includes(alignment) || flags !== 0) {
    const found = `metadata encoding ${metadataEncoding}, alignment ${alignment}, flags ${flags}`;
    throw broken("bad_header", "P-REC-4", "the head of a record has a value that is not allowed", { found });
  }
  if (keySize === 0) throw broken("bad_name", "P-REC-5", "the key of a record is empty");
  checkLimit("P-REC-5", "the key of a record", keySize, longestKey);
  checkLimit("P-REC-6", "the number of entries of a record", entryCount, mostEntries);
  checkLimit("P-REC-6", "the metadata of a record", metadataSize, largestRecordMetadata);
  const headSize = headParts(fields).end;
  checkLimit("P-REC-6", "the head of a record", headSize, largestHead);
  if (fields.recordSize !== size) {
    const details = { expected: `${size} bytes`, found: `${fields.recordSize} bytes` };
    throw broken("size_mismatch", "P-REC-7", "a record does not have the size that the index states", details);
  }
  if (headSize > size) {
    const details = { expected: `at most ${size} bytes`, found: `${headSize} bytes` };
    throw broken("bad_offset", "P-REC-7", "the head of a record is larger than the record", details);
  }
  return fields;
}

function checkLimit(rule: string, what: string, found: number, most: number): void {
  if (found > most)
    throw broken("limit_exceeded", rule, `${what} is too large`, { expected: `at most ${most}`, found });
}

/** The head of a record, whose bytes must all be there. Pure: nothing else is read. */
export class RecordHead {
  readonly fields: RecordFields;
  readonly names: readonly string[];
  readonly contentTypes: readonly string[];
  /** The metadata as it is stored. */
  readonly metadata: Uint8Array;
  readonly #bytes: Uint8Array;
  /** Where the stored bytes of each entry start, from the start of the record. */
  readonly #starts: Float64Array;

  constructor(data: Uint8Array, fields: RecordFields) {
    const parts = headParts(fields);
    const bytes = data.subarray(0, parts.end);
    const found = crc32c(bytes);
    if (found !== checked) throw broken("checksum_mismatch", "P-REC-8", "the head of a record is damaged");
    this.fields = fields;
    this.#bytes = bytes;
    this.metadata = bytes.subarray(parts.metadata, parts.checksum);
    const kinds = readKinds(bytes.subarray(parts.kinds, parts.key), fields.entryCount);
    this.names = kinds.names;
    this.contentTypes = kinds.contentTypes;
    this.#starts = new Float64Array(fields.entryCount);
    const view = viewOf(bytes);
    let end = parts.end;
    for (let number = 0; number < fields.entryCount; number++) {
      const start = alignUp(end, fields.alignment);
      this.#starts[number] = start;
      end = start + readRow(view, number).storedSize;
    }
  }

  get size(): number {
    return this.#bytes.length;
  }

  get key(): string {
    const { key, metadata } = headParts(this.fields);
    return readName(this.#bytes.subarray(key, metadata), "P-REC-5", "the key of a record");
  }

  row(number: number): Row {
    return readRow(viewOf(this.#bytes), number);
  }

  start(number: number): number {
    return this.#starts[number];
  }
}

function readName(stored: Uint8Array, rule: string, what: string): string {
  const text = decodeUtf8(stored);
  if (text === undefined) throw broken("bad_name", rule, `${what} is not valid UTF-8`);
  if (text === "") throw broken("bad_name", rule, `${what} is empty`);
  if (text.includes("\0")) throw broken("bad_name", rule, `${what} contains U+0000`);
  return text;
}

/** Names and content types of the entries of a record (P-KND). */
function readKinds(stored: Uint8Array, count: number): { names: string[]; contentTypes: string[] } {
  const view = viewOf(stored);
  const names: string[] = [];
  const contentTypes: string[] = [];
  const wrongSize = () =>
    broken("size_mismatch", "P-KND-1", "names and content types of a record do not fill their space");
  let at = 0;
  for (let number = 0; number < count; number++) {
    if (at + kindLengthsSize > stored.length) throw wrongSize();
    const lengths = readKindLengths(view, at);
    const middle = at + kindLengthsSize + lengths.name;
    const end = middle + lengths.contentType;
    if (end > stored.length) throw wrongSize();
    names.push(readName(stored.subarray(at + kindLengthsSize, middle), "P-KND-2", "the name of an entry"));
    contentTypes.push(readContentType(stored.subarray(middle, end)));
    at = end;
  }
  if (at !== stored.length) throw wrongSize();
  if (new Set(names).size !== count) {
    const seen = new Set<string>();
    const twice = names.find((name) => seen.has(name) || !seen.add(name));
    throw broken("duplicate_name", "P-KND-4", "two entries of a record have the same name", { entry: twice });
  }
  return { names, contentTypes };
}

function readContentType(stored: Uint8Array): string {
  if (stored.length > longestContentType || stored.some((byte) => byte < 0x20 || byte > 0x7e)) {
    const expected = `at most ${longestContentType} bytes of printable ASCII`;
    throw broken("bad_header", "P-KND-3", "a content type is not allowed", { expected });
  }
  return String.fromCharCode(...stored);
}

/** One sample: a key, metadata and entries. Its head is in memory; entries are read when you ask for them. */
export class PackRecord {
  /** Where the record starts in the file. */
  readonly offset: number;
  readonly #head: RecordHead;
  readonly #shard: ShardBytes;
  #numbers: Map<string, number> | undefined;

  /** @internal */
  constructor(shard: ShardBytes, offset: number, head: RecordHead) {
    this.#shard = shard;
    this.offset = offset;
    this.#head = head;
  }

  /** Bytes of the whole record, with padding. */
  get size(): number {
    return this.#head.fields.recordSize;
  }

  get alignment(): number {
    return this.#head.fields.alignment;
  }

  get key(): string {
    return this.#shard.locate(() => this.#head.key);
  }

  /** The names of the entries, in order. */
  get names(): readonly string[] {
    return this.#head.names;
  }

  has(name: string): boolean {
    return this.#number(name) !== undefined;
  }

  /** The entry of this name. Throws `entry_not_found` if there is none. */
  entry(name: string): PackEntry {
    const number = this.#number(name);
    if (number !== undefined) return new PackEntry(this.#shard, this, this.#head, number);
    throw new ShardError("entry_not_found", `the record ${JSON.stringify(shortened(this.key))} has no such entry`, {
      path: this.#shard.name,
      entry: name,
    });
  }

  /** All entries, in order. */
  *entries(): Generator<PackEntry> {
    for (let number = 0; number < this.names.length; number++) {
      yield new PackEntry(this.#shard, this, this.#head, number);
    }
  }

  /** The content of the entry of this name; the same as `entry(name).read()`. */
  read(name: string): Promise<Uint8Array> {
    return this.entry(name).read();
  }

  get metadataEncoding(): MetadataEncodingName {
    return metadataEncodings[this.#head.fields.metadataEncoding];
  }

  /** The metadata as it is stored. */
  get storedMetadata(): Uint8Array {
    return this.#head.metadata;
  }

  /**
   * What the sample says about itself, without reading entries.
   *
   * Integers outside ±(2⁵³ − 1) are bigints. Of MessagePack, binary is a `Uint8Array`, and keys that are not text become text; `messagePack` has
   * every value with its type.
   */
  metadata(): Record<string, unknown> {
    return this.#shard.locate(() => {
      if (this.metadataEncoding === "messagepack") return plainMap(this.messagePack());
      if (this.metadataEncoding === "json") {
        const { maxJsonNodes } = this.#shard.limits;
        return parseJsonObject(this.storedMetadata, {
          what: "the metadata of a record",
          rule: "P-MTD-2",
          maxJsonBytes: largestRecordMetadata,
          maxJsonNodes,
        });
      }
      this.checkMetadataEncoding();
      return Object.create(null);
    });
  }

  /** P-MTD-1: without an encoding there is no metadata. */
  checkMetadataEncoding(): void {
    if (this.metadataEncoding !== "none" || this.storedMetadata.length === 0) return;
    const found = `${this.storedMetadata.length} bytes`;
    throw broken("bad_metadata", "P-MTD-1", "a record has metadata without an encoding", {
      path: this.#shard.name,
      found,
    });
  }

  /** The metadata with the type of every value; only if its encoding is MessagePack. */
  messagePack(): MessagePackMap {
    return this.#shard.locate(() => decodeMessagePack(this.storedMetadata, this.#shard.limits.maxJsonNodes));
  }

  #number(name: string): number | undefined {
    this.#numbers ??= new Map(this.names.map((one, number) => [one, number]));
    return this.#numbers.get(name);
  }
}

/** One entry of a record. */
export class PackEntry {
  readonly name: string;
  /** A media type, such as `image/jpeg`; empty if it is not known. */
  readonly contentType: string;
  /** Where the stored bytes start in the file. */
  readonly offset: number;
  /** Bytes in the file. */
  readonly storedSize: number;
  /** Bytes after decoding. */
  readonly size: number;
  /** CRC-32C of the stored bytes. */
  readonly crc32c: number;
  /** The number of the encoding; it may be one that this library does not know. */
  readonly encodingNumber: number;
  readonly #shard: ShardBytes;
  readonly #recordEnd: number;

  /** @internal */
  constructor(shard: ShardBytes, record: PackRecord, head: RecordHead, number: number) {
    const row = head.row(number);
    this.name = head.names[number];
    this.contentType = head.contentTypes[number];
    this.offset = record.offset + head.start(number);
    this.storedSize = row.storedSize;
    this.size = row.originalSize;
    this.crc32c = row.crc32c;
    this.encodingNumber = row.encoding;
    this.#shard = shard;
    this.#recordEnd = record.offset + record.size;
  }

  /** How the bytes are stored; undefined if this library does not know it. */
  get encoding(): EncodingName | undefined {
    return encodings[this.encodingNumber];
  }

  /** The content, checked and decoded. It may be a view of memory that others see: copy it before you change it. */
  async read(): Promise<Uint8Array> {
    const stored = await this.readStored();
    try {
      return await decodeContent(this.encodingNumber, stored, this.size, this.#shard);
    } catch (error) {
      throw located(error, this.#shard.name, this.name);
    }
  }

  /** The bytes as they are stored, checked but not decoded. */
  async readStored(): Promise<Uint8Array> {
    try {
      if (this.offset + this.storedSize > this.#recordEnd) {
        const details = {
          expected: `an end at byte ${this.#recordEnd} or before`,
          found: this.offset + this.storedSize,
        };
        throw broken("bad_offset", "P-ENT-1", "an entry leaves its record", details);
      }
      const stored = await this.#shard.read(this.offset, this.storedSize);
      const found = crc32c(stored);
      if (found !== this.crc32c) {
        const details = { expected: hex(this.crc32c), found: hex(found) };
        throw broken("checksum_mismatch", "P-ENT-3", "the stored bytes are damaged", details);
      }
      return stored;
    } catch (error) {
      throw located(error, this.#shard.name, this.name);
    }
  }
}

function hex(checksum: number): string {
  return `CRC-32C ${checksum.toString(16).padStart(8, "0")}`;
}
