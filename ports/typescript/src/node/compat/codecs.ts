// Compression of single blocks under the names of @wshard/core.

import { invalid } from "../../core/errors.js";
import { decodeLz4, encodeLz4 } from "../../core/lz4.js";
import { defaultLimits } from "../../core/registry.js";
import { decodeFrames, encodeFrame, type Zstd } from "../../core/zstd.js";
import { loadZstd } from "../zstd.js";
import type { CompressionLevel, CompressionType } from "./names.js";

const levels: Readonly<Record<CompressionLevel, number>> = { fastest: 1, default: 3, best: 19 };
const smallestCompressed = 64;
let loaded: Zstd | undefined;

/** Loads zstd, which the calls that do not wait need. Readers and writers load it themselves. */
export async function initZstd(): Promise<void> {
  loaded = await loadZstd();
}

/** Hashes need no start: this resolves at once. */
export async function initXxHash(): Promise<void> {}

/** Whether zstd was loaded. */
export function hasZstdSupport(): boolean {
  return loaded !== undefined;
}

/** The number of a level. */
export function levelOf(level: CompressionLevel): number {
  return levels[level];
}

export function shouldCompress(_name: string, data: Uint8Array): boolean {
  return data.length >= smallestCompressed;
}

/** Compresses and decompresses blocks. What lz4 does not make smaller stays as it is. */
export class Compressor {
  constructor(
    readonly type: CompressionType = "none",
    readonly level: CompressionLevel = "default",
  ) {}

  async compressAsync(data: Uint8Array): Promise<Buffer> {
    if (this.type === "zstd") return Buffer.from(await encodeFrame(await loadZstd(), data, levels[this.level], false));
    return Buffer.from((this.type === "lz4" ? encodeLz4(data) : undefined) ?? data);
  }

  async decompressAsync(data: Uint8Array, origSize: number): Promise<Buffer> {
    if (this.type === "zstd") {
      return Buffer.from(await decodeFrames(await loadZstd(), data, origSize, defaultLimits.maxWindowBytes));
    }
    return Buffer.from(this.type === "lz4" && data.length < origSize ? decodeLz4(data, origSize) : data);
  }

  compress(data: Uint8Array): Buffer {
    if (this.type === "zstd") return atOnce(loaded?.compress?.(data, levels[this.level]));
    return Buffer.from((this.type === "lz4" ? encodeLz4(data) : undefined) ?? data);
  }

  decompress(data: Uint8Array, origSize: number): Buffer {
    if (this.type === "zstd") return atOnce(loaded?.decompress(data, origSize));
    return Buffer.from(this.type === "lz4" && data.length < origSize ? decodeLz4(data, origSize) : data);
  }

  close(): void {}
}

function atOnce(found: Uint8Array | Promise<Uint8Array> | undefined): Buffer {
  if (found instanceof Uint8Array) return Buffer.from(found);
  throw invalid("zstd works only asynchronously here", {
    expected: "compressAsync or decompressAsync, or initZstd first",
  });
}

export function compressBlock(data: Uint8Array, type: CompressionType, level?: CompressionLevel): Buffer {
  return new Compressor(type, level).compress(data);
}

export function compressBlockAsync(data: Uint8Array, type: CompressionType, level?: CompressionLevel): Promise<Buffer> {
  return new Compressor(type, level).compressAsync(data);
}

export function decompressBlock(data: Uint8Array, origSize: number, type: CompressionType): Buffer {
  return new Compressor(type).decompress(data, origSize);
}

export function decompressBlockAsync(data: Uint8Array, origSize: number, type: CompressionType): Promise<Buffer> {
  return new Compressor(type).decompressAsync(data, origSize);
}
