// In place of the decoder of `@shard-format/core`, see vite.config.ts: a browser refuses whatever is not one gzip member.

import { inflate } from "../model/inflate";

export class GzipError extends Error {}

export async function gunzip(stored: Uint8Array, most: number): Promise<Uint8Array | undefined> {
  try {
    return await inflate([stored], "gzip", most);
  } catch (error) {
    throw new GzipError(error instanceof Error ? error.message : "");
  }
}
