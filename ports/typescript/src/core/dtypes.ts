// The values of blocks as typed arrays.

import { invalid } from "./errors.js";
import { type DType, dtypeAliases, dtypeSizes } from "./registry.js";

/** The array that holds values of a type. f16 and bf16 are given as f32, and bools as bytes of 0 and 1. */
export interface ArrayOf {
  f64: Float64Array;
  f32: Float32Array;
  f16: Float32Array;
  bf16: Float32Array;
  i64: BigInt64Array;
  i32: Int32Array;
  i16: Int16Array;
  i8: Int8Array;
  u64: BigUint64Array;
  u32: Uint32Array;
  u16: Uint16Array;
  u8: Uint8Array;
  bool: Uint8Array;
}

/** Any of these arrays. */
export type TypedArray = ArrayOf[DType];

/** The short name of a type; undefined if the name is not known. Names are read in any letter case. */
export function toDType(name: string): DType | undefined {
  const lower = name.replace(/[A-Z]/g, (letter) => letter.toLowerCase()); // of the letters A to Z only
  if (Object.hasOwn(dtypeSizes, lower)) return lower as DType;
  return Object.hasOwn(dtypeAliases, lower) ? dtypeAliases[lower] : undefined;
}

/**
 * The values of little-endian bytes. The array shares the memory of the bytes where their place in memory allows it and
 * the type needs no conversion; otherwise it is a copy.
 */
export function toTypedArray<D extends DType>(dtype: D, bytes: Uint8Array): ArrayOf[D];
export function toTypedArray(dtype: DType, bytes: Uint8Array): TypedArray {
  const size = dtypeSizes[dtype];
  if (bytes.length % size !== 0) {
    throw invalid(`the bytes are not whole values of ${dtype}`, {
      expected: `a multiple of ${size}`,
      found: bytes.length,
    });
  }
  const { buffer, byteOffset } = bytes.byteOffset % size === 0 ? bytes : new Uint8Array(bytes);
  const count = bytes.length / size;
  switch (dtype) {
    case "f64":
      return new Float64Array(buffer, byteOffset, count);
    case "f32":
      return new Float32Array(buffer, byteOffset, count);
    case "f16":
      return fromHalves(new Uint16Array(buffer, byteOffset, count));
    case "bf16":
      return fromUpperHalves(new Uint16Array(buffer, byteOffset, count));
    case "i64":
      return new BigInt64Array(buffer, byteOffset, count);
    case "i32":
      return new Int32Array(buffer, byteOffset, count);
    case "i16":
      return new Int16Array(buffer, byteOffset, count);
    case "i8":
      return new Int8Array(buffer, byteOffset, count);
    case "u64":
      return new BigUint64Array(buffer, byteOffset, count);
    case "u32":
      return new Uint32Array(buffer, byteOffset, count);
    case "u16":
      return new Uint16Array(buffer, byteOffset, count);
    case "u8":
      return bytes;
    case "bool":
      return bytes.every((byte) => byte < 2) ? bytes : bytes.map((byte) => (byte === 0 ? 0 : 1));
  }
}

/** The values of 16-bit floats of IEEE 754. */
function fromHalves(halves: Uint16Array): Float32Array {
  const out = new Float32Array(halves.length);
  const bits = new Uint32Array(out.buffer);
  for (let i = 0; i < halves.length; i++) {
    const half = halves[i];
    const sign = (half & 0x8000) << 16;
    const exponent = (half >> 10) & 31;
    const fraction = half & 0x3ff;
    if (exponent === 0) out[i] = (sign ? -1 : 1) * fraction * 2 ** -24;
    else bits[i] = sign | ((exponent === 31 ? 255 : exponent + 112) << 23) | (fraction << 13);
  }
  return out;
}

function fromUpperHalves(halves: Uint16Array): Float32Array {
  const bits = new Uint32Array(halves.length);
  for (let i = 0; i < halves.length; i++) bits[i] = halves[i] << 16;
  return new Float32Array(bits.buffer);
}

/** The little-endian bytes of values. Only f16 and bf16, to which f32 is rounded, and bools are copied. */
export function fromTypedArray(dtype: DType, values: TypedArray): Uint8Array {
  const isRight =
    dtype === "f16" || dtype === "bf16"
      ? values instanceof Float32Array
      : values.BYTES_PER_ELEMENT === dtypeSizes[dtype];
  if (!isRight) throw invalid(`these values are not of ${dtype}`, { found: values.constructor.name });
  if (dtype === "f16") return bytesOf(toHalves(values as Float32Array));
  if (dtype === "bf16") return bytesOf(toUpperHalves(values as Float32Array));
  if (dtype === "bool") return (values as Uint8Array).map((value) => (value === 0 ? 0 : 1));
  return bytesOf(values);
}

function bytesOf({ buffer, byteOffset, byteLength }: ArrayBufferView): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}

/** Rounds to nearest, ties to even. */
function toHalves(values: Float32Array): Uint16Array {
  const out = new Uint16Array(values.length);
  const bits = new Uint32Array(new Float32Array(values).buffer);
  for (let i = 0; i < values.length; i++) {
    const sign = (bits[i] >>> 16) & 0x8000;
    const rest = bits[i] & 0x7fffffff;
    if (rest > 0x7f800000) {
      out[i] = sign | 0x7e00 | ((rest >> 13) & 0x3ff); // NaN
    } else if (rest >= 0x477ff000) {
      out[i] = sign | 0x7c00; // from 65520 on: infinite
    } else if (rest < 0x38800000) {
      out[i] = sign | halfToEven(Math.abs(values[i]) * 2 ** 24); // below 2**-14: a whole number of 2**-24
    } else {
      out[i] = sign | ((rest - 0x38000000 + 0xfff + ((rest >> 13) & 1)) >> 13);
    }
  }
  return out;
}

/** Rounds to an integer, ties to even. */
export function halfToEven(value: number): number {
  const floor = Math.floor(value);
  const rest = value - floor;
  if (rest !== 0.5) return rest < 0.5 ? floor : floor + 1;
  return floor % 2 === 0 ? floor : floor + 1;
}

function toUpperHalves(values: Float32Array): Uint16Array {
  const out = new Uint16Array(values.length);
  const bits = new Uint32Array(new Float32Array(values).buffer);
  for (let i = 0; i < values.length; i++) {
    const isNumber = (bits[i] & 0x7fffffff) <= 0x7f800000;
    out[i] = isNumber ? (bits[i] + 0x7fff + ((bits[i] >>> 16) & 1)) >>> 16 : (bits[i] >>> 16) | 0x40;
  }
  return out;
}
