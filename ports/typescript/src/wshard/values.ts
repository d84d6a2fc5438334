// Values of blocks that a caller gives, as bytes; and back (spec/registry.md, Data types).

import { fromTypedArray, type TypedArray, toTypedArray } from "../core/dtypes.js";
import { invalid, type ShardError } from "../core/errors.js";
import type { DType } from "../core/registry.js";

/** Whether a data type has no fractions. */
export function isIntegerType(dtype: DType): boolean {
  return dtype !== "bf16" && !dtype.startsWith("f");
}

/** The values as 64-bit floats; f16 and bf16 are widened, 64-bit integers rounded. */
export function toFloats(dtype: DType, bytes: Uint8Array): Float64Array {
  const values = toTypedArray(dtype, bytes);
  if (values instanceof Float64Array) return values;
  if (values instanceof BigInt64Array || values instanceof BigUint64Array) return Float64Array.from(values, Number);
  return Float64Array.from(values);
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

/** Numbers that a caller may give for a block. */
export type NumbersInput = TypedArray | Uint8ClampedArray | readonly number[] | readonly bigint[] | readonly boolean[];

/** The data type that a typed array has by itself; null for plain lists. */
export function dtypeOf(values: NumbersInput): DType | null {
  if (values instanceof Uint8ClampedArray) return "u8";
  for (const [dtype, type] of Object.entries(arrays)) if (values instanceof type) return dtype as DType;
  return null;
}

/**
 * The stored bytes of values: every bit of an array of that type as it is, and the stored bits of f16 and bf16 in a
 * Uint16Array.
 *
 * Other arrays and lists are converted, and a value that does not fit is an error. Floats are rounded.
 */
export function toBytes(dtype: DType, values: NumbersInput, entry = ""): Uint8Array {
  const own = dtypeOf(values);
  if (own === dtype) return rawBytes(values as TypedArray);
  if (dtype === "bool") return Uint8Array.from(values as ArrayLike<unknown>, (value) => (value ? 1 : 0));
  if (dtype === "f16" || dtype === "bf16") {
    if (own === "u16") return rawBytes(values as TypedArray);
    return fromTypedArray(dtype, Float32Array.from(values as ArrayLike<number>, Number));
  }
  const made = new arrays[dtype](values.length);
  for (let at = 0; at < values.length; at++) {
    const value = values[at];
    if (made instanceof BigInt64Array || made instanceof BigUint64Array) {
      if (typeof value === "number" && !Number.isSafeInteger(value)) throw unfit(dtype, value, entry);
      made[at] = BigInt(value);
      if (made[at] !== BigInt(value)) throw unfit(dtype, value, entry);
    } else {
      made[at] = Number(value);
      if (isIntegerType(dtype) && made[at] !== Number(value)) throw unfit(dtype, value, entry);
    }
  }
  return rawBytes(made);
}

function unfit(dtype: DType, value: unknown, entry: string): ShardError {
  return invalid("a value does not fit the data type", { entry, expected: dtype, found: String(value) });
}

/** The bytes under an array. */
export function rawBytes({ buffer, byteOffset, byteLength }: ArrayBufferView): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}
