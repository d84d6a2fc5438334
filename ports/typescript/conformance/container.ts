import { readFileSync } from "node:fs";
import { describeFilters } from "../src/core/filters.js";
import { storedNameHash } from "../src/core/head.js";
import { Role } from "../src/core/registry.js";
import {
  type Codec,
  computeIdentity,
  createShard,
  findWarnings,
  type JsonObject,
  type OpenOptions,
  openShard,
  parseSignature,
  readManifest,
  type ShardReader,
  verifyIdentity,
  verifyShard,
  verifySignature,
} from "../src/node.js";
import { digest, type Kind, optionsOf, type Told } from "./kind.js";

/** The number of entries above which only their digest is told. */
const mostListed = 1000;

export const container: Kind = {
  read: (file) => using(file, tell),

  step: (file, given) => using(file, (reader) => step(reader, given), optionsOf(given)),

  write: async (given, out) => {
    const options = given["options"] as JsonObject;
    const entries = given["entries"] as JsonObject[];
    const layout = options["layout"];
    const writer = createShard(out, {
      role: Number(options["role"]),
      alignment: Number(options["alignment"]),
      compression: options["compression"] as Codec,
      identity: options["identity"] === true,
      ...(given["schema"] === undefined ? {} : { schema: given["schema"] as JsonObject }),
      ...(layout === "reserved" ? { maxEntries: Number(options["max_entries"]) } : {}),
      ...(layout === "declared" ? { names: entries.map((entry) => String(entry["name"])) } : {}),
    });
    try {
      for (const entry of entries) {
        await writer.write(String(entry["name"]), content(String(entry["content"])), {
          contentType: Number(entry["content_type"]),
          tagBits: Number(entry["tag_bits"]),
        });
      }
      await writer.finish();
    } finally {
      await writer.abort();
    }
    return tellWritten(out);
  },

  rewrite: (file, out) =>
    using(file, async (reader) => {
      const { role, alignment } = reader.header;
      const schema = await reader.schema();
      const writer = createShard(out, { role, alignment, ...(schema ? { schema } : {}) });
      for (const { name, codec, contentType, tagBits } of reader.entries()) {
        await writer.write(name, await reader.read(name), { codec: codec ?? "none", contentType, tagBits });
      }
      await writer.finish();
      return tellWritten(out);
    }),
};

async function step(reader: ShardReader, given: JsonObject): Promise<Told> {
  const entry = String(given["entry"]);
  const start = Number(given["start"]);
  if (given["when"] === "read") await reader.read(entry);
  if (given["when"] === "range") await reader.readRange(entry, start, start + Number(given["length"]));
  if (given["when"] === "schema") await reader.schema();
  if (given["when"] === "manifest") await readManifest(reader);
  if (given["when"] === "identity") await verifyIdentity(reader);
  if (given["when"] === "verify") await verifyShard(reader);
  return { done: true };
}

/** Verifies a signature file with the hex digits of a key that is trusted. */
export function verifyFile(file: string, signature: string, key: string): Promise<Told> {
  return using(file, async (reader) => {
    const parsed = parseSignature(readFileSync(signature));
    const version = await verifySignature(reader, parsed, key);
    return { identity: parsed.identity, version: String(version) };
  });
}

/** What a case says about the content of an entry. */
export function content(text: string): Uint8Array {
  const [kind, value] = text.split(":");
  if (kind === "hex") return Buffer.from(value, "hex");
  const size = Number(value);
  if (kind === "ramp") return Uint8Array.from({ length: size }, (_, i) => i & 255);
  const rows = Array.from({ length: Math.ceil(size / 11) }, (_, i) => `row ${String(i).padStart(6, "0")}\n`);
  return Buffer.from(rows.join("")).subarray(0, size);
}

/** The answer about a file that was written. */
export function tellWritten(path: string): Promise<Told> {
  return using(path, async (reader) => ({
    sha256: digest(readFileSync(path)),
    identity: await (await computeIdentity(reader)).digest(),
  }));
}

/** Opens a file, uses it and closes it. */
export async function using<T>(
  file: string,
  run: (reader: ShardReader) => Promise<T>,
  options: OpenOptions = {},
): Promise<T> {
  const reader = await openShard(file, options);
  try {
    return await run(reader);
  } finally {
    await reader.close();
  }
}

async function tell(reader: ShardReader): Promise<Told> {
  const { header } = reader;
  const identity = await computeIdentity(reader);
  const entries: Told[] = [];
  for (const name of reader.names) entries.push(await tellEntry(reader, name));
  const lines = entries.map((entry) => `${entry["name"]}\t${entry["sha256"]}\n`).join("");
  return {
    header: {
      version: String(header.version),
      role: String(header.role),
      flags: String(header.flags),
      alignment: String(header.alignment),
      compression_default: String(header.compressionDefault),
      entry_count: String(header.entryCount),
      string_table_offset: String(header.stringTableOffset),
      data_section_offset: String(header.dataSectionOffset),
      schema_offset: String(header.schemaOffset),
      total_file_size: String(header.totalFileSize),
    },
    ...(entries.length > mostListed ? { entries_sha256: digest(new TextEncoder().encode(lines)) } : { entries }),
    identity: await identity.digest(1),
    identity_2: await identity.digest(2),
    warnings: await findWarnings(reader),
    schema: await reader.schema(),
    manifest_files: header.role === Role.manifest ? (await readManifest(reader)).files : undefined,
  };
}

async function tellEntry(reader: ShardReader, name: string): Promise<Told> {
  const entry = reader.entry(name);
  const number = reader.index.find(name) as number;
  const row = reader.index.row(number);
  const content = await reader.read(name);
  const filters = await reader.filters(name);
  const frames = await reader.seekFrames(name);
  let at = 0;
  for (const { decompressedSize } of frames ?? []) {
    const part = await reader.readRange(name, at, at + decompressedSize);
    const whole = content.subarray(at, at + decompressedSize);
    if (Buffer.compare(part, whole) !== 0) throw new Error("a range differs from the whole entry");
    at += decompressedSize;
  }
  return {
    name,
    name_hash: storedNameHash(reader.head, number).toString(16).padStart(16, "0"),
    crc32c: row.crc32c.toString(16).padStart(8, "0"),
    codec: entry.codec,
    content_type: String(entry.contentType),
    tag_bits: String(entry.tagBits),
    data_offset: String(entry.dataOffset),
    disk_size: String(entry.diskSize),
    orig_size: String(entry.origSize),
    sha256: digest(content),
    filters: filters && describeFilters(filters).map(texts),
    seekable_frames: frames?.map(({ compressedSize, decompressedSize, checksum }) => ({
      compressed_size: String(compressedSize),
      decompressed_size: String(decompressedSize),
      checksum: checksum?.toString(16).padStart(8, "0"),
    })),
  };
}

/** The same object with texts for numbers. */
function texts(object: object): Told {
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [key, String(value)]));
}
