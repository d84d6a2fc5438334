// From what a caller writes to the bytes of a record. Nothing in them depends on the place of the record in a shard.

import { encodeUtf8, viewOf } from "../core/bytes.js";
import { crc32c } from "../core/crc32c.js";
import { encodeEntry } from "../core/encode.js";
import { broken, invalid, ShardError, shortened } from "../core/errors.js";
import { canonicalBytes, type JsonObject } from "../core/json.js";
import { alignUp, type Codec, codecs } from "../core/layout.js";
import { defaultLimits } from "../core/registry.js";
import type { ZstdProvider } from "../core/zstd.js";
import { contentTypeOf, isCompressible } from "./content-types.js";
import { encodings, type MetadataEncodingName, metadataEncodings } from "./encodings.js";
import {
  alignments,
  headParts,
  kindLengthsSize,
  largestHead,
  largestRecordMetadata,
  longestContentType,
  longestKey,
  longestName,
  mostEntries,
  type RecordFields,
  recordMarker,
  version,
  writeKindLengths,
  writeRecordFields,
  writeRow,
} from "./layout.js";
import type { PackRecord } from "./record.js";

/** How records are written. */
export interface EncodingOptions {
  /** Every entry starts on a multiple of this. With 64, arrays and episodes inside can be used in place. */
  alignment?: 1 | 8 | 64;
  /** For entries whose content type is not compressed already. */
  compression?: Codec;
  /** The level of zstd; 3 by default. */
  level?: number;
  /** A zstd library that can compress. */
  zstd?: ZstdProvider;
}

/** What is said about one record. */
export interface RecordOptions {
  /** What a reader can know about the sample without reading its entries. */
  metadata?: JsonObject;
  /** Content types of entries whose names do not tell them. */
  contentTypes?: Readonly<Record<string, string>>;
}

/** Contents by name: bytes, or text that is written as UTF-8. The order is kept; an object has names such as "0" first. */
export type Entries = Readonly<Record<string, Uint8Array | string>> | ReadonlyMap<string, Uint8Array | string>;

/** An entry as it is stored. */
interface StoredEntry {
  name: string;
  contentType: string;
  encoding: number;
  originalSize: number;
  crc32c: number;
  data: Uint8Array;
}

/** Metadata as it is stored. */
interface StoredMetadata {
  encoding: MetadataEncodingName;
  data: Uint8Array;
}

/** The bytes of a record. */
export interface EncodedRecord {
  key: string;
  encodedKey: Uint8Array;
  /** Name and content type of each entry. */
  kinds: readonly { name: string; contentType: string }[];
  bytes: Uint8Array;
}

const noMetadata: StoredMetadata = { encoding: "none", data: new Uint8Array(0) };

export class RecordEncoder {
  readonly alignment: number;
  readonly #compression: Codec;
  readonly #level: number;
  readonly #zstd: ZstdProvider | undefined;

  constructor(options: EncodingOptions) {
    const { alignment = 8, compression = "none", level = 3, zstd } = options;
    if (!alignments.includes(alignment))
      throw invalid("the alignment is unknown", { expected: "1, 8 or 64", found: alignment });
    if (!codecs.includes(compression))
      throw invalid("the compression is unknown", { expected: codecs.join(" or "), found: compression });
    this.alignment = alignment;
    this.#compression = compression;
    this.#level = level;
    this.#zstd = zstd;
  }

  /** Encodes a new record. */
  async encode(key: string, entries: Entries, options: RecordOptions): Promise<EncodedRecord> {
    const { metadata = {}, contentTypes = {} } = options;
    const stored: StoredEntry[] = [];
    for (const [name, content] of entries instanceof Map ? entries : Object.entries(entries)) {
      const data = typeof content === "string" ? encodeUtf8(content) : content;
      if (!(data instanceof Uint8Array)) {
        throw invalid("the content is neither bytes nor well-formed text", { entry: name });
      }
      const contentType = Object.hasOwn(contentTypes, name) ? contentTypes[name] : contentTypeOf(name);
      stored.push(await this.#entry(name, contentType, data));
    }
    const names = new Set(stored.map(({ name }) => name));
    for (const name of Object.keys(contentTypes)) {
      if (!names.has(name)) throw invalid("a content type has no entry", { entry: name });
    }
    const hasFields = Object.keys(metadata).length > 0;
    return this.#assemble(key, stored, hasFields ? { encoding: "json", data: canonicalBytes(metadata) } : noMetadata);
  }

  /** Encodes a record of another shard. Its entries are checked, but not decoded. */
  async copy(record: PackRecord): Promise<EncodedRecord> {
    const { key } = record;
    record.checkMetadataEncoding();
    const stored: StoredEntry[] = [];
    for (const entry of record.entries()) {
      const { name, contentType, encodingNumber: encoding, size: originalSize, crc32c } = entry;
      stored.push({ name, contentType, encoding, originalSize, crc32c, data: await entry.readStored() });
    }
    return this.#assemble(key, stored, { encoding: record.metadataEncoding, data: record.storedMetadata });
  }

  async #entry(name: string, contentType: string, content: Uint8Array): Promise<StoredEntry> {
    const mayCompress = isCompressible(contentType) && content.length <= defaultLimits.maxDecompressedBytes;
    const options = { codec: mayCompress ? this.#compression : "none", level: this.#level };
    const { stored: data, flags } = await encodeEntry(content, options, this.#zstd);
    const codec = flags === 0 ? "none" : options.codec;
    const encoding = encodings.indexOf(codec);
    return { name, contentType, encoding, originalSize: content.length, crc32c: crc32c(data), data };
  }

  /** Puts a record together. */
  #assemble(key: string, entries: readonly StoredEntry[], metadata: StoredMetadata): EncodedRecord {
    const encodedKey = encodeName(key, "the key of a record", longestKey, "P-REC-5", "invalid_argument");
    const kinds = encodeKinds(entries);
    const stored = isEmptyObject(metadata) ? noMetadata : metadata;
    const fields: RecordFields = {
      recordSize: 0,
      marker: recordMarker,
      version,
      metadataEncoding: metadataEncodings.indexOf(stored.encoding),
      alignment: this.alignment,
      flags: 0,
      entryCount: entries.length,
      kindsSize: kinds.length,
      keySize: encodedKey.length,
      metadataSize: stored.data.length,
    };
    const parts = headParts(fields);
    checkLimit("the number of entries of a record", entries.length, mostEntries);
    checkLimit("the metadata of a record", stored.data.length, largestRecordMetadata);
    checkLimit("the head of a record", parts.end, largestHead);
    let size = parts.end;
    for (const { data } of entries) size = alignUp(size, this.alignment) + data.length;
    // Space between entries stays zero.
    const bytes = new Uint8Array(alignUp(size, this.alignment));
    const view = viewOf(bytes);
    writeRecordFields(view, { ...fields, recordSize: bytes.length });
    let position = parts.end;
    entries.forEach((entry, number) => {
      position = alignUp(position, this.alignment);
      bytes.set(entry.data, position);
      position += entry.data.length;
      writeRow(view, number, { ...entry, storedSize: entry.data.length });
    });
    bytes.set(kinds, parts.kinds);
    bytes.set(encodedKey, parts.key);
    bytes.set(stored.data, parts.metadata);
    view.setUint32(parts.checksum, crc32c(bytes.subarray(0, parts.checksum)), true);
    return { key, encodedKey, kinds: entries, bytes };
  }
}

/** An empty object reads the same as no metadata, and a record has one form. */
function isEmptyObject({ encoding, data }: StoredMetadata): boolean {
  if (encoding === "messagepack") return data.length === 1 && data[0] === 0x80;
  return encoding === "json" && data.length === 2 && data[0] === 0x7b && data[1] === 0x7d;
}

function checkLimit(what: string, found: number, most: number): void {
  if (found > most)
    throw broken("limit_exceeded", "P-REC-6", `${what} is too large`, { expected: `at most ${most}`, found });
}

function encodeName(
  name: string,
  what: string,
  longest: number,
  rule: string,
  code: "invalid_argument" | "bad_name",
): Uint8Array {
  const encoded = typeof name === "string" ? encodeUtf8(name) : undefined;
  if (encoded === undefined || encoded.length === 0 || encoded.length > longest || encoded.includes(0)) {
    const details = {
      expected: `1 to ${longest} bytes of UTF-8 without U+0000`,
      found: JSON.stringify(shortened(String(name))),
    };
    throw broken(code, rule, `${what} cannot be written`, details);
  }
  return encoded;
}

function encodeKinds(entries: readonly StoredEntry[]): Uint8Array {
  const seen = new Set<string>();
  const parts = entries.map(({ name, contentType }) => {
    if (seen.has(name)) {
      throw new ShardError("duplicate_name", "two entries of a record have the same name", {
        rule: "P-KND-4",
        entry: name,
      });
    }
    seen.add(name);
    if (contentType.length > longestContentType || /[^ -~]/.test(contentType)) {
      const details = { entry: name, expected: `at most ${longestContentType} bytes of printable ASCII` };
      throw broken("bad_header", "P-KND-3", "the content type cannot be written", details);
    }
    const encoded = encodeName(name, "the name of an entry", longestName, "P-KND-2", "bad_name");
    return { name: encoded, contentType: encodeUtf8(contentType) as Uint8Array };
  });
  const size = parts.reduce((sum, part) => sum + kindLengthsSize + part.name.length + part.contentType.length, 0);
  const kinds = new Uint8Array(size);
  const view = viewOf(kinds);
  let at = 0;
  for (const { name, contentType } of parts) {
    writeKindLengths(view, at, name.length, contentType.length);
    kinds.set(name, at + kindLengthsSize);
    kinds.set(contentType, at + kindLengthsSize + name.length);
    at += kindLengthsSize + name.length + contentType.length;
  }
  return kinds;
}
