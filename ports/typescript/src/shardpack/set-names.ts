// The names of the shards of a set, such as train-%06d.shardpack, and of its set file (spec/shardpack.md, section 9.3).

import { encodeUtf8 } from "../core/bytes.js";
import { invalid } from "../core/errors.js";

const suffix = ".shardpack";
const longestName = 255;
/** A number, or a percent sign. */
const tokens = /%%|%0?[0-9]*d/g;

/** Whether a text is the name of a file beside the set file (P-SET-4). */
export function isFileName(name: string): boolean {
  const size = encodeUtf8(name)?.length ?? 0;
  if (size === 0 || size > longestName || name === "." || name === "..") return false;
  return !/[/\\\p{Cc}]|^[A-Za-z][A-Za-z0-9+.-]*:/u.test(name);
}

/** How many numbers a name has: `%06d` or `%d`. `%%` is a percent sign. */
export function countNumbers(name: string): number {
  return (name.match(tokens) ?? []).filter((token) => token !== "%%").length;
}

/** The name of a set. */
export class SetName {
  /** As the set file has it. */
  readonly pattern: string;
  readonly #before: string;
  readonly #after: string;
  readonly #width: number;

  constructor(pattern: string) {
    const number = [...pattern.matchAll(tokens)].find(([token]) => token !== "%%");
    const plain = pattern.replaceAll("%%", "");
    const width = number === undefined ? undefined : /^%(?:0([0-9]{1,2}))?d$/.exec(number[0]);
    if (!isFileName(pattern) || !width || !number || countNumbers(pattern) !== 1 || plain.split("%").length !== 2) {
      const expected = "a file name with one number, such as train-%06d.shardpack, where any other % is doubled";
      throw invalid("this is not the name of a set", { expected, found: pattern });
    }
    this.pattern = pattern;
    this.#before = pattern.slice(0, number.index).replaceAll("%%", "%");
    this.#after = pattern.slice(number.index + number[0].length).replaceAll("%%", "%");
    this.#width = Number(width[1] ?? 1);
  }

  /** The name of the shard of this number. */
  shard(number: number): string {
    return this.#before + String(number).padStart(this.#width, "0") + this.#after;
  }

  /** The name of the set file of a set that starts with number 0. */
  get setFile(): string {
    const after = this.#after.endsWith(suffix) ? this.#after.slice(0, -suffix.length) : this.#after;
    return `${this.#before.replace(/[-_.]$/, "") + after || "set"}${suffix}-set`;
  }
}
