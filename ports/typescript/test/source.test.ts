import { readdirSync, readFileSync } from "node:fs";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import { viewOf } from "../src/core/bytes.js";
import { packEntry, packHeader } from "../src/core/layout.js";
import {
  BytesSink,
  CachedSource,
  checkUri,
  crc32c,
  FolderSource,
  type HttpSource,
  type IReadable,
  openShard,
  ShardError,
  ShardWriter,
} from "../src/index.js";
import { loadZstd } from "../src/node.js";
import { openShardSet } from "../src/shardpack/index.js";

/** A file of some entries, the last of which is long. */
async function makeFile(count = 3, size = 200_000): Promise<Uint8Array> {
  const sink = new BytesSink();
  const writer = new ShardWriter(sink);
  for (let i = 0; i < count; i++) await writer.write(`entry/${i}`, Uint8Array.of(i, i, i));
  await writer.write("long", new Uint8Array(size).fill(7));
  await writer.finish();
  return sink.bytes as Uint8Array;
}

/** A camera of 64 frames far behind the head: `noisy` of them compress by half, and the others to nearly nothing. */
async function makeCamera(noisy: number): Promise<{ file: Uint8Array; content: Uint8Array }> {
  const [frames, frameBytes] = [64, 32_768];
  const content = new Uint8Array(frames * frameBytes);
  for (let at = 0, state = 1; at < noisy * frameBytes; at++) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
    content[at] = state >>> 28;
  }
  const sink = new BytesSink();
  const writer = new ShardWriter(sink, { zstd: loadZstd });
  await writer.write("before", new Uint8Array(100_000).fill(7));
  const filters = { delta: { order: 1 as const, width: 1 as const, row: 1024 } };
  await writer.write("camera", content, { codec: "zstd", frameBytes, filters });
  await writer.finish();
  return { file: sink.bytes as Uint8Array, content };
}

type Answer = (request: IncomingMessage, response: ServerResponse, start: number, end: number) => void;
let server: Server | undefined;

async function serve(answer: Answer): Promise<string> {
  server = createServer((request, response) => {
    const [, start, end] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "") ?? [];
    answer(request, response, Number(start), Number(end));
  });
  await new Promise<void>((done) => server?.listen(0, "127.0.0.1", done));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/folder/file.shard?key=1`;
}

afterEach(() => {
  server?.close();
  server = undefined;
});

/** Answers as a good server does. */
function ranges(file: Uint8Array, headers: Record<string, string> = {}): Answer {
  return (_, response, start, end) => {
    const part = file.subarray(start, end + 1);
    const range = `bytes ${start}-${start + part.length - 1}/${file.length}`;
    response.writeHead(206, { "content-range": range, "content-length": part.length, ...headers });
    response.end(part);
  };
}

async function failure(run: Promise<unknown>): Promise<ShardError> {
  const error = await run.then(
    () => undefined,
    (error: unknown) => error,
  );
  if (!(error instanceof ShardError)) throw new Error(`no ShardError: ${String(error)}`);
  return error;
}

describe("a file behind a URL", () => {
  test("opens with one request, and short entries beside its head need no other", async () => {
    const file = await makeFile();
    const reader = await openShard(await serve(ranges(file)));
    expect(await reader.read("entry/1")).toEqual(Uint8Array.of(1, 1, 1));
    expect(reader.source.stats).toEqual({ requests: 1, bytes: 65536 });
    expect((await reader.read("long")).length).toBe(200_000);
    expect(await reader.readRange("long", 150_000, 150_010)).toEqual(new Uint8Array(10).fill(7));
    expect(reader.source.stats.requests).toBe(3);
  });

  test("opens with two requests if its head is long", async () => {
    const file = await makeFile(3000, 10);
    const reader = await openShard(await serve(ranges(file)));
    expect(reader.names.length).toBe(3001);
    expect(reader.source.stats.requests).toBe(2);
  });

  test("gives short entries one after the other with few requests", async () => {
    const file = await makeFile(3000, 10);
    const reader = await openShard(await serve(ranges(file)));
    for (const name of reader.names.slice(0, -1)) expect((await reader.read(name)).length).toBe(3);
    expect(reader.source.stats.requests).toBeLessThan(10);
  });

  test("is asked for the seek table, the filters and the frames of a window at the same time", async () => {
    const { file, content } = await makeCamera(64);
    const waiting: (() => void)[] = [];
    const url = await serve((request, response, start, end) => {
      const answer = () => ranges(file)(request, response, start, end);
      // All but the first request wait for each other: a reader that asks for one after the other waits forever.
      if (start === 0 || waiting.push(answer) < 3) return start === 0 ? answer() : undefined;
      for (const one of waiting.splice(0)) one();
    });
    const reader = await openShard(url, { zstd: loadZstd });
    const window = await reader.readRange("camera", 999_000, 1_300_000);
    expect(Buffer.compare(window, content.subarray(999_000, 1_300_000))).toBe(0);
    const { requests, bytes } = reader.source.stats;
    expect(requests).toBe(4);
    expect(bytes).toBeLessThan(file.length * 0.7);
  }, 10_000);

  test("is asked once more if the frames of a window are not where they should be", async () => {
    const { file, content } = await makeCamera(32);
    const reader = await openShard(await serve(ranges(file)), { zstd: loadZstd });
    const before = { ...reader.source.stats };
    // All that the entry stores is in its first half, which takes the guess too far to the front.
    const window = await reader.readRange("camera", 800_000, 1_000_000);
    expect(Buffer.compare(window, content.subarray(800_000, 1_000_000))).toBe(0);
    expect(reader.source.stats.requests - before.requests).toBe(4);
    const again = { ...reader.source.stats };
    await reader.readRange("camera", 800_000, 1_000_000);
    expect(reader.source.stats.requests - again.requests).toBe(1);
    expect(reader.source.stats.bytes - again.bytes).toBeLessThan(1.5 * window.length);
  });

  test("is refused if the server ignores ranges, unless the file is short", async () => {
    const file = await makeFile();
    const whole =
      (bytes: Uint8Array): Answer =>
      (_, response) => {
        response.writeHead(200, { "content-length": bytes.length });
        response.end(bytes);
      };
    const error = await failure(openShard(await serve(whole(file))));
    expect(error.code).toBe("io_error");
    expect(error.message).toContain("ignores ranges");
    server?.close();
    const reader = await openShard(await serve(whole(await makeFile(3, 100))));
    expect((await reader.read("long")).length).toBe(100);
  });

  test("fails if it changes between two requests", async () => {
    const file = await makeFile();
    let tag = 0;
    const reader = await openShard(
      await serve((request, response, start, end) => {
        ranges(file, { etag: `"${tag++}"` })(request, response, start, end);
      }),
    );
    expect((await failure(reader.read("long"))).message).toContain("changed while it was read");
  });

  test.each<[string, Answer]>([
    ["refuses", (_, response) => response.writeHead(404).end()],
    ["no Content-Range", (_, response) => response.writeHead(206).end("SHRD")],
    ["another range", (_, response) => response.writeHead(206, { "content-range": "bytes 5-9/10" }).end("abcde")],
    ["compresses", (_, response) => response.writeHead(206, { "content-encoding": "gzip" }).end()],
    [
      "more bytes than it says",
      (_, response) => response.writeHead(206, { "content-range": "bytes 0-3/4" }).end("SHRDS"),
    ],
    ["cut off", (_, response) => response.writeHead(206, { "content-range": "bytes 0-3/4" }).end("SHR")],
  ])("fails with a clear error: %s", async (problem, answer) => {
    const error = await failure(openShard(await serve(answer)));
    expect(error.code).toBe("io_error");
    expect(error.message).toContain(problem);
    expect(error.path).toContain("/folder/file.shard");
  });

  test("an empty file is not a Shard file", async () => {
    const url = await serve((_, response) => response.writeHead(416, { "content-range": "bytes */0" }).end());
    expect((await failure(openShard(url))).code).toBe("truncated");
  });

  test("fails if it was changed since, also without an ETag", async () => {
    const file = await makeFile();
    let day = 10;
    const reader = await openShard(
      await serve((request, response, start, end) => {
        ranges(file, { "last-modified": `Tue, ${day++} Nov 2026 12:00:00 GMT` })(request, response, start, end);
      }),
    );
    expect((reader.source as HttpSource).tag).toBe("Tue, 10 Nov 2026 12:00:00 GMT");
    expect((await failure(reader.read("long"))).message).toContain("changed while it was read");
  });

  test("gives up a read when its signal says so, and goes on with others", async () => {
    const file = await makeFile();
    let asked = 0;
    let left: () => void;
    const gone = new Promise<void>((done) => {
      left = done;
    });
    const reader = await openShard(
      await serve((request, response, start, end) => {
        if (asked++ !== 1) return ranges(file)(request, response, start, end);
        response.on("close", left); // it never answers
        controller.abort();
      }),
    );
    const controller = new AbortController();
    const { signal } = controller;
    await expect(reader.read("long", { signal })).rejects.toMatchObject({ name: "AbortError" });
    await gone;
    expect((await reader.read("long")).length).toBe(200_000);
    await expect(reader.readRange("long", 100_000, 100_001, { signal })).rejects.toMatchObject({ name: "AbortError" });
  });

  test("gives up the first window of a compressed entry, whose seek table the next one uses", async () => {
    const { file, content } = await makeCamera(64);
    const controller = new AbortController();
    const { signal } = controller;
    const reader = await openShard(
      await serve((request, response, start, end) => {
        if (start > 0 && end - start > 100_000 && !signal.aborted) controller.abort();
        else ranges(file)(request, response, start, end);
      }),
      { zstd: loadZstd },
    );
    const given = reader.readRange("camera", 999_000, 1_300_000, { signal });
    await expect(given).rejects.toMatchObject({ name: "AbortError" });
    const window = await reader.readRange("camera", 999_000, 1_300_000);
    expect(Buffer.compare(window, content.subarray(999_000, 1_300_000))).toBe(0);
  });

  test("gives the same through a cache, which merges what is asked for together", async () => {
    const { file, content } = await makeCamera(64);
    const reader = await openShard(new CachedSource(await serve(ranges(file))), { zstd: loadZstd });
    const window = await reader.readRange("camera", 999_000, 1_300_000);
    expect(Buffer.compare(window, content.subarray(999_000, 1_300_000))).toBe(0);
    const { requests } = reader.source.stats;
    await reader.readRange("camera", 999_000, 1_300_000);
    expect(reader.source.stats.requests).toBe(requests);
    await reader.close();
  });

  test("files beside it keep the query", async () => {
    const reader = await openShard(await serve(ranges(await makeFile())));
    const sibling = await reader.source.sibling?.("a b/c?.shard");
    expect(sibling?.path).toMatch(/\/folder\/a%20b\/c%3F\.shard\?key=1$/);
  });
});

describe("other sources", () => {
  test("a Blob, a buffer and anything with read and size give the same", async () => {
    const file = await makeFile();
    const readable: IReadable = {
      size: async () => BigInt(file.length),
      read: async (offset, size) => file.slice(Number(offset), Number(offset + size)),
    };
    for (const source of [new Blob([file as BlobPart]), file.buffer as ArrayBuffer, Buffer.from(file), readable]) {
      const reader = await openShard(source);
      expect(await reader.read("entry/2")).toEqual(Uint8Array.of(2, 2, 2));
      expect((await reader.readRange("long", 10, 20)).length).toBe(10);
      await reader.close();
      expect((await failure(reader.read("long"))).code).toBe("closed");
    }
  });

  test("files of a folder find each other, and none outside of it", async () => {
    const sets = new URL("../../../spec/vectors/valid_sets/three_shards/", import.meta.url);
    const names = readdirSync(sets).filter((name) => !name.endsWith(".json"));
    const files = new Map(names.map((name) => [`dropped/${name}`, new Blob([readFileSync(new URL(name, sets))])]));
    const setFile = [...files.keys()].find((name) => name.endsWith(".shardpack-set")) as string;
    const set = await openShardSet(new FolderSource(files, setFile), { zstd: loadZstd });
    for (let number = 0; number < set.length; number++) expect((await set.record(number)).key).toBeDefined();
    await set.close();
    const source = new FolderSource(files, setFile);
    expect((await failure(source.sibling("a/../none"))).code).toBe("missing_file");
    expect((await failure(source.sibling("../other"))).code).toBe("unsafe_path");
  });

  test("entries of bytes in memory are views, not copies", async () => {
    const file = await makeFile();
    const reader = await openShard(file);
    expect((await reader.read("long")).buffer).toBe(file.buffer);
  });

  test("a file of more than 4 GiB is read", async () => {
    const start = 5 * 2 ** 30;
    const data = Uint8Array.of(1, 2, 3);
    const header = {
      ...{ version: 2, role: 0, flags: 0x22, alignment: 64, compressionDefault: 0, indexEntrySize: 48, entryCount: 1 },
      ...{ stringTableOffset: 112, dataSectionOffset: 128, schemaOffset: 0, totalFileSize: start + 3 },
    };
    const entry = {
      ...{ nameOffset: 0, nameLength: 1, flags: 0, dataOffset: start, diskSize: 3, origSize: 3 },
      ...{ crc32c: crc32c(data), contentType: 0, tagBits: 0 },
    };
    const head = new Uint8Array(4096);
    head.set(packHeader(header));
    packEntry(viewOf(head), 64, entry, 0n);
    head[112] = 0x61;
    const source: IReadable = {
      size: async () => BigInt(start + 3),
      read: async (offset, size) => (offset === 0n ? head : data).slice(0, Number(size)),
    };
    const reader = await openShard(source);
    expect(await reader.read("a")).toEqual(data);
  });

  test("a source that gives too few bytes is an error", async () => {
    const file = await makeFile();
    const readable: IReadable = { size: async () => BigInt(file.length), read: async () => file.slice(0, 4096) };
    const reader = await openShard(readable);
    expect((await failure(reader.read("long"))).code).toBe("truncated");
  });
});

test("a reference must stay in its folder", () => {
  for (const uri of ["a.shard", "a/b.shard", "a/../b.shard", "./a", "ä b.shard", "a:b/c".slice(2)]) checkUri(uri);
  const bad = [
    "/a",
    "../a",
    "a/../../b",
    "http://x/a",
    "C:a",
    "c:\\a",
    "a\\b",
    "a\0",
    "a/".repeat(257),
    "x".repeat(4097),
  ];
  for (const uri of bad) expect(() => checkUri(uri), uri).toThrow("S-MAN-4");
});
