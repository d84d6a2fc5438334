// zstd for browsers, workers and Node without a zstd of its own: decoding with the package zstddec.

import type { Zstd } from "./core/zstd.js";

let loading: Promise<Zstd> | undefined;

/** Loads the decoder, once. Give it as the option `zstd`: `openShard(source, { zstd: loadZstd })`. */
export function loadZstd(): Promise<Zstd> {
  loading ??= load();
  return loading;
}

async function load(): Promise<Zstd> {
  const { ZSTDDecoder } = await import("zstddec");
  const decoder = new ZSTDDecoder();
  await decoder.init();
  return {
    decompress(frame, size) {
      const content = decoder.decode(frame, size);
      // It returns nothing where others fail; frames without content never come here.
      if (content.length === 0) throw new Error("zstddec cannot decode the frame");
      return content;
    },
  };
}
