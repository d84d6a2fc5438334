// zstd of Node: node:zlib from Node 22.15 on, else packages.

import * as zlib from "node:zlib";
import { ShardError } from "../core/errors.js";
import type { Zstd } from "../core/zstd.js";
import { loadZstd as loadDecoder } from "../zstd.js";

/** The part of node:zlib that Node 20 does not have. */
interface ZlibZstd {
  zstdCompressSync?(data: Uint8Array, options: { params: Record<number, number>; pledgedSrcSize: number }): Uint8Array;
  zstdDecompressSync?(data: Uint8Array, options: { chunkSize: number; maxOutputLength: number }): Uint8Array;
  constants: { ZSTD_c_compressionLevel?: number };
}

let loading: Promise<Zstd> | undefined;

/** Loads the best zstd that is there, once. */
export function loadZstd(): Promise<Zstd> {
  loading ??= load();
  return loading;
}

async function load(): Promise<Zstd> {
  const { zstdCompressSync, zstdDecompressSync, constants } = zlib as ZlibZstd;
  const level = constants.ZSTD_c_compressionLevel;
  if (!zstdCompressSync || !zstdDecompressSync || level === undefined) return loadPackages();
  return {
    decompress: (frame, size) => zstdDecompressSync(frame, { chunkSize: Math.max(size, 64), maxOutputLength: size }),
    compress: (data, chosen) => zstdCompressSync(data, { params: { [level]: chosen }, pledgedSrcSize: data.length }),
  };
}

async function loadPackages(): Promise<Zstd> {
  const { decompress } = await loadDecoder();
  let encoder: Promise<typeof import("@bokuweb/zstd-wasm")> | undefined;
  return {
    decompress,
    async compress(data, level) {
      encoder ??= loadEncoder();
      return (await encoder).compress(data, level);
    },
  };
}

async function loadEncoder() {
  let encoder: typeof import("@bokuweb/zstd-wasm");
  try {
    encoder = await import("@bokuweb/zstd-wasm");
  } catch (cause) {
    const problem = "writing zstd needs Node 22.15 or later, or the package @bokuweb/zstd-wasm";
    throw new ShardError("missing_extra", problem, { cause });
  }
  await encoder.init();
  return encoder;
}
