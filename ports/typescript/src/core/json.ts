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
    return new Parser(text).parse();
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
const escapes: Record<string, string> = {
  '"': '"',
  "\\": "\\",
  "/": "/",
  b: "\b",
  f: "\f",
  n: "\n",
  r: "\r",
  t: "\t",
};

class Parser {
  readonly #text: string;
  #at = 0;
  /** Whether the last number was whole but written as a float. */
  #wholeFloat = false;

  constructor(text: string) {
    this.#text = text;
  }

  parse(): Json {
    const value = this.#value(1);
    this.#space();
    if (this.#at !== this.#text.length) throw this.#error("something follows the value");
    return value;
  }

  #error(problem: string): SyntaxError {
    return new SyntaxError(`${problem} at character ${this.#at}`);
  }

  #space(): void {
    for (;;) {
      const c = this.#text.charCodeAt(this.#at);
      if (c !== 0x20 && c !== 0x0a && c !== 0x0d && c !== 0x09) return;
      this.#at++;
    }
  }

  /** Skips a character if it comes next. */
  #take(character: string): boolean {
    if (this.#text[this.#at] !== character) return false;
    this.#at++;
    return true;
  }

  #value(depth: number): Json {
    this.#space();
    this.#wholeFloat = false;
    const c = this.#text[this.#at];
    switch (c) {
      case "{":
      case "[":
        if (depth > maxDepth) throw this.#error(`nested more than ${maxDepth} levels deep`);
        this.#at++;
        return c === "{" ? this.#object(depth) : this.#list(depth);
      case '"':
        this.#at++;
        return this.#string();
      case "t":
        return this.#word("true", true);
      case "f":
        return this.#word("false", false);
      case "n":
        return this.#word("null", null);
      default:
        return this.#number();
    }
  }

  #word(word: string, value: Json): Json {
    if (!this.#text.startsWith(word, this.#at)) throw this.#error("a value is missing");
    this.#at += word.length;
    return value;
  }

  #object(depth: number): JsonObject {
    const found: JsonObject = Object.create(null);
    this.#space();
    if (this.#take("}")) return found;
    do {
      this.#space();
      if (!this.#take('"')) throw this.#error("a key is missing");
      const key = this.#string();
      if (key in found) throw this.#error(`the key ${JSON.stringify(shortened(key))} occurs twice in one object`);
      this.#space();
      if (!this.#take(":")) throw this.#error("a colon is missing");
      found[key] = this.#value(depth + 1);
      this.#note(found, key);
      this.#space();
    } while (this.#take(","));
    if (!this.#take("}")) throw this.#error("a comma or a brace is missing");
    this.#wholeFloat = false;
    return found;
  }

  #list(depth: number): Json[] {
    const found: Json[] = [];
    this.#space();
    if (this.#take("]")) return found;
    do {
      found.push(this.#value(depth + 1));
      this.#note(found, found.length - 1);
      this.#space();
    } while (this.#take(","));
    if (!this.#take("]")) throw this.#error("a comma or a bracket is missing");
    this.#wholeFloat = false;
    return found;
  }

  #note(holder: object, key: string | number): void {
    if (!this.#wholeFloat) return;
    const keys = wholeFloats.get(holder);
    if (keys) keys.add(key);
    else wholeFloats.set(holder, new Set([key]));
  }

  #string(): string {
    let out = "";
    let start = this.#at;
    for (;;) {
      const c = this.#text.charCodeAt(this.#at);
      if (c === 0x22) {
        out += this.#text.slice(start, this.#at);
        this.#at++;
        break;
      }
      if (c === 0x5c) {
        out += this.#text.slice(start, this.#at);
        out += this.#escape();
        start = this.#at;
      } else if (c < 0x20) {
        throw this.#error("a control character in a string");
      } else if (this.#at >= this.#text.length) {
        throw this.#error("a string does not end");
      } else {
        this.#at++;
      }
    }
    return out;
  }

  #escape(): string {
    const c = this.#text[this.#at + 1];
    if (c !== "u") {
      const meant = c === undefined ? undefined : escapes[c];
      if (meant === undefined) throw this.#error("an unknown escape");
      this.#at += 2;
      return meant;
    }
    const first = this.#unit();
    if (first < 0xd800 || first > 0xdfff) return String.fromCharCode(first);
    if (first < 0xdc00 && this.#text.startsWith("\\u", this.#at)) {
      const second = this.#unit();
      if (second >= 0xdc00 && second <= 0xdfff) return String.fromCharCode(first, second);
    }
    throw this.#error("a lone surrogate");
  }

  /** One escaped UTF-16 unit. */
  #unit(): number {
    const digits = this.#text.slice(this.#at + 2, this.#at + 6);
    if (!/^[0-9a-fA-F]{4}$/.test(digits)) throw this.#error("an escape does not have four hex digits");
    this.#at += 6;
    return Number.parseInt(digits, 16);
  }

  #number(): number | bigint {
    numberPattern.lastIndex = this.#at;
    const match = numberPattern.exec(this.#text);
    if (!match) throw this.#error("a value is missing");
    const text = match[0];
    const value = Number(text);
    if (match[1] === undefined && match[2] === undefined) {
      if (text.length - (text[0] === "-" ? 1 : 0) > maxDigits) {
        throw this.#error(`an integer of more than ${maxDigits} digits`);
      }
      this.#at += text.length;
      if (Number.isSafeInteger(value)) return value === 0 ? 0 : value; // -0 is the integer 0
      return BigInt(text);
    }
    if (!Number.isFinite(value)) throw this.#error("a number is too large for a 64-bit float");
    this.#at += text.length;
    this.#wholeFloat = Number.isInteger(value);
    return value;
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
