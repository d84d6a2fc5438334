// From the stored bytes of an entry to its content.

import { concat } from "./bytes.js";
import { crc32c } from "./crc32c.js";
import { broken } from "./errors.js";
import {
  checkFilteredFrame,
  type Filters,
  filterFrameSize,
  filterHeadSize,
  parseFilters,
  undoFilters,
} from "./filters.js";
import {
  type Codec,
  checksumsFlag,
  codecs,
  compressedFlag,
  filteredFlag,
  type Header,
  type IndexEntry,
  lz4Flag,
  zstdFlag,
} from "./layout.js";
import { decodeLz4 } from "./lz4.js";
import type { Limits } from "./registry.js";
import { decodeSeekFrame, SeekTable, seekTableSize } from "./seekable.js";
import { checkSize, decodeFrame, decodeFrames, eachFrame, type Frame, type Zstd } from "./zstd.js";

const zstdExpansion = 32768;
const lz4Expansion = 255;
const lz4Slack = 64;

/** How an entry is stored (S-CMP-1, and S-FLT-1 about the codec). */
export function codecOf(entry: IndexEntry, header: Header): Codec {
  let codec: Codec = "none";
  if (entry.flags & compressedFlag) {
    const bits = entry.flags & (zstdFlag | lz4Flag);
    // The bits have the numbers of the codecs, one place higher; both together are none.
    codec = codecs[bits === 0 ? header.compressionDefault : bits >> 1] ?? "none";
    if (codec === "none") {
      const found = `flags ${entry.flags} and default ${header.compressionDefault}`;
      throw broken("unknown_codec", "S-CMP-1", "the codec of the entry cannot be determined", { found });
    }
  }
  if (isFiltered(entry) && codec !== "zstd") {
    throw broken("bad_filter", "S-FLT-1", "a filtered entry is not compressed with zstd", { found: codec });
  }
  return codec;
}

export function isFiltered(entry: IndexEntry): boolean {
  return (entry.flags & filteredFlag) !== 0;
}

/** S-CRC-2 */
export function hasChecksum(entry: IndexEntry, header: Header): boolean {
  return (header.flags & checksumsFlag) !== 0 || entry.crc32c !== 0;
}

/** Makes all checks that need no data, before memory is made for the content. */
export function checkSizes(entry: IndexEntry, header: Header, limits: Limits): Codec {
  const codec = codecOf(entry, header);
  const { diskSize, origSize } = entry;
  if (codec === "none") {
    if (diskSize !== origSize) {
      const details = { expected: `${origSize} bytes`, found: diskSize };
      throw broken("size_mismatch", "S-DAT-4", "an uncompressed entry has two different sizes", details);
    }
    return codec;
  }
  if (origSize > limits.maxDecompressedBytes) {
    const details = { expected: `at most ${limits.maxDecompressedBytes} bytes`, found: origSize };
    throw broken("limit_exceeded", "S-CMP-2", "the entry is too large after decompression", details);
  }
  const reachable = codec === "zstd" ? zstdExpansion * diskSize : lz4Expansion * diskSize + lz4Slack;
  if (origSize > reachable) {
    const found = `${diskSize} bytes for ${origSize}`;
    throw broken("size_mismatch", "S-CMP-8", "the stored bytes cannot expand to this size", { found });
  }
  return codec;
}

/** S-CRC-1 */
export function checkChecksum(entry: IndexEntry, content: Uint8Array): void {
  const found = crc32c(content);
  if (found === entry.crc32c) return;
  const details = { expected: hex32(entry.crc32c), found: hex32(found) };
  throw broken("checksum_mismatch", "S-CRC-1", "CRC-32C mismatch: the data is damaged", details);
}

function hex32(value: number): string {
  return value.toString(16).padStart(8, "0");
}

/** Decodes a zstd or lz4 entry whose sizes were checked. `zstd` loads the library. */
export async function decodeEntry(
  entry: IndexEntry,
  codec: Codec,
  stored: Uint8Array,
  limits: Limits,
  zstd: () => Promise<Zstd>,
): Promise<Uint8Array> {
  if (stored.length === 0) throw broken("bad_compression", "S-CMP-4", "a compressed entry has no bytes");
  const size = entry.origSize;
  if (codec === "lz4") return decodeLz4(stored, size);
  if (!isFiltered(entry)) return decodeFrames(await zstd(), stored, size, limits.maxWindowBytes);
  return decodeFiltered(stored, size, limits, zstd);
}

/** Decodes an entry whose frames are filtered: one frame, or a run of frames with a seek table. */
async function decodeFiltered(
  stored: Uint8Array,
  size: number,
  limits: Limits,
  zstd: () => Promise<Zstd>,
): Promise<Uint8Array> {
  const leading = filterFrameSize(stored, stored.length);
  const filters = parseFilters(stored.subarray(filterHeadSize, leading));
  const tableSize = seekTableSize(stored, stored.length);
  const table = tableSize > 0 ? SeekTable.parse(stored.subarray(-tableSize), stored.length, size, leading) : undefined;
  if (table) return decodeRun(stored.subarray(leading), table, 0, table.count, filters, limits, await zstd());
  const rest = stored.subarray(leading);
  let only: Frame | undefined;
  for (const frame of eachFrame(rest, limits.maxWindowBytes)) only ??= frame;
  if (only?.start !== 0 || only.end !== rest.length) {
    throw broken("bad_filter", "S-FLT-1", "a filtered entry without a seek table is not one frame");
  }
  checkFilteredFrame(filters, size);
  const content = await decodeFrame(await zstd(), rest, only, size);
  checkSize(content.length, size);
  return undoFilters(filters, content);
}

/** Decodes the frames from `first` up to, not including, `end`; `stored` starts with the first of them. */
export async function decodeRun(
  stored: Uint8Array,
  table: SeekTable,
  first: number,
  end: number,
  filters: Filters | undefined,
  limits: Limits,
  zstd: Zstd,
): Promise<Uint8Array> {
  const parts = [];
  for (let number = first; number < end; number++) {
    const frame = table.frame(number);
    if (filters) checkFilteredFrame(filters, frame.decompressedSize);
    const from = table.stored[number] - table.stored[first];
    const bytes = stored.subarray(from, from + frame.compressedSize);
    const content = await decodeSeekFrame(zstd, bytes, frame, limits.maxWindowBytes);
    parts.push(filters ? undoFilters(filters, content) : content);
  }
  return parts.length === 1 ? parts[0] : concat(parts);
}
