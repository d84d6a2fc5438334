// Which file stands for a recording in the table.

import { describe, expect, test } from "vitest";
import { isBehind, recordingOf, stemOf, unfinishedOf } from "../src/worker/recordings";
import type { ListedFile } from "../src/worker/sources";

/** The rows of a folder, each with what is known of its recorder. A journal is live, dead, or nobody knows. */
function rows(...names: string[]): string[] {
  const states = { "+": true, "-": false, "?": null } as const;
  const files = new Map(
    names.map((text) => {
      const isLive = states[text.at(-1) as "+"];
      const name = isLive === undefined ? text : text.slice(0, -1);
      const open = () => {
        throw new Error("not opened");
      };
      return [name, { name, size: 1, open, isLive: isLive ?? null } satisfies ListedFile] as const;
    }),
  );
  const unfinished = unfinishedOf(files);
  return [...files.keys()]
    .filter((name) => !isBehind(name, files, unfinished))
    .map((name) => {
      const found = recordingOf(name, unfinished);
      return found === null ? name : `${name} ${found.isLive === null ? "?" : found.isLive ? "+" : "-"}`;
    });
}

describe("a recording in the table", () => {
  test("is its journal while it is one file", () => {
    expect(rows("a.wshard", "b.wshard.partial+")).toEqual(["a.wshard", "b.wshard.partial +"]);
    expect(rows("b.wshard.partial-")).toEqual(["b.wshard.partial -"]);
    expect(rows("b.wshard.partial?")).toEqual(["b.wshard.partial ?"]);
  });

  test("is its first journal until there is a manifest, whatever its chunks are", () => {
    expect(rows("e.wshard.partial-", "e_chunk_0001.wshard.partial+")).toEqual(["e.wshard.partial +"]);
    expect(rows("e.wshard.partial-", "e_chunk_0000.wshard", "e_chunk_0001.wshard.partial+")).toEqual([
      "e.wshard.partial +",
    ]);
    expect(
      rows("e_chunk_0000-0123456789ab.wshard", "e_chunk_0001.wshard.partial-", "e_manifest.wshard", "e2.wshard"),
    ).toEqual(["e_manifest.wshard -", "e2.wshard"]);
  });

  test("is over when no journal is left, and one that begins over an episode is another one", () => {
    expect(rows("e_chunk_0000.wshard", "e_manifest.wshard")).toEqual(["e_chunk_0000.wshard", "e_manifest.wshard"]);
    expect(rows("e.wshard", "e.wshard.partial+")).toEqual(["e.wshard", "e.wshard.partial +"]);
  });

  test("is known by what the names of its files begin with", () => {
    for (const name of ["_manifest.wshard", ".wshard", "_chunk_0012.wshard.partial", "_chunk_0012-0123456789ab.wshard"])
      expect(stemOf(`runs/ep${name}`)).toBe("runs/ep");
  });
});
