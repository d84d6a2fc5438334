// Shards of datasets: every vector by number, by key and as a stream; properties of writing, streams and damage.

import { readdirSync, readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { isObject } from "../src/core/json.js";
import { BytesSink, StreamSink } from "../src/core/sink.js";
import { loadZstd, ShardError, type SourceLike } from "../src/node.js";
import { contentTypeOf, isCompressible } from "../src/shardpack/content-types.js";
import {
  openShardPack,
  type PackRecord,
  type PackWriterOptions,
  recoverShardPack,
  type ShardPackReader,
  ShardPackWriter,
  streamRecords,
} from "../src/shardpack/index.js";

const vectors = new URL("../../../spec/vectors/", import.meta.url);

interface Case {
  name: string;
  file: Uint8Array;
  told: {
    canonical?: string;
    absent_keys?: string[];
    records: { key: string; entries?: { name: string; sha256: string }[] }[];
  };
}

function cases(folder: string): Case[] {
  const names = readdirSync(new URL(folder, vectors)).filter((name) => name.endsWith(".json"));
  return names.map((name) => {
    const told = JSON.parse(readFileSync(new URL(`${folder}/${name}`, vectors), "utf8"));
    return {
      name: name.slice(0, -5),
      told,
      file: new Uint8Array(readFileSync(new URL(`${folder}/${told.file}`, vectors))),
    };
  });
}

const valid = cases("valid_packs");
const invalid = cases("invalid_packs");
const open = (given: SourceLike) => openShardPack(given, { zstd: loadZstd });

async function* pieces(file: Uint8Array, sizes: readonly number[]): AsyncGenerator<Uint8Array> {
  for (let at = 0, number = 0; at < file.length; number++) {
    const size = Math.max(1, sizes[number % sizes.length]);
    yield file.slice(at, at + size);
    at += size;
  }
}

/** Everything that a record says. */
async function contentOf(record: PackRecord): Promise<unknown[]> {
  const entries = [];
  for (const entry of record.entries()) {
    entries.push([entry.name, entry.contentType, entry.encoding, Buffer.from(await entry.read()).toString("base64")]);
  }
  return [record.key, record.offset, record.size, record.metadata(), entries];
}

async function contents(records: AsyncIterable<PackRecord>): Promise<unknown[]> {
  const found = [];
  for await (const record of records) found.push(await contentOf(record));
  return found;
}

async function written(
  options: PackWriterOptions,
  write: (writer: ShardPackWriter) => Promise<void>,
): Promise<Uint8Array> {
  const sink = new BytesSink();
  const writer = new ShardPackWriter(sink, { zstd: loadZstd, ...options });
  await write(writer);
  await writer.finish();
  return sink.bytes as Uint8Array;
}

/** The options with which a shard was written. */
async function optionsOf(reader: ShardPackReader): Promise<PackWriterOptions> {
  const { created, user } = reader.metadata;
  const alignment = reader.length > 0 ? (await reader.record(0)).alignment : 8;
  return {
    alignment: alignment as 1 | 8 | 64,
    created: String(created),
    metadata: isObject(user) ? user : {},
  };
}

/** Nothing but a ShardError may come out of a damaged file. */
async function codeOf(run: () => Promise<unknown>): Promise<string | undefined> {
  try {
    await run();
    return undefined;
  } catch (error) {
    if (error instanceof ShardError) return error.code;
    throw error;
  }
}

describe("valid shards", () => {
  test.each(valid)("$name reads the same by number, by key and as a stream", async ({ file, told }) => {
    const reader = await open(file);
    const byNumber = [];
    const byKey = [];
    for (const [number, { key }] of told.records.entries()) {
      byNumber.push(await contentOf(await reader.record(number)));
      byKey.push(await contentOf(await reader.byKey(key)));
      expect(await reader.find(key)).toBe(number);
    }
    expect(await contents(reader)).toEqual(byNumber);
    expect(byKey).toEqual(byNumber);
    expect(await contents(streamRecords(pieces(file, [1, 7, 100_000]), { zstd: loadZstd }))).toEqual(byNumber);
    for (const key of told.absent_keys ?? []) expect(await reader.find(key)).toBeUndefined();
  });

  test.each(valid.filter(({ told }) => told.canonical))(
    "$name is written again byte for byte",
    async ({ file, told }) => {
      const reader = await open(file);
      const options = await optionsOf(reader);
      const copied = await written(options, async (writer) => {
        for await (const record of reader) await writer.copy(record);
      });
      expect(Buffer.compare(copied, file)).toBe(0);
      const records: PackRecord[] = [];
      for await (const record of reader) records.push(record);
      // The writer of this library writes metadata as JSON only.
      if (told.canonical !== "write" || records.some((record) => record.metadataEncoding === "messagepack")) return;
      const again = await written(options, async (writer) => {
        for (const record of records) {
          const entries = new Map<string, Uint8Array>();
          for (const name of record.names) entries.set(name, await record.read(name));
          const contentTypes = Object.fromEntries(
            [...record.entries()].map((entry) => [entry.name, entry.contentType]),
          );
          await writer.write(record.key, entries, { contentTypes, metadata: record.metadata() as never });
        }
      });
      expect(Buffer.compare(again, file)).toBe(0);
    },
  );
});

describe("damaged shards", () => {
  const everything = async (file: Uint8Array) => {
    const reader = await open(file);
    for (let number = 0; number < reader.length; number++) await contentOf(await reader.record(number));
    await reader.find("first");
    return reader.metadata;
  };

  test("a changed byte or a cut never gives anything but a ShardError, and what is recovered is a valid shard", async () => {
    const small = [...valid, ...invalid].filter(({ file }) => file.length < 4096);
    await fc.assert(
      fc.asyncProperty(
        fc.constantFrom(...small),
        fc.array(fc.tuple(fc.nat(), fc.nat(255)), { maxLength: 3 }),
        fc.option(fc.nat(), { nil: undefined }),
        async ({ file }, changes, cut) => {
          let damaged = file.slice();
          for (const [place, value] of changes) if (damaged.length > 0) damaged[place % damaged.length] = value;
          if (cut !== undefined) damaged = damaged.subarray(0, cut % (damaged.length + 1));
          await codeOf(() => everything(damaged));
          await codeOf(() => contents(streamRecords(pieces(damaged, [997]), { zstd: loadZstd })));
          const sink = new BytesSink();
          const { records, lost } = await recoverShardPack(damaged, sink);
          const recovered = await open(sink.bytes as Uint8Array);
          expect(recovered.length).toBe(records);
          const lostSize = lost.reduce((sum, part) => sum + part.size, 0);
          expect(lostSize).toBeLessThanOrEqual(damaged.length);
        },
      ),
      { numRuns: 300 },
    );
  });

  test("a file full of false markers is searched in bounded time", async () => {
    const file = new Uint8Array(2 << 20);
    const marker = Uint8Array.of(0x40, 0, 0, 0, 0, 0, 0, 0, 0x53, 0x50, 0x52, 0x31);
    for (let at = 0; at + 12 <= file.length; at += 12) file.set(marker, at);
    const { records, lost, hadIndex } = await recoverShardPack(file, new BytesSink());
    expect([records, hadIndex, lost.map(({ offset, size }) => [offset, size])]).toEqual([0, false, [[0, file.length]]]);
  });

  test("a stream refuses a record that is larger than it may hold", async () => {
    const { file } = valid.find(({ name }) => name === "many_entries") as Case;
    const code = await codeOf(() => contents(streamRecords(pieces(file, [100]), { maxRecordBytes: 36 })));
    expect(code).toBe("limit_exceeded");
  });
});

const key = fc.string({ unit: "grapheme", minLength: 1, maxLength: 20 }).filter((text) => !text.includes("\0"));
const entries = fc.uniqueArray(
  fc.tuple(
    fc.oneof(key, fc.constantFrom("a.txt", "b.json", "c.jpg")),
    fc.oneof(
      fc.uint8Array({ maxLength: 400 }),
      fc.nat(3000).map((size) => new Uint8Array(size).fill(7)),
    ),
  ),
  { selector: ([name]) => name, maxLength: 4 },
);
const metadata = fc.dictionary(key, fc.oneof(fc.integer(), fc.boolean(), fc.string({ unit: "grapheme" })), {
  maxKeys: 3,
});

describe("writing", () => {
  test("what is written reads back, with every alignment and compression, and twice the same bytes", async () => {
    const record = fc.record({ key, entries, metadata });
    await fc.assert(
      fc.asyncProperty(
        fc.uniqueArray(record, { selector: (one) => one.key, maxLength: 6 }),
        fc.constantFrom<1 | 8 | 64>(1, 8, 64),
        fc.constantFrom<"none" | "lz4" | "zstd">("none", "lz4", "zstd"),
        async (records, alignment, compression) => {
          const write = () =>
            written({ alignment, compression, created: "2024-01-01T00:00:00Z" }, async (writer) => {
              for (const one of records) await writer.write(one.key, new Map(one.entries), { metadata: one.metadata });
            });
          const file = await write();
          expect(Buffer.compare(file, await write())).toBe(0);
          const reader = await open(file);
          expect(reader.length).toBe(records.length);
          for (const [number, one] of records.entries()) {
            const found = await reader.byKey(one.key);
            expect(found.offset).toBe(reader.offsets[number]);
            expect({ ...found.metadata() }).toEqual({ ...one.metadata });
            expect([...found.names]).toEqual(one.entries.map(([name]) => name));
            for (const [name, content] of one.entries) {
              const entry = found.entry(name);
              expect(entry.offset % alignment).toBe(0);
              expect(entry.encoding === "none" || entry.storedSize < Math.floor(0.9 * entry.size)).toBe(true);
              expect(Buffer.compare(await entry.read(), content)).toBe(0);
            }
          }
        },
      ),
      { numRuns: 60 },
    );
  });

  test("a record that cannot be written changes nothing", async () => {
    const good = (writer: ShardPackWriter) => writer.write("a", { "x.txt": "hello" });
    const refused: [string, (writer: ShardPackWriter) => Promise<void>][] = [
      ["invalid_argument", good],
      ["invalid_argument", (writer) => writer.write("", {})],
      ["invalid_argument", (writer) => writer.write("k".repeat(65_537), {})],
      ["invalid_argument", (writer) => writer.write("\ud800", {})],
      ["invalid_argument", (writer) => writer.write("b", { x: "\ud800" })],
      ["invalid_argument", (writer) => writer.write("b", {}, { contentTypes: { x: "text/plain" } })],
      ["bad_name", (writer) => writer.write("b", { "": "" })],
      ["bad_name", (writer) => writer.write("b", { "a\0": "" })],
      ["bad_header", (writer) => writer.write("b", { x: "" }, { contentTypes: { x: "tëxt" } })],
      ["invalid_argument", (writer) => writer.write("b", {}, { metadata: { x: Number.NaN } })],
      ["limit_exceeded", (writer) => writer.write("b", {}, { metadata: { x: "x".repeat(1 << 24) } })],
    ];
    const options = { created: "2024-01-01T00:00:00Z" };
    const file = await written(options, async (writer) => {
      await good(writer);
      for (const [code, write] of refused) expect(await codeOf(() => write(writer))).toBe(code);
    });
    const { file: hello } = valid.find(({ name }) => name === "hello") as Case;
    expect(Buffer.compare(file, hello)).toBe(0);
  });

  test("a sink that fails ends the writer, which leaves nothing", async () => {
    const calls: string[] = [];
    const sink = {
      path: "x.shardpack",
      begin: async () => void calls.push("begin"),
      append: () => Promise.reject(new Error("no space")),
      finish: async () => void calls.push("finish"),
      abort: async () => void calls.push("abort"),
    };
    const writer = new ShardPackWriter(sink);
    await writer.write("a", {});
    await expect(writer.finish()).rejects.toMatchObject({ code: "io_error", path: "x.shardpack" });
    expect(await codeOf(() => writer.write("b", {}))).toBe("closed");
    await writer.abort();
    expect(calls).toEqual(["begin", "abort"]);
  });

  test("a stream gets a shard while it is written", async () => {
    const parts: Uint8Array[] = [];
    let state = "open";
    const stream = new WritableStream<Uint8Array>({
      write: (part) => void parts.push(part),
      close: () => {
        state = "closed";
      },
      abort: () => {
        state = "aborted";
      },
    });
    const writer = new ShardPackWriter(new StreamSink(stream));
    await writer.write("a", { bin: new Uint8Array(2 << 20) });
    expect(parts).toHaveLength(1);
    await writer.finish();
    expect(state).toBe("closed");
    expect((await open(Buffer.concat(parts))).length).toBe(1);
    const note = () => {
      state = "aborted";
    };
    const dropped = new ShardPackWriter(new StreamSink(new WritableStream({ abort: note })));
    await dropped.write("a", { bin: new Uint8Array(2 << 20) });
    await dropped.abort();
    expect(state).toBe("aborted");
  });

  test("calls that nobody waits for are done in order", async () => {
    const file = await written({}, async (writer) => {
      await Promise.all(["a", "b", "c"].map((name) => writer.write(name, { txt: name })));
    });
    const keys = [];
    for await (const record of await open(file)) keys.push(record.key);
    expect(keys).toEqual(["a", "b", "c"]);
  });
});

describe("tables", () => {
  test("content types are those of the registry", () => {
    const registry = readFileSync(new URL("../registry.md", vectors), "utf8");
    const rows = [...registry.matchAll(/^\| `([a-z]+\/\S+)` \| (.*?) \| ?(compressed)? ?\|$/gm)];
    expect(rows.length).toBeGreaterThan(40);
    for (const [, contentType, endings, compressed] of rows) {
      expect(isCompressible(contentType)).toBe(compressed === undefined);
      for (const [, ending] of endings.matchAll(/`(\w+)`/g)) {
        expect(contentTypeOf(ending)).toBe(contentType);
        expect(contentTypeOf(`left.${ending.toUpperCase()}`)).toBe(contentType);
      }
    }
    expect(contentTypeOf("a.unknown")).toBe("application/octet-stream");
    expect([isCompressible("image/unknown"), isCompressible("text/unknown")]).toEqual([false, true]);
  });
});
