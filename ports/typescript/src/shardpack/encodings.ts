// How the bytes of an entry are stored: raw, gzip, lz4 or zstd (spec/shardpack.md, section 5).

import { broken, ShardError } from "../core/errors.js";
import { decodeLz4 } from "../core/lz4.js";
import { decodeFrames, loadZstd } from "../core/zstd.js";
import { GzipError, gunzip } from "./gzip.js";
import type { ShardBytes } from "./shard-bytes.js";

export type EncodingName = "none" | "gzip" | "lz4" | "zstd";
export type MetadataEncodingName = "none" | "json" | "messagepack";

/** The encodings of entries in the order of their numbers. */
export const encodings: readonly EncodingName[] = ["none", "gzip", "lz4", "zstd"];
/** The encodings of metadata in the order of their numbers. */
export const metadataEncodings: readonly MetadataEncodingName[] = ["none", "json", "messagepack"];

/** The most bytes that `stored` bytes can decode to. */
const reachable: Record<EncodingName, (stored: number) => number> = {
  none: (stored) => stored,
  gzip: (stored) => 1032 * stored,
  lz4: (stored) => 255 * stored + 64,
  zstd: (stored) => 32_768 * stored,
};

/** The rules of the container under the ids of this format. */
const rules: Record<string, string> = {
  "S-CMP-2": "P-ENC-3",
  "S-CMP-3": "P-ENC-4",
  "S-CMP-4": "P-ENC-5",
  "S-CMP-5": "P-ENC-5",
  "S-CMP-6": "P-ENC-5",
  "S-CMP-7": "P-ENC-3",
  "S-CMP-8": "P-ENC-4",
  "S-CMP-9": "P-ENC-5",
};

/** The content of an entry, exactly `size` bytes. The checksum of `stored` was checked. */
export async function decodeContent(
  number: number,
  stored: Uint8Array,
  size: number,
  shard: ShardBytes,
): Promise<Uint8Array> {
  const encoding = encodings[number];
  if (encoding === undefined) {
    const details = { expected: "0 (none), 1 (gzip), 2 (lz4) or 3 (zstd)", found: number };
    throw broken("unknown_codec", "P-ENC-1", "the encoding is unknown", details);
  }
  if (encoding === "none") {
    if (size === stored.length) return stored;
    const details = { expected: `${stored.length} bytes`, found: `${size} bytes` };
    throw broken("size_mismatch", "P-ENT-2", "the sizes of a raw entry differ", details);
  }
  const { maxDecompressedBytes, maxWindowBytes } = shard.limits;
  if (size > maxDecompressedBytes) {
    const details = { expected: `at most ${maxDecompressedBytes} bytes`, found: `${size} bytes` };
    throw broken("limit_exceeded", "P-ENC-3", "the entry decodes to too many bytes", details);
  }
  if (stored.length === 0) throw broken("bad_compression", "P-ENC-5", "nothing is stored");
  const most = reachable[encoding](stored.length);
  if (size > most) {
    const details = { expected: `at most ${most} bytes`, found: `${size} bytes` };
    throw broken("size_mismatch", "P-ENC-4", `${stored.length} bytes of ${encoding} cannot decode to so many`, details);
  }
  if (encoding === "gzip") return decodeGzip(stored, size);
  try {
    if (encoding === "lz4") return decodeLz4(stored, size);
    return await decodeFrames(await loadZstd(shard.options.zstd), stored, size, maxWindowBytes);
  } catch (error) {
    if (!(error instanceof ShardError)) throw error;
    const { code, problem, rule, expected, found, cause } = error;
    throw new ShardError(code, problem, { rule: rules[rule ?? ""] ?? rule, expected, found, cause });
  }
}

async function decodeGzip(stored: Uint8Array, size: number): Promise<Uint8Array> {
  try {
    // Another decoder in its place may need a moment.
    const content = await gunzip(stored, size);
    if (content?.length === size) return content;
    const details = { expected: `${size} bytes`, found: content?.length ?? `more than ${size}` };
    throw broken("size_mismatch", "P-ENC-4", "the entry decodes to another size", details);
  } catch (error) {
    if (!(error instanceof GzipError)) throw error;
    throw broken("bad_compression", "P-ENC-5", `this is not one complete gzip member: ${error.message}`);
  }
}
