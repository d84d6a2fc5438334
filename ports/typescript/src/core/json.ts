// The JSON of spec/registry.md: a strict subset of RFC 8259, and its canonical form.

import { compareUtf8, decodeUtf8, encodeUtf8, isWellFormed } from "./bytes.js";
import { broken, invalid, shortened } from "./errors.js";
import { defaultLimits, type ErrorCode } from "./registry.js";

/** A JSON value. Integers outside ±(2⁵³ − 1) are bigints; all other numbers are numbers. */
export type Json = null | boolean | number | bigint | string | Json[] | JsonObject;

/** A JSON object. Objects that the parser makes have no prototype, so any key is safe. */
export interface JsonObject {
  [key: string]: Json;
}

const maxDepth = 128;
const maxDigits = 4000;

/** What a text may ask for, and which error tells that it is wrong. */
export interface JsonOptions {
  /** What the text is, for the message. */
  what?: string;
  code?: ErrorCode;
  rule?: string;
  maxJsonBytes?: number;
  maxJsonNodes?: number;
}

/**
 * The keys, or places in a list, whose number was written with a fraction or an exponent although it is whole: `30.0`
 * is not an integer to the specification, but JavaScript has one kind of number.
 */
const wholeFloats = /* @__PURE__ */ new WeakMap<object, Set<string | number>>();

/** Whether a value is an integer: of a parsed text, whether it was written as one. */
export function isInteger(holder: JsonObject | Json[], key: string | number): boolean {
  const value = (holder as JsonObject)[key];
  return typeof value === "bigint" || (Number.isSafeInteger(value) && !wholeFloats.get(holder)?.has(key));
}

export function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Parses one JSON value. Throws a ShardError with the code and rule of the options. */
export function parseJson(bytes: Uint8Array, options: JsonOptions = {}): Json {
  const { what = "the text", code = "bad_metadata", rule = "S-SCH-2" } = options;
  const { maxJsonBytes = defaultLimits.maxJsonBytes, maxJsonNodes = defaultLimits.maxJsonNodes } = options;
  checkJsonSize(bytes.length, what, maxJsonBytes);
  const text = decodeUtf8(bytes);
  if (text === undefined) throw broken(code, rule, `${what} is not valid UTF-8`);
  const nodes = countNodes(text);
  if (nodes > maxJsonNodes) {
    const details = { expected: `at most ${maxJsonNodes}`, found: nodes };
    throw broken("limit_exceeded", "S-SCH-8", `${what} has too many values`, details);
  }
  try {
    return parseText(text);
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    throw broken(code, rule, `${what} is not valid JSON: ${error.message}`);
  }
}

/** Parses a JSON object. */
export function parseJsonObject(bytes: Uint8Array, options: JsonOptions = {}): JsonObject {
  const value = parseJson(bytes, options);
  if (isObject(value)) return value;
  const { what = "the text", code = "bad_metadata", rule = "S-SCH-2" } = options;
  throw broken(code, rule, `${what} is not a JSON object`);
}

/** S-SCH-7, before anything is read. */
export function checkJsonSize(size: number, what: string, maxJsonBytes: number): void {
  if (size <= maxJsonBytes) return;
  const details = { expected: `at most ${maxJsonBytes} bytes`, found: size };
  throw broken("limit_exceeded", "S-SCH-7", `${what} is too long`, details);
}

/** The characters [ { , : outside strings (S-SCH-8). */
function countNodes(text: string): number {
  let count = 0;
  let inString = false;
  for (let at = 0; at < text.length; at++) {
    switch (text.charCodeAt(at)) {
      case 0x22:
        inString = !inString;
        break;
      case 0x5c:
        if (inString) at++;
        break;
      case 0x5b:
      case 0x7b:
      case 0x2c:
      case 0x3a:
        if (!inString) count++;
    }
  }
  return count;
}

const numberPattern = /-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/y;
const words: readonly [string, Json][] = [
  ["true", true],
  ["false", false],
  ["null", null],
];
/** What may follow a backslash, and what it means. */
const escapes = '"\\/bfnrt';
const escaped = '"\\/\b\f\n\r\t';

/** Parses a text, and throws a SyntaxError if it is not right. Its parts share the text and the place in it. */
function parseText(text: string): Json {
  let at = 0;
  /** Whether the last number was whole but written as a float. */
  let isWholeFloat = false;

  const value = parseValue(1);
  skipSpace();
  if (at !== text.length) throw wrong("something follows the value");
  return value;

  function wrong(problem: string): SyntaxError {
    return new SyntaxError(`${problem} at character ${at}`);
  }

  function skipSpace(): void {
    for (;;) {
      const c = text.charCodeAt(at);
      if (c !== 0x20 && c !== 0x0a && c !== 0x0d && c !== 0x09) return;
      at++;
    }
  }

  /** Skips white space, and a character if it comes next. */
  function take(character: string): boolean {
    skipSpace();
    if (text[at] !== character) return false;
    at++;
    return true;
  }

  function parseValue(depth: number): Json {
    skipSpace();
    isWholeFloat = false;
    const c = text[at];
    if (c === "{" || c === "[") {
      if (depth > maxDepth) throw wrong(`nested more than ${maxDepth} levels deep`);
      at++;
      const found = c === "{" ? parseObject(depth) : parseList(depth);
      isWholeFloat = false;
      return found;
    }
    if (c === '"') return parseString();
    for (const [word, meant] of words) {
      if (text.startsWith(word, at)) {
        at += word.length;
        return meant;
      }
    }
    return parseNumber();
  }

  function parseObject(depth: number): JsonObject {
    const found: JsonObject = Object.create(null);
    if (take("}")) return found;
    do {
      skipSpace();
      if (text[at] !== '"') throw wrong("a key is missing");
      const key = parseString();
      if (key in found) throw wrong(`the key ${JSON.stringify(shortened(key))} occurs twice in one object`);
      if (!take(":")) throw wrong("a colon is missing");
      found[key] = parseValue(depth + 1);
      note(found, key);
    } while (take(","));
    if (!take("}")) throw wrong("a comma or a brace is missing");
    return found;
  }

  function parseList(depth: number): Json[] {
    const found: Json[] = [];
    if (take("]")) return found;
    do {
      found.push(parseValue(depth + 1));
      note(found, found.length - 1);
    } while (take(","));
    if (!take("]")) throw wrong("a comma or a bracket is missing");
    return found;
  }

  function note(holder: object, key: string | number): void {
    if (isWholeFloat) wholeFloats.set(holder, (wholeFloats.get(holder) ?? new Set()).add(key));
  }

  function parseString(): string {
    let out = "";
    let start = ++at;
    for (;;) {
      const c = text.charCodeAt(at);
      if (c === 0x22) return out + text.slice(start, at++);
      if (c === 0x5c) {
        out += text.slice(start, at) + parseEscape();
        start = at;
      } else if (c >= 0x20) {
        at++;
      } else {
        throw wrong(at < text.length ? "a control character in a string" : "a string does not end");
      }
    }
  }

  function parseEscape(): string {
    const meant = escaped[escapes.indexOf(text[at + 1])];
    if (meant !== undefined) {
      at += 2;
      return meant;
    }
    const first = parseUnit();
    if (first < 0xd800 || first > 0xdfff) return String.fromCharCode(first);
    if (first < 0xdc00 && text[at] === "\\") {
      const second = parseUnit();
      if (second >= 0xdc00 && second <= 0xdfff) return String.fromCharCode(first, second);
    }
    throw wrong("a lone surrogate");
  }

  /** One escaped UTF-16 unit. */
  function parseUnit(): number {
    const unit = text.slice(at, at + 6);
    if (!/^\\u[0-9a-fA-F]{4}$/.test(unit)) throw wrong("an unknown escape");
    at += 6;
    return Number.parseInt(unit.slice(2), 16);
  }

  function parseNumber(): number | bigint {
    numberPattern.lastIndex = at;
    const match = numberPattern.exec(text);
    if (!match) throw wrong("a value is missing");
    const [digits, fraction, exponent] = match;
    const number = Number(digits);
    if (fraction === undefined && exponent === undefined) {
      if (digits.length > maxDigits + (digits[0] === "-" ? 1 : 0)) {
        throw wrong(`an integer of more than ${maxDigits} digits`);
      }
      at += digits.length;
      return Number.isSafeInteger(number) ? number + 0 : BigInt(digits); // -0 + 0 is 0
    }
    if (!Number.isFinite(number)) throw wrong("a number is too large for a 64-bit float");
    at += digits.length;
    isWholeFloat = Number.isInteger(number);
    return number;
  }
}

/** The canonical text of a value, which may be nested as deep as readers allow. Fields that are undefined are left out. */
export function canonicalJson(value: unknown, levels: number = maxDepth): string {
  return write(value, levels);
}

/** The UTF-8 bytes of the canonical text. */
export function canonicalBytes(value: unknown): Uint8Array {
  return encodeUtf8(canonicalJson(value)) as Uint8Array; // strings were checked one by one
}

function write(value: unknown, levels: number): string {
  switch (typeof value) {
    case "boolean":
    case "bigint":
      return String(value);
    case "number":
      if (!Number.isFinite(value)) throw invalid("JSON has no such number", { found: value });
      return Object.is(value, -0) ? "0" : String(value);
    case "string":
      return quoted(value);
    case "object":
      break;
    default:
      throw invalid(`a ${typeof value} has no JSON form`);
  }
  if (value === null) return "null";
  if (levels === 0) throw invalid(`JSON may be nested ${maxDepth} levels deep, not more`);
  if (Array.isArray(value)) return `[${value.map((item) => write(item, levels - 1)).join(",")}]`;
  const fields = Object.entries(value).filter(([, field]) => field !== undefined);
  fields.sort(([a], [b]) => compareUtf8(a, b));
  return `{${fields.map(([key, field]) => `${quoted(key)}:${write(field, levels - 1)}`).join(",")}}`;
}

/** JSON.stringify escapes exactly what the canonical form escapes, except for lone surrogates. */
function quoted(text: string): string {
  if (!isWellFormed(text)) throw invalid("a text with a lone surrogate has no JSON form", { found: shortened(text) });
  return JSON.stringify(text);
}
