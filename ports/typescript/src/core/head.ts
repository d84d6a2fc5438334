// The head of a file: header, index and names, checked. No I/O.

import { decodeUtf8, toHex, viewOf } from "./bytes.js";
import { broken, type ShardError, shortened } from "./errors.js";
import {
  bigEndianFlag,
  type Header,
  headerSize,
  type IndexEntry,
  indexEntrySize,
  isAlignment,
  magic,
  unpackEntry,
  unpackHeader,
  unpackNameHash,
  version,
} from "./layout.js";
import type { Limits } from "./registry.js";

/** Checks S-HDR-1 to S-HDR-12; `head` has the first bytes of the file. */
export function parseHeader(head: Uint8Array, fileSize: number, limits: Limits): Header {
  const known = Math.min(head.length, magic.length);
  for (let i = 0; i < known; i++) {
    if (head[i] !== magic[i]) {
      const found = toHex(head.subarray(0, known)) || "nothing";
      throw broken("bad_magic", "S-HDR-2", "not a Shard file", { expected: toHex(magic), found });
    }
  }
  if (head.length < headerSize) {
    const details = { expected: `at least ${headerSize} bytes`, found: fileSize };
    throw broken("truncated", "S-HDR-1", "the file ends inside its header", details);
  }
  const header = unpackHeader(head);
  const problem = headerProblem(header, fileSize, limits);
  if (problem) throw problem;
  return header;
}

function headerProblem(h: Header, fileSize: number, limits: Limits): ShardError | undefined {
  const indexBytes = indexEntrySize * h.entryCount;
  const indexEnd = headerSize + indexBytes;
  if (h.version !== version) {
    const details = { expected: version, found: h.version };
    return broken("unsupported_version", "S-HDR-3", "unknown version of the format", details);
  }
  if (h.indexEntrySize !== indexEntrySize) {
    const details = { expected: indexEntrySize, found: h.indexEntrySize };
    return broken("bad_header", "S-HDR-4", "wrong size of an index entry", details);
  }
  if (!isAlignment(h.alignment)) {
    const details = { expected: "0, 16, 32 or 64", found: h.alignment };
    return broken("bad_header", "S-HDR-5", "the alignment is not allowed", details);
  }
  if (h.flags & bigEndianFlag) {
    return broken("bad_header", "S-HDR-6", "the header claims big-endian numbers", { found: `flags ${h.flags}` });
  }
  if (h.totalFileSize !== fileSize) {
    const details = { expected: `${h.totalFileSize} bytes`, found: fileSize };
    if (h.totalFileSize > fileSize) {
      return broken("truncated", "S-HDR-7", "the file is shorter than its header says", details);
    }
    return broken("trailing_data", "S-HDR-7", "the file goes on after its stated end", details);
  }
  if (h.entryCount > limits.maxEntries || indexBytes > limits.maxIndexBytes) {
    const details = { expected: `at most ${limits.maxEntries}`, found: h.entryCount };
    return broken("limit_exceeded", "S-HDR-8", "too many entries", details);
  }
  if (indexEnd > fileSize) {
    return broken("bad_offset", "S-HDR-9", "the index does not fit in the file", { found: `${h.entryCount} entries` });
  }
  if (h.stringTableOffset !== indexEnd) {
    const details = { expected: indexEnd, found: h.stringTableOffset };
    return broken("bad_offset", "S-HDR-10", "the string table does not follow the index", details);
  }
  if (h.dataSectionOffset < h.stringTableOffset || h.dataSectionOffset > fileSize) {
    const details = { expected: `${indexEnd} to ${fileSize}`, found: h.dataSectionOffset };
    return broken("bad_offset", "S-HDR-11", "the data section is out of range", details);
  }
  const names = h.dataSectionOffset - indexEnd;
  if (names > limits.maxStringTableBytes) {
    const details = { expected: `at most ${limits.maxStringTableBytes} bytes`, found: names };
    return broken("limit_exceeded", "S-HDR-12", "the string table is too large", details);
  }
  return undefined;
}

/** The index of a file. Rows are unpacked when they are asked for. */
export class Index {
  readonly names: readonly string[];
  readonly #view: DataView;
  readonly #rows: ReadonlyMap<string, number>;

  /** Checks S-NAM-1 to S-NAM-4, S-NAM-9 and S-DAT-1 to S-DAT-3; `head` reaches to the data section. */
  constructor(head: Uint8Array, header: Header, limits: Limits) {
    this.#view = viewOf(head);
    const table = new StringTable(head.subarray(header.stringTableOffset, header.dataSectionOffset));
    const names: string[] = [];
    const rows = new Map<string, number>();
    let isOrdered = true;
    let end = 0;
    let namesSize = 0;
    for (let i = 0; i < header.entryCount; i++) {
      const entry = this.row(i);
      // Names may share bytes of the table: a small file could claim far more of them than it has.
      namesSize += entry.nameLength;
      if (namesSize > limits.maxStringTableBytes) {
        const details = { expected: `at most ${limits.maxStringTableBytes} bytes` };
        throw broken("limit_exceeded", "S-NAM-9", "the names are too long together", details);
      }
      const name = table.name(entry);
      if (rows.has(name)) {
        throw broken("duplicate_name", "S-NAM-4", "two entries have the same name", { found: shortened(name) });
      }
      checkBlock(entry, header, name);
      names.push(name);
      rows.set(name, i);
      if (entry.diskSize === 0) continue;
      isOrdered &&= entry.dataOffset >= end;
      end = entry.dataOffset + entry.diskSize;
    }
    this.names = names;
    this.#rows = rows;
    if (!isOrdered) this.#checkOverlaps();
  }

  row(number: number): IndexEntry {
    return unpackEntry(this.#view, headerSize + number * indexEntrySize);
  }

  find(name: string): number | undefined {
    return this.#rows.get(name);
  }

  /** The rows with data, in the order of their offsets. */
  inOrder(): { row: number; start: number; end: number }[] {
    const blocks = [];
    for (let row = 0; row < this.names.length; row++) {
      const { dataOffset, diskSize } = this.row(row);
      if (diskSize > 0) blocks.push({ row, start: dataOffset, end: dataOffset + diskSize });
    }
    return blocks.sort((a, b) => a.start - b.start);
  }

  #checkOverlaps(): void {
    const blocks = this.inOrder();
    for (let i = 1; i < blocks.length; i++) {
      if (blocks[i].start >= blocks[i - 1].end) continue;
      const pair = [blocks[i - 1], blocks[i]].map(({ row }) => JSON.stringify(shortened(this.names[row])));
      throw broken("overlap", "S-DAT-3", "the blocks of two entries overlap", { found: pair.join(" and ") });
    }
  }
}

/** The region of the names. */
class StringTable {
  readonly #bytes: Uint8Array;
  /** The whole table, if it is ASCII: decoding it once is much faster than decoding each name. */
  readonly #ascii: string | undefined;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    const text = decodeUtf8(bytes);
    if (text?.length === bytes.length) this.#ascii = text;
  }

  /** The name of an entry (S-NAM-1 to S-NAM-3). */
  name({ nameOffset, nameLength }: IndexEntry): string {
    const end = nameOffset + nameLength;
    if (nameLength === 0) throw broken("bad_name", "S-NAM-2", "a name is empty");
    if (end > this.#bytes.length) {
      const details = { expected: `${this.#bytes.length} bytes`, found: `${nameOffset} + ${nameLength}` };
      throw broken("bad_name", "S-NAM-1", "a name is outside the string table", details);
    }
    if (this.#ascii !== undefined) return this.#ascii.slice(nameOffset, end);
    const bytes = this.#bytes.subarray(nameOffset, end);
    const name = decodeUtf8(bytes);
    if (name !== undefined) return name;
    throw broken("bad_name", "S-NAM-3", "a name is not valid UTF-8", { found: toHex(bytes.subarray(0, 32)) });
  }
}

/** The hash of a name that the head of a file stores, which may be wrong. No part of `Index`, because reading needs none. */
export function storedNameHash(head: Uint8Array, row: number): bigint {
  return unpackNameHash(viewOf(head), headerSize + row * indexEntrySize);
}

function checkBlock(entry: IndexEntry, header: Header, name: string): void {
  if (entry.dataOffset < header.dataSectionOffset) {
    const details = { entry: name, expected: `at least ${header.dataSectionOffset}`, found: entry.dataOffset };
    throw broken("bad_offset", "S-DAT-1", "a block starts before the data section", details);
  }
  if (entry.dataOffset + entry.diskSize > header.totalFileSize) {
    const found = `${entry.dataOffset} + ${entry.diskSize}`;
    const details = { entry: name, expected: `at most ${header.totalFileSize}`, found };
    throw broken("bad_offset", "S-DAT-2", "a block ends after the end of the file", details);
  }
}
