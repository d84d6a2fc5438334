// Shards and sets of shards in files, with nothing half-written under a final name.

import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import {
  createShardPack,
  createShardSet,
  openShardPack,
  openShardSet,
  recoverShardPack,
  streamShardPack,
} from "../src/shardpack/node.js";
import { SetName } from "../src/shardpack/set-names.js";

const vectors = new URL("../../../spec/vectors/", import.meta.url);
const created = "2024-01-01T00:00:00Z";
let folder = "";

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "shardpack-"));
});
afterEach(() => rmSync(folder, { recursive: true }));

const files = () => readdirSync(folder).sort();

describe("one shard", () => {
  test("appears when it is finished, and replaces what was there only then", async () => {
    const path = join(folder, "a.shardpack");
    writeFileSync(path, "old");
    const writer = createShardPack(path, { created });
    await writer.write("a", { "x.txt": "hello" });
    expect(readFileSync(path, "utf8")).toBe("old");
    await writer.finish();
    expect(files()).toEqual(["a.shardpack"]);
    expect(Buffer.compare(readFileSync(path), readFileSync(new URL("valid_packs/hello.shardpack", vectors)))).toBe(0);
  });

  test("leaves nothing behind after abort", async () => {
    const writer = createShardPack(join(folder, "a.shardpack"));
    await writer.write("a", { bin: new Uint8Array(3 << 20) });
    expect(files()).toHaveLength(1);
    await writer.abort();
    expect(files()).toEqual([]);
  });

  test("is streamed and recovered from a file that lost its end", async () => {
    const path = join(folder, "a.shardpack");
    const writer = createShardPack(path, { compression: "lz4" });
    for (const key of ["a", "b", "c"]) await writer.write(key, { txt: key.repeat(1000) });
    await writer.finish();
    const cut = readFileSync(path).subarray(0, -400);
    writeFileSync(path, cut);
    await expect(openShardPack(path)).rejects.toMatchObject({ code: "truncated", rule: "P-FTR-2", path });
    const keys: string[] = [];
    const reading = async () => {
      for await (const record of streamShardPack(path)) keys.push(record.key);
    };
    await expect(reading()).rejects.toMatchObject({ code: "truncated", path });
    const out = join(folder, "b.shardpack");
    expect((await recoverShardPack(path, out)).records).toBe(keys.length);
    const recovered = await openShardPack(out);
    expect(recovered.length).toBe(keys.length);
    expect(Buffer.from(await (await recovered.byKey("a")).read("txt")).toString()).toBe("a".repeat(1000));
    await recovered.close();
  });

  test("tells that it is closed, or that it does not exist", async () => {
    const path = join(folder, "a.shardpack");
    await expect(openShardPack(path)).rejects.toMatchObject({ code: "io_error", path });
    await expect(streamShardPack(path).next()).rejects.toMatchObject({ code: "io_error", path });
    const writer = createShardPack(path);
    await writer.write("a", { bin: new Uint8Array(100_000) });
    await writer.finish();
    const reader = await openShardPack(path);
    const record = await reader.byKey("a");
    await reader.close();
    await expect(record.read("bin")).rejects.toMatchObject({ code: "closed", path });
    await expect(reader.record(0)).rejects.toMatchObject({ code: "closed", path });
  });

  test("has the time of SOURCE_DATE_EPOCH, if that is set", async () => {
    const path = join(folder, "a.shardpack");
    process.env["SOURCE_DATE_EPOCH"] = "1704067200";
    try {
      await createShardPack(path).finish();
    } finally {
      delete process.env["SOURCE_DATE_EPOCH"];
    }
    const reader = await openShardPack(path);
    expect(reader.metadata["created"]).toBe(created);
    await reader.close();
  });

  test("is opened over HTTP with two requests, and one more for each record", async () => {
    const path = join(folder, "a.shardpack");
    const writer = createShardPack(path);
    for (let number = 0; number < 100; number++) {
      await writer.write(`key ${number}`, { bin: new Uint8Array(10_000).fill(number) });
    }
    await writer.finish();
    const file = readFileSync(path);
    let requests = 0;
    const server = createServer((request, response) => {
      requests++;
      const [first, last] = (/bytes=(\d+)-(\d+)/.exec(request.headers.range ?? "") ?? []).slice(1).map(Number);
      const end = Math.min(last, file.length - 1);
      response.writeHead(206, { "content-range": `bytes ${first}-${end}/${file.length}` });
      response.end(file.subarray(first, end + 1));
    });
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    try {
      const reader = await openShardPack(`http://127.0.0.1:${(server.address() as AddressInfo).port}/a.shardpack`);
      expect(requests).toBe(2);
      const content = await (await reader.byKey("key 57")).read("bin");
      expect(content).toEqual(new Uint8Array(10_000).fill(57));
      expect(requests).toBe(4); // to compare the key, and to read the record
      let count = 0;
      for await (const record of reader) count += (await record.read("bin")).length;
      expect(count).toBe(1_000_000);
      expect(requests).toBeLessThan(10);
    } finally {
      server.closeAllConnections();
      server.close();
    }
  });
});

describe("a set of shards", () => {
  test.each(["three_shards", "no_records"])("%s is written byte for byte", async (name) => {
    const told = JSON.parse(readFileSync(new URL(`valid_sets/${name}.json`, vectors), "utf8"));
    const writer = createShardSet(join(folder, "train-%06d.shardpack"), { created });
    for (const [number, shard] of told.shards.entries()) {
      if (number > 0) await writer.startShard();
      const reader = await openShardPack(readFileSync(new URL(`valid_sets/${name}/${shard}`, vectors)));
      for await (const record of reader) await writer.write(record.key, { txt: await record.read("txt") });
    }
    await writer.finish();
    expect(files()).toEqual(Object.keys(told.files).sort());
    for (const file of files()) {
      const expected = readFileSync(new URL(`valid_sets/${name}/${file}`, vectors));
      expect(Buffer.compare(readFileSync(join(folder, file)), expected), file).toBe(0);
    }
  });

  test("is cut by size and by number of records, and read as one dataset", async () => {
    const path = join(folder, "train-%03d.shardpack");
    const writer = createShardSet(path, { maxRecords: 3, maxBytes: 5000, metadata: { split: "train" } });
    for (let number = 0; number < 8; number++)
      await writer.write(String(number), { bin: new Uint8Array(number * 500) });
    await expect(writer.write("0", {})).rejects.toMatchObject({ code: "invalid_argument", rule: "P-REC-10" });
    await writer.finish();
    const set = await openShardSet(join(folder, "train.shardpack-set"));
    expect([set.names.length, set.length, set.fields["user"]]).toEqual([5, 8, { split: "train" }]);
    for (let number = 0; number < 8; number++) {
      expect(await (await set.record(number)).read("bin")).toEqual(new Uint8Array(number * 500));
      expect(await set.find(String(number))).toBe(number);
    }
    expect(await set.find("8")).toBeUndefined();
    await set.close();
  });

  test("that another library has not finished to replace says who does", async () => {
    const writer = createShardSet(join(folder, "a-%d.shardpack"), { sync: false });
    await writer.write("0", {});
    await writer.finish();
    writeFileSync(join(folder, ".shardpack-switch"), "");
    const other = createShardPack(join(folder, "a-0.shardpack"), { sync: false });
    await other.finish();
    const set = await openShardSet(join(folder, "a.shardpack-set"));
    await expect(set.record(0)).rejects.toThrow(/reference_mismatch/);
    await expect(set.record(0)).rejects.toThrow("`shardpack info`");
    rmSync(join(folder, "a-0.shardpack"));
    await expect(set.record(0)).rejects.toThrow("`shardpack info`");
    rmSync(join(folder, ".shardpack-switch"));
    await expect(set.record(0)).rejects.toThrow(/which does not exist \[/);
    await set.close();
  });

  test("is not written over another one", async () => {
    const path = join(folder, "train-%06d.shardpack");
    await createShardSet(path, { created }).finish();
    const before = files();
    const writer = createShardSet(path);
    await expect(writer.write("a", {})).rejects.toMatchObject({ code: "invalid_argument" });
    await writer.abort();
    expect(files()).toEqual(before);
  });

  test("has the names of the specification", () => {
    const names = (pattern: string) => [new SetName(pattern).shard(7), new SetName(pattern).setFile];
    expect(names("train-%06d.shardpack")).toEqual(["train-000007.shardpack", "train.shardpack-set"]);
    expect(names("a_%d.shardpack")).toEqual(["a_7.shardpack", "a.shardpack-set"]);
    expect(names("%d.shardpack")).toEqual(["7.shardpack", "set.shardpack-set"]);
    expect(names("100%%-%02d-x.shardpack")).toEqual(["100%-07-x.shardpack", "100%-x.shardpack-set"]);
    for (const wrong of ["a.shardpack", "%d-%d", "%5%d", "a/%d", "../%d", "c:%d", "%%d", "%6d"]) {
      expect(() => new SetName(wrong), wrong).toThrow("invalid_argument");
    }
  });
});
