// What packs decode themselves: gzip against zlib, and MessagePack.

import { gunzipSync, gzipSync } from "node:zlib";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { ShardError } from "../src/index.js";
import { GzipError, gunzip } from "../src/shardpack/gzip.js";
import { decodeMessagePack, type MessagePackValue, plainMap } from "../src/shardpack/messagepack.js";

const content = fc.oneof(
  fc.uint8Array({ maxLength: 3000 }),
  fc
    .array(fc.constantFrom("row ", "column ", "0", "1"), { maxLength: 3000 })
    .map((words) => Buffer.from(words.join(""))),
  fc.nat(100_000).map((size) => new Uint8Array(size)),
);
const levels = fc.record({ level: fc.constantFrom(0, 1, 6, 9), strategy: fc.constantFrom(0, 2, 3, 4) });

/** The content that zlib finds in exactly one member; undefined if it finds a mistake. */
function reference(stored: Uint8Array): Uint8Array | undefined {
  try {
    const { buffer, engine } = gunzipSync(stored, { info: true } as object) as unknown as {
      buffer: Uint8Array;
      engine: { bytesWritten: number };
    };
    return engine.bytesWritten === stored.length ? buffer : undefined;
  } catch {
    return undefined;
  }
}

function own(stored: Uint8Array, most: number): Uint8Array | undefined {
  try {
    return gunzip(stored, most);
  } catch (error) {
    if (error instanceof GzipError) return undefined;
    throw error;
  }
}

describe("gzip", () => {
  test("what zlib packs is unpacked, and not one byte more than is expected", () => {
    fc.assert(
      fc.property(content, levels, (data, options) => {
        const stored = gzipSync(data, options);
        expect(Buffer.compare(gunzip(stored, data.length) as Uint8Array, data)).toBe(0);
        if (data.length > 0) expect(gunzip(stored, data.length - 1)).toBeUndefined();
      }),
    );
  });

  test("damaged members are refused where zlib refuses them", () => {
    fc.assert(
      fc.property(
        content,
        levels,
        fc.array(fc.tuple(fc.nat(), fc.nat(7)), { maxLength: 2 }),
        (data, options, flips) => {
          const stored = Uint8Array.from(gzipSync(data, options));
          for (const [place, bit] of flips) stored[place % stored.length] ^= 1 << bit;
          const found = own(stored, 1 << 20);
          expect(found === undefined).toBe(reference(stored) === undefined);
        },
      ),
      { numRuns: 500 },
    );
  });

  test("cut members, two members and bytes around a member are refused", () => {
    const member = gzipSync(Buffer.from("hello hello hello hello"));
    for (let size = 0; size < member.length; size++) expect(own(member.subarray(0, size), 100)).toBeUndefined();
    for (const wrong of [
      [member, member],
      [member, Buffer.of(0)],
      [Buffer.of(0), member],
      [member, gzipSync("")],
    ]) {
      expect(own(Buffer.concat(wrong), 100)).toBeUndefined();
    }
    // Bytes between the data and the checksum, which a decoder that looks at the end only would not see.
    const hidden = Buffer.concat([member.subarray(0, -8), Buffer.from("hidden"), member.subarray(-8)]);
    expect(own(hidden, 100)).toBeUndefined();
  });

  test("a head with a name, a comment, extra fields and a checksum is skipped", () => {
    const member = gzipSync(Buffer.from("hello"));
    const named = Buffer.concat([
      member.subarray(0, 3),
      Buffer.of(4 | 8 | 16),
      member.subarray(4, 10),
      Buffer.of(2, 0, 9, 9),
      Buffer.from("name\0comment\0"),
      member.subarray(10),
    ]);
    expect(Buffer.from(gunzip(named, 5) as Uint8Array).toString()).toBe("hello");
    const reserved = Uint8Array.from(member);
    reserved[3] = 0x20;
    expect(own(reserved, 5)).toBeUndefined();
  });

  test("a false size costs no memory", () => {
    const before = process.memoryUsage().arrayBuffers;
    gunzip(gzipSync(Buffer.from("hello")), 2 ** 30);
    expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(1 << 20);
  });
});

describe("MessagePack", () => {
  const decode = (...bytes: number[]) => decodeMessagePack(Uint8Array.from(bytes), 1_000_000);

  test("every value keeps its type", () => {
    const found = decode(
      ...[0x88, 0xa1, 0x61, 0x01, 0xa1, 0x62, 0xca, 0x3f, 0x80, 0, 0, 0xa1, 0x63, 0xc4, 1, 0xff],
      ...[
        0xa1,
        0x64,
        0xd4,
        0xff,
        7,
        0xa1,
        0x65,
        0xcf,
        ...new Array(8).fill(0xff),
        0xa1,
        0x66,
        0xd3,
        0x80,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
      ],
      ...[0x01, 0xc0, 0xa1, 0x67, 0x92, 0xc2, 0xe0],
    );
    const values: [MessagePackValue, MessagePackValue][] = [
      [
        { type: "text", value: "a" },
        { type: "int", value: 1 },
      ],
      [
        { type: "text", value: "b" },
        { type: "float", value: 1 },
      ],
      [
        { type: "text", value: "c" },
        { type: "bin", value: Uint8Array.of(255) },
      ],
      [
        { type: "text", value: "d" },
        { type: "ext", code: -1, value: Uint8Array.of(7) },
      ],
      [
        { type: "text", value: "e" },
        { type: "int", value: 2n ** 64n - 1n },
      ],
      [
        { type: "text", value: "f" },
        { type: "int", value: -(2n ** 63n) },
      ],
      [
        { type: "int", value: 1 },
        { type: "nil", value: null },
      ],
      [
        { type: "text", value: "g" },
        {
          type: "list",
          value: [
            { type: "bool", value: false },
            { type: "int", value: -32 },
          ],
        },
      ],
    ];
    expect(found).toEqual({ type: "map", value: values });
    expect(plainMap(found)["1"]).toBeNull();
  });

  test('a key may not be repeated, but 1, 1.0 and "1" are three keys', () => {
    expect(decode(0x83, 1, 0xc0, 0xca, 0x3f, 0x80, 0, 0, 0xc0, 0xa1, 0x31, 0xc0).value).toHaveLength(3);
    expect(() => decode(0x82, 1, 0xc0, 0xcc, 1, 0xc0)).toThrow("repeats a key");
  });

  test("any bytes give a map or a ShardError", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 40 }), (data) => {
        try {
          plainMap(decodeMessagePack(data, 20));
        } catch (error) {
          expect(error).toBeInstanceOf(ShardError);
          expect((error as ShardError).rule).toBe("P-MTD-3");
        }
      }),
      { numRuns: 2000 },
    );
  });
});
