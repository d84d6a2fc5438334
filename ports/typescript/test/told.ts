// The vectors, and what of their JSON every reader tells: see tests/conformance/ports.py.

import { readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { readCase } from "../conformance/kind.js";
import type { JsonObject } from "../src/node.js";

export const vectors = fileURLToPath(new URL("../../../spec/vectors/", import.meta.url));

/** The cases of a folder: name and JSON. */
export function cases(kind: string): [string, JsonObject][] {
  return readdirSync(vectors + kind)
    .filter((name) => name.endsWith(".json") && name !== "schema_depth_128.json")
    .map((name) => [name.slice(0, -5), readCase(`${vectors}${kind}/${name}`)]);
}

/** What a vector says as far as every reader says the same: see tests/conformance/ports.py. */
export function plain(wanted: unknown): unknown {
  if (Array.isArray(wanted)) return wanted.map(plain);
  if (typeof wanted !== "object" || wanted === null) return wanted;
  const told = Object.fromEntries(Object.entries(wanted).map(([key, value]) => [key, plain(value)]));
  if (told.time_axis === false) return { block: told.block, hex: told.hex, inferred: told.inferred };
  if (told.layout === "video") delete told.frames;
  if (told.ticks === null) delete told.ticks;
  return told;
}

/** An answer without what the vector does not say. */
export function asWanted(found: unknown, wanted: unknown): unknown {
  if (Array.isArray(found) && Array.isArray(wanted)) return found.map((one, at) => asWanted(one, wanted[at]));
  if (typeof found !== "object" || found === null || typeof wanted !== "object" || wanted === null) return found;
  const keys = Object.keys(found).filter((key) => key in wanted);
  return Object.fromEntries(
    keys.map((key) => [key, asWanted((found as JsonObject)[key], (wanted as JsonObject)[key])]),
  );
}

/** What is told without some keys, at any depth. */
export function omit(told: unknown, keys: readonly string[]): unknown {
  if (typeof told !== "object" || told === null || Array.isArray(told)) return told;
  const kept = Object.entries(told).filter(([key]) => !keys.includes(key));
  return Object.fromEntries(kept.map(([key, value]) => [key, omit(value, keys)]));
}
