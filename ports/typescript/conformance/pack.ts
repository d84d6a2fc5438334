import { writeFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";
import { encodeUtf8, fromHex, toHex } from "../src/core/bytes.js";
import { isObject, type Json, type JsonObject } from "../src/core/json.js";
import { BytesSink } from "../src/core/sink.js";
import { openShardPack, streamShardPack } from "../src/node/shardpack.js";
import { FileSource, loadZstd, ShardError, xxh64 } from "../src/node.js";
import {
  type Entries,
  type MessagePackValue,
  openShardPack as openPack,
  type PackOptions,
  type PackRecord,
  recoverShardPack,
  type ShardPackReader,
  ShardPackWriter,
} from "../src/shardpack/index.js";
import { digest, type Kind, optionsOf, type Told } from "./kind.js";

export const pack: Kind = {
  read: (file) => using(file, (reader) => tell(reader, file)),

  step: async (file, given) => {
    if (given["when"] === "stream") {
      for await (const record of streamShardPack(file)) void record.key;
      return { done: true };
    }
    return await using(file, (reader) => step(reader, given), optionsOf(given));
  },

  stream: async (file) => {
    let records = 0;
    try {
      for await (const record of streamShardPack(file)) {
        void record.key;
        records++;
      }
    } catch (error) {
      if (!(error instanceof ShardError)) throw error;
      return { records: String(records), error_code: error.code };
    }
    return { records: String(records), error_code: null };
  },

  recover: async (file) => {
    const sink = new BytesSink();
    const { lost, hadIndex } = await recoverShardPack(new FileSource(file), sink);
    const keys: string[] = [];
    for await (const record of await openPack(sink.bytes as Uint8Array)) keys.push(record.key);
    const parts = lost.map(({ key, offset, size }) => ({
      key: key ?? null,
      offset: String(offset),
      size: String(size),
    }));
    return { keys, lost: parts, had_index: hadIndex };
  },

  write: async (given, out) => {
    const options = given["options"] as JsonObject;
    const sink = new BytesSink();
    const writer = new ShardPackWriter(sink, {
      alignment: Number(options["alignment"]) as 1 | 8 | 64,
      compression: options["compression"] as "none" | "zstd",
      created: String(options["created"]),
      metadata: given["user"] as JsonObject,
      zstd: loadZstd,
    });
    for (const record of given["records"] as JsonObject[]) {
      const entries = record["entries"] as { name: string; content: string; content_type: string }[];
      const contents: Entries = new Map(entries.map(({ name, content }) => [name, contentOf(content)]));
      await writer.write(String(record["key"]), contents, {
        contentTypes: Object.fromEntries(entries.map(({ name, content_type }) => [name, content_type])),
        ...(isObject(record["metadata"]) ? { metadata: record["metadata"] } : {}),
      });
    }
    await writer.finish();
    return save(sink, out);
  },

  rewrite: (file, out) =>
    using(file, async (reader) => {
      const sink = new BytesSink();
      const { user, created } = reader.metadata;
      const writer = new ShardPackWriter(sink, {
        ...(reader.length > 0 ? { alignment: (await reader.record(0)).alignment as 1 | 8 | 64 } : {}),
        ...(isObject(user) ? { metadata: user } : {}),
        ...(typeof created === "string" ? { created } : {}),
      });
      for await (const record of reader) await writer.copy(record);
      await writer.finish();
      return save(sink, out);
    }),
};

async function step(reader: ShardPackReader, given: JsonObject): Promise<Told> {
  const record = () => reader.record(Number(given["record"]));
  if (given["when"] === "offsets") void reader.offsets;
  if (given["when"] === "lookup") await reader.find("first");
  if (given["when"] === "index_metadata") void reader.metadata;
  if (given["when"] === "key") await reader.byKey(String(given["key"]));
  if (given["when"] === "record") void (await record()).key;
  if (given["when"] === "metadata") (await record()).metadata();
  if (given["when"] === "entry") await (await record()).read(String(given["entry"]));
  return { done: true };
}

function save(sink: BytesSink, out: string): Told {
  writeFileSync(out, sink.bytes as Uint8Array);
  return { sha256: digest(sink.bytes as Uint8Array) };
}

async function using(
  file: string,
  run: (reader: ShardPackReader) => Promise<Told>,
  options: PackOptions = {},
): Promise<Told> {
  const reader = await openShardPack(file, options);
  try {
    return await run(reader);
  } finally {
    await reader.close();
  }
}

async function tell(reader: ShardPackReader, file: string): Promise<Told> {
  const { metadata } = reader;
  const records: Told[] = [];
  for await (const record of reader) {
    records.push(await tellRecord(record));
    // Every way to a record must give the same one.
    const { offset } = await reader.byKey(record.key);
    if (offset !== record.offset) throw new Error("the same record is found at different places");
  }
  const streamed: Told[] = [];
  for await (const record of streamShardPack(file)) streamed.push(await tellRecord(record));
  if (!isDeepStrictEqual(streamed, records)) throw new Error("a stream gives other records");
  return { index_offset: String(reader.footer.indexOffset), metadata, records };
}

async function tellRecord(record: PackRecord): Promise<Told> {
  const metadata = record.metadataEncoding === "messagepack" ? tagged(record.messagePack()) : record.metadata();
  const entries: Told[] = [];
  for (const entry of record.entries()) {
    entries.push({
      name: entry.name,
      content_type: entry.contentType,
      encoding: entry.encoding,
      offset: String(entry.offset),
      stored_size: String(entry.storedSize),
      original_size: String(entry.size),
      crc32c: entry.crc32c.toString(16).padStart(8, "0"),
      sha256: digest(await entry.read()),
    });
  }
  return {
    key: record.key,
    key_hash: xxh64(encodeUtf8(record.key) as Uint8Array)
      .toString(16)
      .padStart(16, "0"),
    offset: String(record.offset),
    size: String(record.size),
    alignment: String(record.alignment),
    metadata_encoding: record.metadataEncoding,
    metadata,
    entries,
  };
}

/** A value of MessagePack with its type, as the vectors tell it. */
function tagged(found: MessagePackValue): Told {
  switch (found.type) {
    case "int":
      return { int: String(found.value) };
    case "float": {
      const view = new DataView(new ArrayBuffer(8));
      view.setFloat64(0, found.value);
      return { float64_hex: toHex(new Uint8Array(view.buffer)) };
    }
    case "bin":
      return { bin: toHex(found.value) };
    case "ext":
      return { ext: { code: String(found.code), hex: toHex(found.value) } };
    case "list":
      return { list: found.value.map(tagged) };
    case "map":
      return { map: found.value.map(([key, value]) => [tagged(key), tagged(value)]) };
    default:
      return { [found.type]: found.value satisfies Json };
  }
}

/** The content that a case for writers names. */
function contentOf(text: string): Uint8Array {
  const [kind, value = ""] = text.split(":");
  if (kind === "hex") return fromHex(value) as Uint8Array;
  const size = Number(value);
  if (kind === "ramp") return Uint8Array.from({ length: size }, (_, position) => position & 0xff);
  let lines = "";
  for (let row = 0; lines.length < size; row++) lines += `row ${String(row).padStart(6, "0")}\n`;
  return (encodeUtf8(lines) as Uint8Array).subarray(0, size);
}
