import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { type JsonObject, type Limits, parseJsonObject } from "../src/node.js";

/** An answer: plain JSON. */
export type Told = Record<string, unknown>;

/** What the program can do with one kind of file. What is not there it does not do. */
export interface Kind {
  read?(file: string): Promise<Told>;
  step?(file: string, given: JsonObject): Promise<Told>;
  write?(given: JsonObject, out: string): Promise<Told>;
  rewrite?(file: string, out: string): Promise<Told>;
  stream?(file: string): Promise<Told>;
  recover?(file: string): Promise<Told>;
}

/** The JSON of a vector, with exact integers. */
export function readCase(path: string): JsonObject {
  return parseJsonObject(readFileSync(path), { maxJsonBytes: 2 ** 30, maxJsonNodes: 2 ** 30 });
}

/** The limits that a vector lowers, for the function that opens its file. */
export function optionsOf(given: JsonObject): { limits: Partial<Limits> } {
  const lowered = Object.entries((given["limits"] ?? {}) as JsonObject);
  const camel = (name: string) => name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());
  return { limits: Object.fromEntries(lowered.map(([name, most]) => [camel(name), Number(most)])) };
}

/** SHA-256 in hex. */
export function digest(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}
