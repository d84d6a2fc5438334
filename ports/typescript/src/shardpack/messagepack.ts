// Reading MessagePack, which some writers use for the metadata of records. Every value keeps its type.

import { decodeUtf8, toHex, viewOf } from "../core/bytes.js";
import { broken, type ShardError } from "../core/errors.js";

const rule = "P-MTD-3";
const deepest = 128;

/** A value of MessagePack with its type: JavaScript alone could not tell 1 from 1.0. */
export type MessagePackValue =
  | { readonly type: "nil"; readonly value: null }
  | { readonly type: "bool"; readonly value: boolean }
  /** A bigint if it is outside ±(2⁵³ − 1). */
  | { readonly type: "int"; readonly value: number | bigint }
  | { readonly type: "float"; readonly value: number }
  | { readonly type: "text"; readonly value: string }
  | { readonly type: "bin"; readonly value: Uint8Array }
  | { readonly type: "ext"; readonly code: number; readonly value: Uint8Array }
  | { readonly type: "list"; readonly value: readonly MessagePackValue[] }
  | { readonly type: "map"; readonly value: readonly (readonly [MessagePackValue, MessagePackValue])[] };

export type MessagePackMap = Extract<MessagePackValue, { type: "map" }>;

/**
 * The one map that these bytes are.
 *
 * @throws ShardError `bad_metadata` if they are anything else, `limit_exceeded` if they have more than `mostValues` keys, values and items.
 */
export function decodeMessagePack(data: Uint8Array, mostValues: number): MessagePackMap {
  const reader = new Reader(data, mostValues);
  const found = reader.value(1);
  if (reader.at !== data.length) throw bad("bytes follow the value");
  if (found.type !== "map") throw bad(`a map is expected, not a value of the type ${found.type}`);
  return found;
}

function bad(problem: string): ShardError {
  return broken("bad_metadata", rule, `the MessagePack of a record is wrong: ${problem}`);
}

class Reader {
  at = 0;
  readonly #data: Uint8Array;
  readonly #fields: DataView;
  readonly #mostValues: number;
  #values = 0;

  constructor(data: Uint8Array, mostValues: number) {
    this.#data = data;
    this.#fields = viewOf(data);
    this.#mostValues = mostValues;
  }

  value(level: number): MessagePackValue {
    const first = this.#unsigned(1);
    if (first < 0x80) return { type: "int", value: first };
    if (first >= 0xe0) return { type: "int", value: first - 0x100 };
    if (first < 0x90) return this.#map(first & 0x0f, level);
    if (first < 0xa0) return this.#list(first & 0x0f, level);
    if (first < 0xc0) return this.#text(first & 0x1f);
    switch (first) {
      case 0xc0:
        return { type: "nil", value: null };
      case 0xc2:
      case 0xc3:
        return { type: "bool", value: first === 0xc3 };
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return { type: "bin", value: this.#bytes(this.#unsigned(1 << (first - 0xc4))) };
      case 0xc7:
      case 0xc8:
      case 0xc9:
        return this.#extension(this.#unsigned(1 << (first - 0xc7)));
      case 0xca:
        return { type: "float", value: this.#fields.getFloat32(this.#skip(4)) };
      case 0xcb:
        return { type: "float", value: this.#fields.getFloat64(this.#skip(8)) };
      case 0xcc:
      case 0xcd:
      case 0xce:
        return { type: "int", value: this.#unsigned(1 << (first - 0xcc)) };
      case 0xcf:
        return { type: "int", value: shortest(this.#fields.getBigUint64(this.#skip(8))) };
      case 0xd0:
        return { type: "int", value: this.#fields.getInt8(this.#skip(1)) };
      case 0xd1:
        return { type: "int", value: this.#fields.getInt16(this.#skip(2)) };
      case 0xd2:
        return { type: "int", value: this.#fields.getInt32(this.#skip(4)) };
      case 0xd3:
        return { type: "int", value: shortest(this.#fields.getBigInt64(this.#skip(8))) };
      case 0xd4:
      case 0xd5:
      case 0xd6:
      case 0xd7:
      case 0xd8:
        return this.#extension(1 << (first - 0xd4));
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.#text(this.#unsigned(1 << (first - 0xd9)));
      case 0xdc:
      case 0xdd:
        return this.#list(this.#unsigned(2 << (first - 0xdc)), level);
      case 0xde:
      case 0xdf:
        return this.#map(this.#unsigned(2 << (first - 0xde)), level);
      default:
        throw bad(`no value starts with the byte 0x${first.toString(16)}`);
    }
  }

  /** Where the next `size` bytes start; they are used up. */
  #skip(size: number): number {
    const start = this.at;
    if (size > this.#data.length - start) throw bad("it ends too early");
    this.at += size;
    return start;
  }

  #bytes(size: number): Uint8Array {
    const start = this.#skip(size);
    return this.#data.subarray(start, start + size);
  }

  #unsigned(width: number): number {
    const start = this.#skip(width);
    if (width === 1) return this.#fields.getUint8(start);
    return width === 2 ? this.#fields.getUint16(start) : this.#fields.getUint32(start);
  }

  #text(size: number): MessagePackValue {
    const value = decodeUtf8(this.#bytes(size));
    if (value === undefined) throw bad("a string is not UTF-8");
    return { type: "text", value };
  }

  #extension(size: number): MessagePackValue {
    const code = this.#fields.getInt8(this.#skip(1));
    return { type: "ext", code, value: this.#bytes(size) };
  }

  /** Refuse what a list or a map claims to hold, before anything is made of it. */
  #expect(values: number, level: number): void {
    if (level > deepest) throw bad(`it has more than ${deepest} levels`);
    // Each value has at least one byte.
    if (values > this.#data.length - this.at) throw bad("it ends too early");
    this.#values += values;
    if (this.#values > this.#mostValues)
      throw broken("limit_exceeded", rule, "the MessagePack of a record has too many values", {
        expected: `at most ${this.#mostValues}`,
        found: `${this.#values} or more`,
      });
  }

  #list(count: number, level: number): MessagePackValue {
    this.#expect(count, level);
    const value: MessagePackValue[] = [];
    for (let number = 0; number < count; number++) value.push(this.value(level + 1));
    return { type: "list", value };
  }

  #map(count: number, level: number): MessagePackMap {
    this.#expect(2 * count, level);
    const value: [MessagePackValue, MessagePackValue][] = [];
    const seen = new Set<string>();
    for (let number = 0; number < count; number++) {
      const key = this.value(level + 1);
      const id = identify(key);
      if (seen.has(id)) throw bad("a map repeats a key");
      seen.add(id);
      value.push([key, this.value(level + 1)]);
    }
    return { type: "map", value };
  }
}

function shortest(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

/** A string that two keys share if they are the same. */
function identify(key: MessagePackValue): string {
  switch (key.type) {
    case "list":
    case "map":
      throw bad("a key is a list or a map");
    case "float":
      return Object.is(key.value, -0) ? "float:-0" : `float:${key.value}`;
    case "bin":
      return `bin:${toHex(key.value)}`;
    case "ext":
      return `ext:${key.code}:${toHex(key.value)}`;
    default:
      return `${key.type}:${key.value}`;
  }
}

/** An extension value of MessagePack, whose meaning only its writer knows. */
export interface MessagePackExtension {
  readonly code: number;
  readonly data: Uint8Array;
}

/** A value without its type: lists as arrays, maps as objects. A key that is not a text becomes one: 1 is "1". */
export function plainValue(found: MessagePackValue): unknown {
  switch (found.type) {
    case "list":
      return found.value.map(plainValue);
    case "map":
      return plainMap(found);
    case "ext":
      return { code: found.code, data: found.value } satisfies MessagePackExtension;
    default:
      return found.value;
  }
}

/** A map as an object without a prototype, so that any key is safe. */
export function plainMap(found: MessagePackMap): Record<string, unknown> {
  const plain: Record<string, unknown> = Object.create(null);
  for (const [key, value] of found.value) {
    plain[key.value instanceof Uint8Array ? toHex(key.value) : String(key.value)] = plainValue(value);
  }
  return plain;
}
