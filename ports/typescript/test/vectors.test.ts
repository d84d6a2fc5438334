import { readdirSync, readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, test } from "vitest";
import { container } from "../conformance/container.js";
import { readCase } from "../conformance/kind.js";
import { canonicalJson, type JsonObject, openShard, ShardError } from "../src/node.js";

const vectors = fileURLToPath(new URL("../../../spec/vectors/", import.meta.url));

/** The cases of a folder: name, JSON and folder. */
function cases(folder: string): [string, JsonObject, string][] {
  return readdirSync(vectors + folder)
    .filter((name) => name.endsWith(".json"))
    .map((name) => {
      const path = `${vectors}${folder}/${name}`;
      // Around a schema section of 128 levels, the case is deeper than strict JSON may be.
      const isDeep = name === "schema_depth_128.json";
      return [
        name.slice(0, -5),
        isDeep ? JSON.parse(readFileSync(path, "utf8")) : readCase(path),
        `${vectors}${folder}/`,
      ];
    });
}

const pick = (object: JsonObject, keys: string[]) => Object.fromEntries(keys.map((key) => [key, object[key]]));

describe("vectors of containers", () => {
  const told = [
    "header",
    "entries",
    "entries_sha256",
    "identity",
    "identity_2",
    "schema",
    "manifest_files",
    "warnings",
  ];

  test("every valid file is read as its JSON says", async () => {
    for (const [name, given, folder] of cases("valid")) {
      const found = (await container.read?.(folder + given["file"])) as JsonObject;
      expect(canonicalJson(pick(found, told), 1000), name).toBe(canonicalJson(pick(given, told), 1000));
    }
  });

  test("every invalid file is refused with its code and rule, and the rest of it stays readable", async () => {
    for (const [name, given, folder] of cases("invalid")) {
      const path = folder + given["file"];
      const error = await container.step?.(path, given).catch((error: unknown) => error);
      if (!(error instanceof ShardError)) throw new Error(`${name}: no ShardError: ${String(error)}`);
      const also = (given["also"] ?? []) as string[];
      expect([given["error"], ...also], `${name}: ${error.message}`).toContain(error.code);
      // The same bytes can break S-CMP-4 and S-CMP-5.
      const rule = (text: unknown) => String(text).replace("S-CMP-5", "S-CMP-4");
      if (also.length === 0) expect(rule(error.rule), name).toBe(rule(given["rule"]));
      expect(error.path, name).toBe(path);
      if (["read", "range"].includes(String(given["when"]))) {
        const reader = await openShard(path);
        if (reader.has("other")) await reader.read("other");
        expect([...reader.entries()].length, name).toBe(reader.names.length);
        await reader.close();
      }
    }
  });

  test("a file in memory is read as from disk", async () => {
    for (const [name, given, folder] of cases("valid")) {
      const reader = await openShard(readFileSync(folder + given["file"]));
      const entries = (given["entries"] ?? []) as JsonObject[];
      expect(reader.names.length, name).toBe(Number((given["header"] as JsonObject)["entry_count"]));
      for (const entry of entries) {
        expect((await reader.read(String(entry["name"]))).length, name).toBe(Number(entry["orig_size"]));
      }
    }
  });
});

describe("canonical cases", async () => {
  const folder = await mkdtemp(join(tmpdir(), "shard-"));
  afterAll(() => rm(folder, { recursive: true }));

  test("every container is written with the bytes, or the identity, that the case says", async () => {
    for (const [name, given] of cases("canonical")) {
      if (given["kind"] !== "container") continue;
      const found = (await container.write?.(given, join(folder, "out.shard"))) as JsonObject;
      expect(found["identity"], name).toBe(given["identity"]);
      if (given["sha256"] !== undefined) expect(found["sha256"], name).toBe(given["sha256"]);
    }
    expect(readdirSync(folder)).toEqual(["out.shard"]);
  });
});
