import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, test, vi } from "vitest";
import { compareUtf8, encodeUtf8, fromHex } from "../src/core/bytes.js";
import { parseJson } from "../src/core/json.js";
import { alignUp } from "../src/core/layout.js";
import { dtypeSizes } from "../src/core/registry.js";
import { computeSha256 } from "../src/core/sha256.js";
import { canonicalJson, crc32c, type Json, sha256, xxh64 } from "../src/index.js";

const primitives = JSON.parse(readFileSync(new URL("../../../spec/vectors/primitives.json", import.meta.url), "utf8"));

const bytes = (text: string) => encodeUtf8(text) as Uint8Array;

function floatOfBits(digits: string): number {
  return new DataView((fromHex(digits) as Uint8Array).buffer).getFloat64(0);
}

describe("the numbers of primitives.json", () => {
  test("hashes are right", () => {
    for (const one of [...primitives.hashes_of_ramps, ...primitives.hashes_of_texts]) {
      const input = fromHex(one.input_hex) as Uint8Array;
      expect(crc32c(input).toString(16).padStart(8, "0")).toBe(one.crc32c);
      expect(xxh64(input).toString(16).padStart(16, "0")).toBe(one.xxh64);
    }
  });

  test("SHA-256 is the same with and without Web Crypto", async () => {
    for (let length = 0; length < 300; length++) {
      // Part of a larger buffer, as blocks of a file are.
      const input = Uint8Array.from({ length: length + 3 }, (_, at) => (at * 89) & 255).subarray(3);
      const found = computeSha256(input);
      expect(found).toBe(createHash("sha256").update(input).digest("hex"));
      expect(found).toBe(await sha256(input));
    }
    vi.stubGlobal("crypto", {}); // as in the worker of a page of plain http
    expect(await sha256(bytes("abc"))).toBe("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    vi.unstubAllGlobals();
  });

  test("offsets are aligned without 32-bit operations", () => {
    for (const one of primitives.align) {
      if (Number.isSafeInteger(Number(one.result))) {
        expect(alignUp(Number(one.offset), Number(one.alignment))).toBe(Number(one.result));
      }
    }
    expect(alignUp(2 ** 31 + 10, 64)).toBe(2 ** 31 + 64);
  });

  test("types of values have the right sizes", () => {
    const found = Object.fromEntries(Object.entries(dtypeSizes).map(([name, size]) => [name, String(size)]));
    expect(found).toEqual(primitives.dtype_sizes);
  });

  test("JSON numbers are read by their text", () => {
    for (const one of primitives.json_numbers) {
      const value = parseJson(bytes(one.text));
      if (one.integer !== undefined) {
        expect(String(value)).toBe(one.integer);
        expect(typeof value).toBe(Number.isSafeInteger(Number(one.integer)) ? "number" : "bigint");
      } else {
        expect(value).toBe(floatOfBits(one.bits));
      }
    }
    for (const text of primitives.json_numbers_refused) expect(() => parseJson(bytes(text)), text).toThrow("S-SCH-2");
  });

  test("JSON is written in canonical form", () => {
    for (const one of primitives.numbers) expect(canonicalJson(floatOfBits(one.bits))).toBe(one.canonical);
    for (const one of primitives.json_strings) {
      expect(bytes(canonicalJson(one.value))).toEqual(fromHex(one.canonical_hex));
    }
    expect([...primitives.json_keys_in_order].reverse().sort(compareUtf8)).toEqual(primitives.json_keys_in_order);
  });
});

describe("properties", () => {
  test("a value that is written and read again is the same", () => {
    const { value } = fc.letrec<{ value: Json }>((tie) => ({
      value: fc.oneof(
        { maxDepth: 3 },
        fc.constant(null),
        fc.boolean(),
        fc.double({ noNaN: true, noDefaultInfinity: true, min: -(2 ** 53) + 1, max: 2 ** 53 - 1 }),
        fc.bigInt().filter((n) => n > 2n ** 53n || n < -(2n ** 53n)),
        fc.string({ unit: "binary", maxLength: 20 }),
        fc.array(tie("value")),
        fc.dictionary(fc.string({ unit: "binary", maxLength: 10 }), tie("value"), { maxKeys: 8 }),
      ),
    }));
    fc.assert(
      fc.property(value, (given) => {
        const text = canonicalJson(given);
        expect(canonicalJson(parseJson(bytes(text)))).toBe(text);
      }),
    );
  });

  test("a checksum can be continued", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 100 }), fc.nat(100), (data, cut) => {
        expect(crc32c(data.subarray(cut), crc32c(data.subarray(0, cut)))).toBe(crc32c(data));
      }),
    );
  });

  test("long bytes have the checksum of their short pieces", () => {
    const piece = 30_000;
    const all = new Uint8Array(300_000).map((_, at) => Math.imul(at, 2654435761) >>> 13);
    const lengths = fc.oneof(fc.integer({ min: 32_750, max: 32_800 }), fc.integer({ min: 0, max: 299_000 }));
    fc.assert(
      fc.property(fc.nat(1000), lengths, fc.integer({ min: 0, max: 2 ** 32 - 1 }), (start, length, before) => {
        const data = all.subarray(start, start + length);
        let expected = before;
        for (let at = 0; at < length; at += piece) expected = crc32c(data.subarray(at, at + piece), expected);
        expect(crc32c(data, before)).toBe(expected);
      }),
    );
  });

  test("long bytes have the same checksum where WebAssembly is forbidden", async () => {
    const data = new Uint8Array(100_000).map((_, at) => at % 251);
    vi.stubGlobal("WebAssembly", undefined);
    vi.resetModules();
    const other = await import("../src/core/crc32c.js");
    const found = other.crc32c(data);
    vi.unstubAllGlobals();
    expect(found).toBe(crc32c(data));
  });

  test("keys are in the order of their UTF-8 bytes", () => {
    const text = fc.string({ unit: "binary" });
    fc.assert(
      fc.property(text, text, (a, b) => {
        expect(Math.sign(compareUtf8(a, b))).toBe(Math.sign(Buffer.compare(bytes(a), bytes(b))));
      }),
    );
  });
});
