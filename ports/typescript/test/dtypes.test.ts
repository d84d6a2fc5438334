import { describe, expect, test } from "vitest";
import { fromTypedArray, toDType, toTypedArray } from "../src/index.js";

describe("values of blocks", () => {
  test("are views where their place in memory allows it, and copies elsewhere", () => {
    const bytes = new Uint8Array(64).map((_, i) => i);
    for (const dtype of ["f64", "f32", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool"] as const) {
      const aligned = toTypedArray(dtype, bytes.subarray(8, 24));
      expect(aligned.buffer === bytes.buffer).toBe(dtype !== "bool");
      const odd = toTypedArray(dtype, bytes.subarray(1, 17));
      if (dtype !== "bool") {
        expect(fromTypedArray(dtype, odd)).toEqual(bytes.slice(1, 17));
        expect(odd.buffer === bytes.buffer).toBe(odd.BYTES_PER_ELEMENT === 1);
      }
    }
    expect(toTypedArray("bool", Uint8Array.of(0, 1, 2, 255))).toEqual(Uint8Array.of(0, 1, 1, 1));
    expect(() => toTypedArray("f32", new Uint8Array(6))).toThrow("invalid_argument");
    expect(() => fromTypedArray("f32", new Float64Array(1))).toThrow("invalid_argument");
  });

  test("of 16 bits read as f32, and every one is written again", () => {
    const halves = Uint16Array.from({ length: 65536 }, (_, i) => i);
    const bytes = new Uint8Array(halves.buffer);
    for (const dtype of ["f16", "bf16"] as const) {
      const values = toTypedArray(dtype, bytes);
      const again = new Uint16Array(fromTypedArray(dtype, values).buffer);
      for (let i = 0; i < 65536; i++) {
        if (!Number.isNaN(values[i]) && again[i] !== i) throw new Error(`${dtype} ${i} becomes ${again[i]}`);
      }
    }
    const known = toTypedArray("f16", new Uint8Array(Uint16Array.of(0x3c00, 0xc000, 0x7bff, 1, 0x7c00, 0x8000).buffer));
    expect([...known]).toEqual([1, -2, 65504, 2 ** -24, Number.POSITIVE_INFINITY, -0]);
    expect(toTypedArray("bf16", Uint8Array.of(0x80, 0x3f))[0]).toBe(1);
  });

  test("are rounded to 16 bits to nearest, ties to even", () => {
    const cases: [number, number][] = [
      [1 + 2 ** -11, 0x3c00],
      [1 + 3 * 2 ** -11, 0x3c02],
      [65519, 0x7bff],
      [65520, 0x7c00],
      [2 ** -25, 0],
      [3 * 2 ** -25, 2],
      [2 ** -14 - 2 ** -25, 0x0400],
    ];
    const found = new Uint16Array(fromTypedArray("f16", Float32Array.from(cases.map(([value]) => value))).buffer);
    expect([...found]).toEqual(cases.map(([, half]) => half));
    const upper = new Uint16Array(fromTypedArray("bf16", Float32Array.of(1 + 2 ** -8, 1 + 3 * 2 ** -8)).buffer);
    expect([...upper]).toEqual([0x3f80, 0x3f82]);
  });

  test("have names in any letter case, of the letters A to Z", () => {
    expect(["f32", "FLOAT32", "BFloat16", "bool"].map(toDType)).toEqual(["f32", "f32", "bf16", "bool"]);
    expect(["constructor", "f8", "", "İ32"].map(toDType)).toEqual([undefined, undefined, undefined, undefined]);
  });
});
