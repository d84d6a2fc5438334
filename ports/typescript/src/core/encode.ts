// From the content of an entry to its stored bytes.

import { concat, viewOf } from "./bytes.js";
import { broken, invalid, ShardError } from "./errors.js";
import {
  applyFilters,
  checkFilteredFrame,
  describeFilters,
  type Filters,
  filterHeadSize,
  packFilters,
  parseFilters,
} from "./filters.js";
import { type Codec, codecs, compressedFlag, filteredFlag, lz4Flag, zstdFlag } from "./layout.js";
import { encodeLz4 } from "./lz4.js";
import { defaultLimits } from "./registry.js";
import { packSeekTable, type SeekFrame } from "./seekable.js";
import { encodeFrame, loadZstd, type Zstd, type ZstdProvider } from "./zstd.js";

/** Entries of this size or less are never compressed. */
const largestRaw = 256;
const largestFrame = 2 ** 32 - 1;

/** How the bytes of one entry are stored. */
export interface EncodeOptions {
  /** Replaces the compression of the file. */
  codec?: Codec;
  /** Makes a zstd entry seekable: frames of this many bytes of content, and a seek table. */
  frameBytes?: number;
  /** What is done to each frame before zstd. */
  filters?: Filters;
}

/** Stored bytes with the flags of their entry. */
export interface Encoded {
  stored: Uint8Array;
  flags: number;
}

/** Gives the stored bytes of an entry: raw where compression does not pay (S-CMP-10). */
export async function encodeEntry(
  data: Uint8Array,
  options: EncodeOptions & { codec: Codec; level: number },
  provider: ZstdProvider | undefined,
): Promise<Encoded> {
  const { codec, level, frameBytes, filters } = options;
  if (!codecs.includes(codec)) throw invalid("unknown compression", { found: codec });
  if (codec !== "zstd" && (frameBytes !== undefined || filters !== undefined)) {
    throw invalid("frames and filters need zstd", { found: codec });
  }
  if (frameBytes !== undefined && !(Number.isInteger(frameBytes) && frameBytes >= 1 && frameBytes <= largestFrame)) {
    throw invalid("a frame cannot have this size", { expected: `1 to ${largestFrame} bytes`, found: frameBytes });
  }
  const raw = { stored: data, flags: 0 };
  if (codec === "none" || data.length <= largestRaw) return raw;
  if (data.length > defaultLimits.maxDecompressedBytes) {
    const details = { expected: `at most ${defaultLimits.maxDecompressedBytes} bytes`, found: data.length };
    throw broken("limit_exceeded", "S-CMP-2", "the entry is too large to be compressed", details);
  }
  const made = codec === "lz4" ? lz4Form(data) : await zstdForm(data, level, frameBytes, filters, provider);
  return made !== undefined && made.stored.length < Math.floor((data.length * 9) / 10) ? made : raw;
}

function lz4Form(data: Uint8Array): Encoded | undefined {
  const stored = encodeLz4(data);
  return stored && { stored, flags: compressedFlag | lz4Flag };
}

async function zstdForm(
  data: Uint8Array,
  level: number,
  frameBytes: number | undefined,
  filters: Filters | undefined,
  provider: ZstdProvider | undefined,
): Promise<Encoded> {
  const zstd = await loadZstd(provider);
  const flags = compressedFlag | zstdFlag;
  if (frameBytes === undefined && filters === undefined) {
    return { stored: await encodeFrame(zstd, data, level, false), flags };
  }
  const parts = filters ? [checkedFilters(filters)] : [];
  const frames: SeekFrame[] = [];
  for (const part of cut(data, frameBytes ?? data.length, filters)) {
    const { frame, row } = await seekFrame(zstd, filters ? applyFilters(filters, part) : part, level);
    parts.push(frame);
    frames.push(row);
  }
  parts.push(packSeekTable(frames));
  return { stored: concat(parts), flags: filters ? flags | filteredFlag : flags };
}

async function seekFrame(
  zstd: Zstd,
  content: Uint8Array,
  level: number,
): Promise<{ frame: Uint8Array; row: SeekFrame }> {
  const frame = await encodeFrame(zstd, content, level, true);
  const checksum = viewOf(frame).getUint32(frame.length - 4, true); // of the frame and of the table
  const row = { compressedSize: frame.length, decompressedSize: content.length, checksum };
  return { frame, row };
}

/** The frame that describes filters which a reader will accept. */
function checkedFilters(filters: Filters): Uint8Array {
  const frame = packFilters(filters);
  try {
    parseFilters(frame.subarray(filterHeadSize));
  } catch (cause) {
    throw cause instanceof ShardError ? invalid("the filters are wrong", { cause }) : cause;
  }
  return frame;
}

/** The content of each frame. */
function cut(data: Uint8Array, size: number, filters: Filters | undefined): Uint8Array[] {
  const parts = [];
  for (let at = 0; at < data.length; at += size) {
    const part = data.subarray(at, at + size);
    try {
      if (filters) checkFilteredFrame(filters, part.length);
    } catch (cause) {
      const found = JSON.stringify(describeFilters(filters ?? {}));
      throw invalid(`frames of ${part.length} bytes do not suit the filters`, { found, cause });
    }
    parts.push(part);
  }
  return parts;
}
