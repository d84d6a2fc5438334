// The decoder of zstd against the reference implementation, which makes the frames.

import { compress, decompress, init } from "@bokuweb/zstd-wasm";
import { xxh64 } from "@shard-format/core";
import fc from "fast-check";
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
  "steps of sixteen bytes that hardly change": bytes(400_000, (i) => (i % 16 < 12 ? (i >> 12) + i : random(4))),
  "pieces of noise between equal bytes": pieces(),
  "long repetitions, some farther back than a window": farBack(3_000_000),
};

/** Noise that comes again as a whole, and between it what has one value. */
function farBack(count: number): Uint8Array {
  const made = bytes(count, (i) => (i < 600_000 ? random(256) : 7));
  for (let at = 700_000; at + 600_000 < count; at += 750_000) made.copyWithin(at, at % 999, 600_000);
  return made;
}

/** Two blocks of noise, then one of pieces of it from about as far back, with the same byte after each. */
function pieces(): Uint8Array {
  const noise = 2 << 17;
  const made = bytes(noise + 2000 * 21, (i) => (i < noise ? random(256) : 200));
  for (let i = 0; i < 2000; i++) {
    const from = 20_000 + 41 * i + random(20);
    made.copyWithin(noise + 21 * i, from, from + 20);
  }
  return made;
}

/** A frame with a checksum, of one without. */
function checked(frame: Uint8Array, content: Uint8Array): Uint8Array {
  const found = Buffer.concat([frame, new Uint8Array(4)]);
  found[4] = (found[4] as number) | 0x04;
  found.writeUInt32LE(Number(xxh64(content) & 0xffffffffn), frame.length);
  return found;
}

const levels = Array.from({ length: 19 }, (_, at) => at + 1);

/** What a frame is made of: the types of its blocks, of their literals, and of the tables of their sequences. */
function* partsOf(frame: Uint8Array): Generator<string> {
  const padded = new Uint8Array(frame.length + 8);
  padded.set(frame);
  const view = new DataView(padded.buffer);
  const head = frame[4] as number;
  let at = 5 + (head & 0x20 ? 0 : 1) + ([head & 0x20 ? 1 : 0, 2, 4, 8][head >> 6] as number);
  for (let isLast = false; !isLast; ) {
    const block = view.getUint16(at, true) | (view.getUint8(at + 2) << 16);
    at += 3;
    isLast = (block & 1) !== 0;
    yield ["raw block", "block of one byte", "compressed block"][(block >> 1) & 3] as string;
    if (((block >> 1) & 3) === 2) {
      // The head of the literals: type, form, then one size or two.
      const word = view.getBigUint64(at, true);
      const field = (from: number, bits: number) => Number(BigInt.asUintN(bits, word >> BigInt(from)));
      const [type, form] = [field(0, 2), field(2, 2)];
      yield ["raw literals", "literals of one byte", "coded literals", "literals with codes of before"][type] as string;
      let next = at;
      if (type < 2) {
        const size = form === 1 ? field(4, 12) : form === 3 ? field(4, 20) : field(3, 5);
        next += ([1, 2, 1, 3][form] as number) + (type === 0 ? size : 1);
      } else {
        const bits = [10, 10, 14, 18][form] as number;
        next += ((4 + 2 * bits) >> 3) + field(4 + bits, bits);
      }
      if (type > 1) yield form === 0 ? "one stream" : "four streams";
      const sequences = view.getUint8(next);
      next += sequences < 128 ? 1 : sequences < 255 ? 2 : 3;
      if (sequences > 0) {
        for (const shift of [6, 4, 2]) yield `table ${(view.getUint8(next) >> shift) & 3} of bits ${shift}`;
      }
    }
    at += ((block >> 1) & 3) === 1 ? 1 : block >> 3;
  }
}

describe.each(Object.entries(contents))("%s", (_name, content) => {
  test.each(content.length > 1_000_000 ? [1, 3, 9, 19] : levels)("is decoded from a frame of level %i", (level) => {
    const frame = compress(content, level);
    for (const one of [frame, checked(frame, content)]) {
      expect(Buffer.compare(zstd.decompress(one, content.length) as Uint8Array, content)).toBe(0);
    }
  });

  test("cut off anywhere is refused, or is other bytes that are not more", () => {
    const part = content.subarray(0, 2000);
    const frame = compress(part, 5);
    for (let end = 6; end < frame.length; end++) {
      const cut = attempt(frame.subarray(0, end), part.length);
      if (cut !== undefined) expect(cut.length).toBeLessThanOrEqual(part.length);
    }
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
      const found = attempt(damaged, size);
      if (expected?.length === size) expect(found === undefined || Buffer.compare(found, expected)).toBe(0);
      if (found !== undefined) expect(found.length).toBeLessThanOrEqual(size);
    }
  });
});

/** What is decoded; undefined if it is refused. */
function attempt(frame: Uint8Array, size: number): Uint8Array | undefined {
  try {
    return zstd.decompress(frame, size) as Uint8Array;
  } catch {
    return undefined;
  }
}

test("every kind of block, of literals and of tables is among these frames", () => {
  const found = new Set<string>();
  for (const content of Object.values(contents)) {
    for (const level of [1, 3, 19]) for (const part of partsOf(compress(content, level))) found.add(part);
  }
  const kinds = ["raw block", "block of one byte", "compressed block", "raw literals", "literals of one byte"];
  const literals = ["coded literals", "literals with codes of before", "one stream", "four streams"];
  const tables = [0, 1, 2, 3].flatMap((mode) => [6, 4, 2].map((shift) => `table ${mode} of bits ${shift}`));
  expect([...found].sort()).toEqual([...kinds, ...literals, ...tables].sort());
});

test("random contents are decoded from frames of all levels", () => {
  // Pieces: new bytes of some kinds, or a copy of what came before.
  const piece = fc.tuple(fc.nat(3000), fc.nat(255), fc.nat(100_000), fc.boolean());
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 60 }), fc.integer({ min: 1, max: 19 }), (pieces, level) => {
      const made: number[] = [];
      for (const [length, kinds, back, isNew] of pieces) {
        const from = Math.max(0, made.length - 1 - back);
        for (let i = 0; i < length; i++)
          made.push(isNew || made.length === 0 ? random(kinds + 1) : (made[from + i] as number));
      }
      const content = Uint8Array.from(made);
      if (content.length === 0) return;
      const frame = checked(compress(content, level), content);
      expect(Buffer.compare(zstd.decompress(frame, content.length) as Uint8Array, content)).toBe(0);
    }),
  );
});

test("the checksum of a frame is verified", () => {
  const content = contents["a picture"] as Uint8Array;
  const frame = checked(compress(content, 3), content);
  expect(zstd.decompress(frame, content.length)).toHaveLength(content.length);
  frame[frame.length - 1] = (frame[frame.length - 1] as number) ^ 1;
  expect(() => zstd.decompress(frame, content.length)).toThrow("damaged");
});

test("a frame that claims more than it may give is refused", () => {
  const content = contents["one byte again and again"] as Uint8Array;
  for (const level of [1, 19]) {
    expect(() => zstd.decompress(compress(content, level), content.length - 1)).toThrow();
  }
});
