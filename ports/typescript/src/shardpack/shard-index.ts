// The end of a shard: offsets of the records, lookup by key, metadata, footer (spec/shardpack.md, sections 7 and 8).

import { concat, equalBytes, viewOf } from "../core/bytes.js";
import { crc32c } from "../core/crc32c.js";
import { broken } from "../core/errors.js";
import { canonicalBytes, type JsonObject, parseJsonObject } from "../core/json.js";
import type { Limits } from "../core/registry.js";
import {
  type Footer,
  footerSize,
  indexHead,
  indexHeadSize,
  indexMarker,
  indexParts,
  leastFileSize,
  mostRecords,
  readBlockStart,
  readFooter,
  readU64,
  recordMarker,
  version,
  writeFooter,
  writeU64,
} from "./layout.js";

/**
 * The footer of a file of `size` bytes, after all rules about footers are checked.
 *
 * `last` are the last bytes of the file, and `first` its first 12 or more. They decide whether a file without the magic has lost its end.
 */
export function checkFooter(last: Uint8Array, size: number, first: Uint8Array): Footer {
  if (size < leastFileSize || last.length < footerSize) {
    const details = { expected: `at least ${leastFileSize} bytes`, found: `${size} bytes` };
    throw broken("truncated", "P-FTR-1", "the file is too short for a shard", details);
  }
  const stored = readFooter(last.subarray(last.length - footerSize));
  const { hasMagic, checkedBytes, crc32c: checksum, version: found, ...footer } = stored;
  if (!hasMagic) {
    const { marker } = readBlockStart(first);
    if (marker === recordMarker || marker === indexMarker) {
      throw broken("truncated", "P-FTR-2", "the shard has lost its end");
    }
    throw broken("bad_magic", "P-FTR-2", "this is not a shard: the magic at its end is missing");
  }
  if (crc32c(checkedBytes) !== checksum) throw broken("checksum_mismatch", "P-FTR-3", "the footer is damaged");
  if (found !== version) {
    const details = { expected: version, found };
    throw broken("unsupported_version", "P-FTR-4", "the shard has an unknown version", details);
  }
  if (footer.totalSize !== size) {
    const details = { expected: `${footer.totalSize} bytes`, found: `${size} bytes` };
    const code = size < footer.totalSize ? "truncated" : "trailing_data";
    throw broken(code, "P-FTR-5", "the file does not have the size that its footer states", details);
  }
  const end = footer.indexOffset + indexParts(footer.recordCount, footer.metadataSize).end;
  if (end !== size) {
    const details = { expected: `an end at byte ${size}`, found: end };
    throw broken("bad_offset", "P-FTR-6", "the index does not fill the space between records and footer", details);
  }
  return footer;
}

/** Refuses an index above the limits before it is read. */
export function checkIndexSize(footer: Footer, limits: Limits): void {
  const size = footer.totalSize - footer.indexOffset;
  if (size > limits.maxIndexBytes || footer.recordCount > mostRecords) {
    const expected = `at most ${limits.maxIndexBytes} bytes, ${mostRecords} records`;
    const found = `${size} bytes, ${footer.recordCount} records`;
    throw broken("limit_exceeded", "P-IDX-1", "the index is too large", { expected, found });
  }
}

/** The index of an open shard. Each part is checked once, when it is first needed. */
export class ShardIndex {
  readonly footer: Footer;
  readonly #data: Uint8Array;
  readonly #limits: Limits;
  #offsets: Float64Array | undefined;
  #hasLookup = false;
  #metadata: JsonObject | undefined;

  /** `data` are all bytes from the start of the index to the end of the file. */
  constructor(data: Uint8Array, footer: Footer, limits: Limits) {
    this.footer = footer;
    this.#data = data;
    this.#limits = limits;
    if (!equalBytes(data.subarray(0, indexHeadSize), indexHead(footer))) {
      throw broken("size_mismatch", "P-IDX-2", "the head of the index contradicts the footer");
    }
  }

  #parts() {
    return indexParts(this.footer.recordCount, this.footer.metadataSize);
  }

  #checked(start: number, end: number, checksum: number, rule: string, what: string): Uint8Array {
    const part = this.#data.subarray(start, end);
    if (crc32c(part) !== checksum) throw broken("checksum_mismatch", rule, `${what} of the index are damaged`);
    return part;
  }

  /** Where each record starts, and where the last one ends. */
  get offsets(): Float64Array {
    if (this.#offsets !== undefined) return this.#offsets;
    const { offsets, hashes } = this.#parts();
    const view = viewOf(this.#checked(offsets, hashes, this.footer.offsetsCrc32c, "P-IDX-3", "the offsets"));
    const found = new Float64Array(this.footer.recordCount + 1);
    for (let number = 0; number < found.length; number++) {
      found[number] = readU64(view, 8 * number);
      const isRight = number === 0 ? found[0] === 0 : found[number] > found[number - 1];
      if (!isRight) throw wrongOffsets(number);
    }
    if (found[found.length - 1] !== this.footer.indexOffset) throw wrongOffsets(found.length - 1);
    this.#offsets = found;
    return found;
  }

  /** The numbers of the records whose keys have this hash. */
  *recordsWithHash(hash: bigint): Generator<number> {
    const parts = this.#parts();
    const count = this.footer.recordCount;
    const view = viewOf(this.#data);
    if (!this.#hasLookup) {
      this.#checkLookup();
      this.#hasLookup = true;
    }
    const hashAt = (number: number) => view.getBigUint64(parts.hashes + 8 * number, true);
    let low = 0;
    for (let high = count; low < high; ) {
      const middle = Math.floor((low + high) / 2);
      if (hashAt(middle) < hash) low = middle + 1;
      else high = middle;
    }
    for (; low < count && hashAt(low) === hash; low++) yield view.getUint32(parts.numbers + 4 * low, true);
  }

  #checkLookup(): void {
    const { hashes, metadata } = this.#parts();
    const view = viewOf(this.#checked(hashes, metadata, this.footer.lookupCrc32c, "P-IDX-5", "the key hashes"));
    const count = this.footer.recordCount;
    let high = 0;
    let low = 0;
    for (let number = 0; number < count; number++) {
      const nextLow = view.getUint32(8 * number, true);
      const nextHigh = view.getUint32(8 * number + 4, true);
      const ascends = nextHigh > high || (nextHigh === high && nextLow >= low);
      if (!ascends || view.getUint32(8 * count + 4 * number, true) >= count) {
        const problem = "the key hashes are not sorted, or name records that do not exist";
        throw broken("bad_offset", "P-IDX-6", problem, { found: `position ${number}` });
      }
      high = nextHigh;
      low = nextLow;
    }
  }

  /** The fields of the shard. */
  get metadata(): JsonObject {
    if (this.#metadata === undefined) {
      const { metadata, footer } = this.#parts();
      const text = this.#checked(metadata, footer, this.footer.metadataCrc32c, "P-IDX-7", "the metadata");
      const { maxJsonBytes, maxJsonNodes } = this.#limits;
      const what = "the metadata of the shard";
      this.#metadata = parseJsonObject(text, { what, rule: "P-IDX-8", maxJsonBytes, maxJsonNodes });
    }
    return this.#metadata;
  }
}

function wrongOffsets(number: number) {
  const problem = "the offsets of the index do not start with 0, ascend, and end at the index";
  return broken("bad_offset", "P-IDX-4", problem, { found: `position ${number}` });
}

/** The bytes that follow the last record. `starts` and `hashes` have one item for each record. */
export function makeIndex(
  starts: readonly number[],
  hashes: readonly bigint[],
  end: number,
  metadata: JsonObject,
): { data: Uint8Array; footer: Footer } {
  const count = starts.length;
  const offsets = new Uint8Array(8 * (count + 1));
  for (let number = 0; number <= count; number++) writeU64(viewOf(offsets), 8 * number, starts[number] ?? end);
  // A stable sort: among equal hashes the numbers ascend.
  const order = hashes.map((_, number) => number).sort((a, b) => compare(hashes[a], hashes[b]) || a - b);
  const lookup = new Uint8Array(12 * count);
  const view = viewOf(lookup);
  order.forEach((number, place) => {
    view.setBigUint64(8 * place, hashes[number], true);
    view.setUint32(8 * count + 4 * place, number, true);
  });
  const text = canonicalBytes(metadata);
  const footer: Footer = {
    indexOffset: end,
    recordCount: count,
    metadataSize: text.length,
    totalSize: end + indexParts(count, text.length).end,
    offsetsCrc32c: crc32c(offsets),
    lookupCrc32c: crc32c(lookup),
    metadataCrc32c: crc32c(text),
  };
  return { data: concat([indexHead(footer), offsets, lookup, text, writeFooter(footer)]), footer };
}

function compare(a: bigint, b: bigint): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
