// zstd for browsers, workers and Node without a zstd of its own: decoding with the package zstddec.

import type { Zstd } from "./core/zstd.js";

let loading: Promise<Zstd> | undefined;

/** Loads the decoder, once. Give it as the option `zstd`: `openShard(source, { zstd: loadZstd })`. */
export function loadZstd(): Promise<Zstd> {
  loading ??= load().catch((error: unknown) => {
    loading = undefined; // the next call may have more luck
    throw error;
  });
  return loading;
}

async function load(): Promise<Zstd> {
  const { ZSTDDecoder } = await import("zstddec");
  const decoder = new ZSTDDecoder();
  await withFetchOfData(() => decoder.init());
  return {
    decompress(frame, size) {
      const content = decoder.decode(frame, size);
      // It returns nothing where others fail; frames without content never come here.
      if (content.length === 0) throw new Error("zstddec cannot decode the frame");
      return content;
    },
  };
}

/**
 * zstddec fetches its own bytes from a `data:` address, which the `connect-src` of a strict page forbids. While it
 * starts, which takes one call that waits for nothing, `fetch` decodes such an address itself.
 */
function withFetchOfData<T>(start: () => T): T {
  const { fetch } = globalThis;
  const isData = /^data:[^,]*;base64,/;
  const fetchData: typeof fetch = async (given, options) => {
    const prefix = typeof given === "string" ? isData.exec(given) : null;
    if (prefix === null) return fetch(given, options);
    return new Response(Uint8Array.from(atob((given as string).slice(prefix[0].length)), (one) => one.charCodeAt(0)));
  };
  try {
    globalThis.fetch = fetchData;
    return start();
  } finally {
    globalThis.fetch = fetch;
  }
}
