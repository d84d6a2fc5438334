// In place of the decoder of `@shard-format/core`, see vite.config.ts.

export function decodeMessagePack(): never {
  throw new Error("the viewer does not read MessagePack");
}

export const plainMap = decodeMessagePack;
