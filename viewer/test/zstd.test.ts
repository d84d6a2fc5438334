// The decoder of zstd against the reference implementation, which makes the frames.

import { compress, decompress, init } from "@bokuweb/zstd-wasm";
import { xxh64 } from "@shard-format/core";
import { beforeAll, describe, expect, test } from "vitest";
import { zstd } from "../src/worker/zstd";

beforeAll(() => init());

let state = 1;
/** A number from 0 to below `limit`, the same ones in every run. */
function random(limit: number): number {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return Math.floor((state / 2 ** 32) * limit);
}

function bytes(count: number, at: (index: number) => number): Uint8Array {
  return Uint8Array.from({ length: count }, (_, i) => at(i));
}

/** Pieces of what came before, between bytes of few kinds. */
function repetitive(count: number): Uint8Array {
  const made = bytes(count, () => 97 + random(20));
  for (let at = 100; at < count; at += 20 + random(60)) made.copyWithin(at, random(at), random(at) + 1);
  return made;
}

const walk = new Float32Array(100_000);
for (let i = 1; i < walk.length; i++) walk[i] = (walk[i - 1] as number) + random(1000) / 1000 - 0.5;
const contents: Record<string, Uint8Array> = {
  "one byte": Uint8Array.of(7),
  "a few bytes": bytes(300, () => random(3)),
  "one byte again and again": new Uint8Array(300_000).fill(9),
  noise: bytes(200_000, () => random(256)),
  "a picture": bytes(240 * 320 * 3, (i) => (Math.floor(i / 960) + (i % 960) / 7 + random(4)) & 255),
  "a random walk of floats": new Uint8Array(walk.buffer),
  "text with repetitions": repetitive(400_000),
  "bytes of which one is frequent": bytes(100_000, () => (random(30) ? 0 : random(256))),
};

describe.each(Object.entries(contents))("%s", (_name, content) => {
  test.each([1, 3, 9, 19])("is decoded from a frame of level %i", (level) => {
    const frame = compress(content, level);
    expect(Buffer.compare(zstd.decompress(frame, content.length) as Uint8Array, content)).toBe(0);
  });

  test("damaged is decoded as the reference does, or refused", () => {
    const frame = compress(content.subarray(0, 3000), 9);
    const size = Math.min(content.length, 3000);
    for (let i = 0; i < 300; i++) {
      const damaged = frame.slice();
      for (let at = 0; at <= random(3); at++) damaged[8 + random(frame.length - 8)] = random(256);
      let expected: Uint8Array | undefined;
      try {
        expected = decompress(damaged, { defaultHeapSize: size });
      } catch {
        // the reference refuses it
      }
      let found: Uint8Array | undefined;
      try {
        found = zstd.decompress(damaged, size) as Uint8Array;
      } catch {
        // refused, too
      }
      if (expected?.length === size) expect(found === undefined || Buffer.compare(found, expected)).toBe(0);
      if (found !== undefined) expect(found.length).toBeLessThanOrEqual(size);
    }
  });
});

test("the checksum of a frame is verified", () => {
  const content = contents["a picture"] as Uint8Array;
  const frame = Buffer.concat([compress(content, 3), new Uint8Array(4)]);
  frame[4] = (frame[4] as number) | 0x04;
  frame.writeUInt32LE(Number(xxh64(content) & 0xffffffffn), frame.length - 4);
  expect(zstd.decompress(frame, content.length)).toHaveLength(content.length);
  frame[frame.length - 1] = (frame[frame.length - 1] as number) ^ 1;
  expect(() => zstd.decompress(frame, content.length)).toThrow("damaged");
});
