// Content types of entries, as spec/registry.md has them: what the ending of a name says, and what is compressed already.

import { contentTypeTable as table } from "./registry.js";

const unknown = "application/octet-stream";

interface Tables {
  byEnding: Map<string, string>;
  isCompressed: Map<string, boolean>;
}

let tables: Tables | undefined;

function readTables(): Tables {
  if (tables === undefined) {
    tables = { byEnding: new Map(), isCompressed: new Map() };
    for (const line of table.trim().split("\n")) {
      const [marked = "", ...endings] = line.split(" ");
      const contentType = marked.replace("*", "");
      tables.isCompressed.set(contentType, marked !== contentType);
      for (const ending of endings) tables.byEnding.set(ending, contentType);
    }
  }
  return tables;
}

/** The content type that the ending of a name stands for. A name without a dot is an ending itself, such as `jpg`. */
export function contentTypeOf(name: string): string {
  const ending = name.slice(name.lastIndexOf(".") + 1);
  // Only A to Z: other letters have no ending in the table.
  const lower = ending.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
  return readTables().byEnding.get(lower) ?? unknown;
}

/** False for contents that are compressed already: to compress them again costs time and gains nothing. */
export function isCompressible(contentType: string): boolean {
  const known = readTables().isCompressed.get(contentType);
  return known === undefined ? !/^(image|video|audio)\//.test(contentType) : !known;
}
