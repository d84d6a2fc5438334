import { createHash } from "node:crypto";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, describe, expect, test } from "vitest";
import {
  BytesSink,
  computeIdentity,
  createShard,
  type EntryOptions,
  findWarnings,
  loadZstd,
  openShard,
  packSignature,
  parseSignature,
  Role,
  ShardError,
  ShardWriter,
  StreamSink,
  signShard,
  verifyIdentity,
  verifyShard,
  verifySignature,
  type WriterOptions,
} from "../src/node.js";

const folder = mkdtempSync(join(tmpdir(), "shard-"));
afterAll(() => rmSync(folder, { recursive: true }));

type Entries = [string, Uint8Array, EntryOptions?][];

async function written(entries: Entries, options: WriterOptions = {}): Promise<Uint8Array> {
  const sink = new BytesSink();
  const writer = new ShardWriter(sink, { zstd: loadZstd, ...options });
  for (const [name, data, how] of entries) await writer.write(name, data, how);
  await writer.finish();
  return sink.bytes as Uint8Array;
}

async function code(run: Promise<unknown>): Promise<string> {
  const error = await run.then(
    () => undefined,
    (error: unknown) => error,
  );
  return error instanceof ShardError ? error.code : String(error);
}

/** Numbers that repeat, and so can be compressed. */
const ramp = (size: number) => Uint8Array.from({ length: size }, (_, i) => (i >> 2) & 15);

/** toEqual compares element by element, which takes seconds. */
function expectSame(found: Uint8Array, expected: Uint8Array): void {
  if (Buffer.compare(found, expected) !== 0) expect(found).toEqual(expected);
}
const name = fc.string({ unit: "binary", minLength: 1, maxLength: 20 }).filter((text) => !text.includes("\0"));
const content = fc.oneof(
  fc.uint8Array({ maxLength: 600 }),
  fc
    .tuple(fc.uint8Array({ minLength: 1, maxLength: 40 }), fc.integer({ min: 1, max: 200 }))
    .map(([piece, times]) => Uint8Array.from({ length: piece.length * times }, (_, i) => piece[i % piece.length])),
);
const entries = fc.uniqueArray(fc.tuple(name, content), { selector: ([key]) => key, maxLength: 6 });
const options = fc.record({
  role: fc.integer({ min: 0, max: 255 }),
  alignment: fc.constantFrom(0, 16, 32, 64),
  compression: fc.constantFrom("none" as const, "zstd" as const, "lz4" as const),
  identity: fc.boolean(),
});

describe("what is written is read again", () => {
  test("with any entries and options, and without warnings", async () => {
    await fc.assert(
      fc.asyncProperty(entries, options, async (given, how) => {
        const reader = await openShard(await written(given, how));
        for (const [key, data] of given) expectSame(await reader.read(key), data);
        expect(await findWarnings(reader)).toEqual([]);
        if (how.identity && how.role !== Role.manifest) expect(await verifyIdentity(reader)).toBe(2);
      }),
      { numRuns: 60 },
    );
  });

  test("in all layouts, and they have the same identity", async () => {
    const given: Entries = [
      ["a", ramp(1000)],
      ["b", new Uint8Array(0)],
    ];
    const moved = await written(given, { identity: true });
    const declared = await written(given, { identity: true, names: ["a", "b"] });
    const reserved = await written(given, { identity: true, maxEntries: 3 });
    expectSame(declared, moved);
    const digest = async (file: Uint8Array) => (await computeIdentity(await openShard(file))).digest();
    expect(await digest(reserved)).toBe(await digest(moved));
  });

  test("as seekable entries with any filters, whole and in ranges", async () => {
    const width = fc.constantFrom(1 as const, 2 as const, 4 as const, 8 as const);
    const filters = fc.record({ width, order: fc.constantFrom(1 as const, 2 as const), kind: fc.nat(3) });
    await fc.assert(
      fc.asyncProperty(filters, fc.integer({ min: 1, max: 5 }), fc.nat(3000), fc.nat(3000), async (f, items, a, b) => {
        const row = f.width * items;
        const data = ramp(row * Math.ceil(3000 / row));
        const planes = { width: f.width === 1 ? (2 as const) : f.width };
        const delta = { order: f.order, row, width: f.width };
        const how =
          [
            {},
            { filters: { delta } },
            row % planes.width === 0 ? { filters: { planes } } : {},
            f.width > 1 ? { filters: { delta, planes } } : {},
          ][f.kind] ?? {};
        const file = await written([["x", data, { codec: "zstd", frameBytes: row * Math.ceil(600 / row), ...how }]]);
        const reader = await openShard(file);
        expect(reader.entry("x").codec).toBe("zstd");
        expectSame(await reader.read("x"), data);
        const [start, end] = [Math.min(a, b), Math.max(a, b)];
        expectSame(await reader.readRange("x", start, end), data.subarray(start, end));
        await verifyShard(reader);
      }),
      { numRuns: 60 },
    );
  });

  test("to a stream", async () => {
    const parts: Uint8Array[] = [];
    const stream = new WritableStream<Uint8Array>({ write: (part) => void parts.push(part) });
    const writer = new ShardWriter(new StreamSink(stream));
    await writer.write("a", ramp(100));
    await writer.finish();
    expect(Buffer.concat(parts)).toEqual(Buffer.from(await written([["a", ramp(100)]])));
  });

  test("with calls that nobody waits for, in their order", async () => {
    const sink = new BytesSink();
    const writer = new ShardWriter(sink);
    void writer.write("a", ramp(1000));
    void writer.write("b", ramp(10));
    await writer.finish();
    expect(sink.bytes).toEqual(
      await written([
        ["a", ramp(1000)],
        ["b", ramp(10)],
      ]),
    );
  });
});

describe("a damaged file", () => {
  test("gives a ShardError or the right content, whichever byte is changed", async () => {
    const data = ramp(700);
    const how = { codec: "zstd" as const, frameBytes: 200 };
    const file = await written([
      ["a", data, how],
      ["b", data, { codec: "lz4" }],
      ["c", data.subarray(0, 50)],
      ["d", data, { codec: "zstd", filters: { delta: { order: 1, row: 4, width: 4 }, planes: { width: 4 } } }],
    ]);
    const change = fc.tuple(fc.nat(file.length - 1), fc.integer({ min: 1, max: 255 }));
    await fc.assert(
      fc.asyncProperty(fc.array(change, { minLength: 1, maxLength: 2 }), fc.nat(300), async (changes, cut) => {
        const bad = file.slice(0, cut > 280 ? file.length - cut : undefined);
        for (const [at, by] of changes) bad[at % bad.length] ^= by;
        try {
          const reader = await openShard(bad);
          await findWarnings(reader);
          for (const entry of reader.names) await reader.read(entry).catch(expectShardError);
          await reader.readRange("a", 150, 250).catch(expectShardError);
          await reader.schema();
        } catch (error) {
          expectShardError(error);
        }
      }),
      { numRuns: 300 },
    );
  });
});

function expectShardError(error: unknown): void {
  if (!(error instanceof ShardError)) throw error;
}

describe("a file on disk", () => {
  const path = join(folder, "file.shard");

  test("appears when it is finished, and what was there stays until then", async () => {
    writeFileSync(path, "before");
    const writer = createShard(path);
    await writer.write("a", ramp(3_000_000));
    expect(readFileSync(path, "utf8")).toBe("before");
    await writer.finish();
    expectSame(readFileSync(path), await written([["a", ramp(3_000_000)]]));
    expect(readdirSync(folder)).toEqual(["file.shard"]);
    expect(await code(writer.write("b", ramp(1)))).toBe("closed");
  });

  test("leaves nothing behind after an abort or an error", async () => {
    writeFileSync(path, "before");
    for (const how of [{}, { names: ["a", "b"] }, { maxEntries: 1 }]) {
      const writer = createShard(path, how);
      await writer.write("a", ramp(10));
      if ("maxEntries" in how) await writer.abort();
      else if ("names" in how) expect(await code(writer.finish())).toBe("invalid_argument");
      else await writer.abort();
      await writer.abort();
      expect(await code(writer.write("c", ramp(10)))).toBe("closed");
    }
    const nowhere = createShard(join(folder, "missing", "file.shard"));
    expect(await code(nowhere.write("a", ramp(10)))).toBe("io_error");
    expect(readdirSync(folder)).toEqual(["file.shard"]);
    expect(readFileSync(path, "utf8")).toBe("before");
  });

  test("that is not there, or is a folder, is an error", async () => {
    expect(await code(openShard(join(folder, "missing")))).toBe("io_error");
    expect(await code(openShard(folder))).toBe("invalid_argument");
  });
});

describe("a writer refuses", () => {
  test("what a reader would refuse", async () => {
    const writer = new ShardWriter(new BytesSink(), { maxEntries: 2 });
    for (const bad of ["", "a\0b", "x".repeat(65536), "\ud800"]) {
      expect(await code(writer.write(bad, ramp(1)))).toBe("invalid_argument");
    }
    await writer.write("a", ramp(1));
    expect(await code(writer.write("a", ramp(1)))).toBe("duplicate_name");
    expect(await code(writer.write("b", ramp(1), { contentType: 65536 }))).toBe("invalid_argument");
    await writer.write("y".repeat(200), ramp(1));
    expect(await code(writer.write("c", ramp(1)))).toBe("limit_exceeded");
    expect(await code(writer.finish())).toBe("limit_exceeded");
  });

  test("options that make no sense", async () => {
    const sink = new BytesSink();
    for (const bad of [{ alignment: 8 }, { role: 256 }, { maxEntries: 0 }, { names: [], maxEntries: 1 }]) {
      expect(() => new ShardWriter(sink, bad)).toThrow("invalid_argument");
    }
    expect(() => new ShardWriter(sink, { schema: { tags: 5 } })).toThrow("invalid_argument");
    const filters = { delta: { order: 1 as const, row: 3, width: 1 as const } };
    expect(await code(written([["a", ramp(1000), { codec: "zstd", filters }]]))).toBe("invalid_argument");
    expect(await code(written([["a", ramp(1000), { codec: "lz4", frameBytes: 100 }]]))).toBe("invalid_argument");
    expect(await code(written([["a", ramp(1000), { codec: "zstd" }]], { zstd: { decompress: ramp } as never }))).toBe(
      "missing_extra",
    );
  });
});

describe("a signature", () => {
  test("fits the file, the key and the version that were signed", async () => {
    const keys = (await crypto.subtle.generateKey("Ed25519", true, ["sign", "verify"])) as CryptoKeyPair;
    const reader = await openShard(await written([["a", ramp(10)]]));
    const signature = parseSignature(packSignature(await signShard(reader, keys)));
    expect(await verifySignature(reader, signature, signature.publicKey)).toBe(2);
    const other = await openShard(await written([["a", ramp(11)]]));
    expect(await code(verifySignature(other, signature, signature.publicKey))).toBe("identity_mismatch");
    expect(await code(verifySignature(reader, { ...signature, version: 1 }, signature.publicKey))).toBe(
      "bad_signature",
    );
    expect(await code(verifySignature(reader, signature, "00".repeat(32)))).toBe("bad_signature");
    expect(() => parseSignature(new TextEncoder().encode("{}"))).toThrow("S-SIG-2");
  });

  test("is the one that other implementations make", async () => {
    // RFC 8032, 7.1, test 1, as PKCS #8.
    const seed = Buffer.from("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60", "hex");
    const pkcs8 = Buffer.concat([Buffer.from("302e020100300506032b657004220420", "hex"), seed]);
    const privateKey = await crypto.subtle.importKey("pkcs8", pkcs8, "Ed25519", false, ["sign"]);
    const raw = Buffer.from("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "hex");
    const publicKey = await crypto.subtle.importKey("raw", raw, "Ed25519", true, ["verify"]);
    const hello = readFileSync(new URL("../../../spec/vectors/valid/hello.shard", import.meta.url));
    const signature = packSignature(await signShard(await openShard(hello), { privateKey, publicKey }));
    expect(createHash("sha256").update(signature).digest("hex")).toBe(SIGNED);
  });
});

/** The SHA-256 of the signature file that the Python library makes. */
const SIGNED = "d2bc9ea4c0eb24499399eabb80a2c653bf98b1451b78d0dfdc8f79cdc351bef9";
