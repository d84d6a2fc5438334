/** The values of blocks: little-endian bytes as typed arrays, and back (spec/registry.md, Data types). */

import { invalid, type ShardError } from "../core/errors.js";
import { type DType, dtypeAliases, dtypeSizes } from "../core/registry.js";

/** What a block reads as: f16 and bf16 as Float32Array, 64-bit integers as BigInt arrays, bool as 0 and 1. */
export type Values =
  | Float64Array
  | Float32Array
  | BigInt64Array
  | BigUint64Array
  | Int32Array
  | Uint32Array
  | Int16Array
  | Uint16Array
  | Int8Array
  | Uint8Array;

const isLittleEndian = new Uint8Array(new Uint16Array([1]).buffer)[0] === 1;

/** The bytes of one value. */
export function itemSize(dtype: DType): number {
  return dtypeSizes[dtype];
}

/** The data type of a name in any letter case (of A to Z only); null if there is none. */
export function parseDType(name: string): DType | null {
  const lower = name.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
  if (Object.hasOwn(dtypeSizes, lower)) return lower as DType;
  return Object.hasOwn(dtypeAliases, lower) ? dtypeAliases[lower] : null;
}

/** Whether a data type has no fractions. */
export function isIntegerType(dtype: DType): boolean {
  return dtype !== "bf16" && !dtype.startsWith("f");
}

const arrays = {
  f64: Float64Array,
  f32: Float32Array,
  i64: BigInt64Array,
  i32: Int32Array,
  i16: Int16Array,
  i8: Int8Array,
  u64: BigUint64Array,
  u32: Uint32Array,
  u16: Uint16Array,
  u8: Uint8Array,
} as const;

/** The values of stored bytes: a view of them where their alignment allows it, otherwise a copy. */
export function toValues(dtype: DType, bytes: Uint8Array): Values {
  if (dtype === "bool") return bytes.some((byte) => byte > 1) ? bytes.map((byte) => (byte ? 1 : 0)) : bytes;
  if (dtype === "f16") return halvesToFloats(words(bytes));
  if (dtype === "bf16") return upperHalvesToFloats(words(bytes));
  const size = dtypeSizes[dtype];
  const { buffer, byteOffset, length } = aligned(bytes, size);
  return new arrays[dtype](buffer as ArrayBuffer, byteOffset, length / size);
}

/** 64-bit integers of stored bytes. */
export function toBigInts(bytes: Uint8Array): BigInt64Array {
  return toValues("i64", bytes) as BigInt64Array;
}

/** The values as 64-bit floats; bits of f16 and bf16 are widened, 64-bit integers rounded. */
export function toFloats(dtype: DType, bytes: Uint8Array): Float64Array {
  const values = toValues(dtype, bytes);
  if (values instanceof Float64Array) return values;
  if (values instanceof BigInt64Array || values instanceof BigUint64Array) return Float64Array.from(values, Number);
  return Float64Array.from(values);
}

function words(bytes: Uint8Array): Uint16Array {
  return toValues("u16", bytes) as Uint16Array;
}

/** Bytes that an array of `size`-byte numbers of this machine can lie over. */
function aligned(bytes: Uint8Array, size: number): Uint8Array {
  if (isLittleEndian) return bytes.byteOffset % size === 0 ? bytes : bytes.slice();
  return swapped(bytes, size);
}

function swapped(bytes: Uint8Array, size: number): Uint8Array {
  const copy = bytes.slice();
  for (let at = 0; at + size <= copy.length; at += size) copy.subarray(at, at + size).reverse();
  return copy;
}

function upperHalvesToFloats(halves: Uint16Array): Float32Array {
  const bits = new Uint32Array(halves.length);
  for (let at = 0; at < halves.length; at++) bits[at] = halves[at] << 16;
  return new Float32Array(bits.buffer);
}

let widened: Uint32Array | null = null;

/** The bits of every half-precision float as a single. */
function wideHalves(): Uint32Array {
  if (widened !== null) return widened;
  const table = new Uint32Array(1 << 16);
  for (let half = 0; half < table.length; half++) {
    const sign = (half & 0x8000) << 16;
    const exponent = (half >> 10) & 0x1f;
    let fraction = half & 0x3ff;
    if (exponent === 0x1f) table[half] = sign | 0x7f800000 | (fraction << 13);
    else if (exponent) table[half] = sign | ((exponent + 112) << 23) | (fraction << 13);
    else if (fraction) {
      let shift = 0;
      for (; !(fraction & 0x400); shift++) fraction <<= 1;
      table[half] = sign | ((113 - shift) << 23) | ((fraction & 0x3ff) << 13);
    } else table[half] = sign;
  }
  return (widened = table);
}

function halvesToFloats(halves: Uint16Array): Float32Array {
  const table = wideHalves();
  const bits = new Uint32Array(halves.length);
  for (let at = 0; at < halves.length; at++) bits[at] = table[halves[at]];
  return new Float32Array(bits.buffer);
}

// --- writing

/** Numbers that a caller may give for a block. */
export type NumbersInput = Values | Uint8ClampedArray | readonly number[] | readonly bigint[] | readonly boolean[];

/** The data type that a typed array has by itself; null for plain lists. */
export function dtypeOf(values: NumbersInput): DType | null {
  if (values instanceof Uint8ClampedArray) return "u8";
  for (const [dtype, type] of Object.entries(arrays)) if (values instanceof type) return dtype as DType;
  return null;
}

/**
 * The stored bytes of values: every bit of an array of that type as it is.
 *
 * Other arrays and lists are converted, and a value that does not fit is an error. Floats are rounded, as assigning to a typed array does.
 */
export function toBytes(dtype: DType, values: NumbersInput, entry = ""): Uint8Array {
  const own = dtypeOf(values);
  if (own === dtype || (dtype === "bool" && own === "u8")) return rawBytes(values as Values);
  if (dtype === "bool") return Uint8Array.from(values as ArrayLike<unknown>, (value) => (value ? 1 : 0));
  if (dtype === "f16" || dtype === "bf16") {
    if (own === "u16") return rawBytes(values as Values); // the stored bits
    const singles = Float32Array.from(values as ArrayLike<number>, Number);
    return rawBytes(dtype === "f16" ? floatsToHalves(singles) : floatsToUpperHalves(singles));
  }
  const type = arrays[dtype];
  const isBig = dtype === "i64" || dtype === "u64";
  const made = new type(values.length);
  for (let at = 0; at < values.length; at++) {
    const value = values[at];
    if (isBig) {
      if (typeof value === "number" && !Number.isSafeInteger(value)) throw unfit(dtype, value, entry);
      made[at] = BigInt(value) as never;
      if ((made[at] as unknown) !== BigInt(value)) throw unfit(dtype, value, entry);
    } else {
      made[at] = Number(value) as never;
      const isFloat = dtype === "f64" || dtype === "f32";
      if (!isFloat && made[at] !== Number(value)) throw unfit(dtype, value, entry);
    }
  }
  return rawBytes(made);
}

function unfit(dtype: DType, value: unknown, entry: string): ShardError {
  return invalid("a value does not fit the data type", { entry, expected: dtype, found: String(value) });
}

/** The little-endian bytes under an array. */
export function rawBytes(values: ArrayBufferView): Uint8Array {
  const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
  const size = (values as { BYTES_PER_ELEMENT?: number }).BYTES_PER_ELEMENT ?? 1;
  return isLittleEndian || size === 1 ? bytes : swapped(bytes, size);
}

function floatsToUpperHalves(singles: Float32Array): Uint16Array {
  const bits = new Uint32Array(singles.buffer, singles.byteOffset, singles.length);
  return Uint16Array.from(bits, (one) => {
    if ((one & 0x7fffffff) > 0x7f800000) return (one >>> 16) | 0x40; // NaN stays NaN
    return (one + 0x7fff + ((one >>> 16) & 1)) >>> 16;
  });
}

function floatsToHalves(singles: Float32Array): Uint16Array {
  return Uint16Array.from(singles, toHalf);
}

/** The nearest half-precision float, ties to even, as bits. */
function toHalf(value: number): number {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (Number.isNaN(value)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  // The unit of the last place of a half at this size: everything below is rounded in one exact division.
  const exponent = Math.max(-14, Math.floor(Math.log2(size)));
  const corrected = size >= 2 ** (exponent + 1) ? exponent + 1 : size < 2 ** exponent && exponent > -14 ? exponent - 1 : exponent;
  const steps = roundEven(size / 2 ** (corrected - 10));
  return sign | (steps >= 1024 || corrected > -14 ? steps + ((corrected + 14) << 10) : steps);
}

/** Rounds to an integer, halves to even. */
export function roundEven(value: number): number {
  const down = Math.floor(value);
  const rest = value - down;
  if (rest < 0.5) return down;
  if (rest > 0.5) return down + 1;
  return down % 2 === 0 ? down : down + 1;
}
