// The same episode in five formats. `write` makes a file; `local` and `http` open it and give a function that reads steps of
// the camera as bytes.

import { writeFileSync } from "node:fs";
import { open as openFile } from "node:fs/promises";
import { join } from "node:path";
import * as bokuweb from "@bokuweb/zstd-wasm";
import { McapIndexedReader, McapWriter } from "@mcap/core";
import { BytesSink, FileSource, loadZstd, openShard, ShardWriter } from "@shard-format/core/node";
import { encodeEpisode, openEpisode } from "@shard-format/core/wshard";
import FileSystemStore from "@zarrita/storage/fs";
import { File as MemoryFile, ready as memoryReady } from "h5wasm";
import h5wasm from "h5wasm/node";
import { asyncBufferFromFile, asyncBufferFromUrl, parquetMetadataAsync, parquetRead } from "hyparquet";
import { compressors } from "hyparquet-compressors";
import { ByteWriter, ParquetWriter } from "hyparquet-writer";
import * as zarr from "zarrita";
import { bytesOf, chunkSteps, frameBytes, height, rateHz, steps, width } from "./data.mjs";

await bokuweb.init();
await h5wasm.ready;
/** The file system in memory of the build for browsers. */
const { FS: memory } = await memoryReady;
const zstd = await loadZstd();
const level = 3;

function concat(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

// --- WShard: one file. Compressed: zstd frames of 16 steps with a seek table.

const wshard = {
  name: "@shard-format/core",
  stores: { raw: "raw blocks", compressed: "zstd frames of 16 steps" },
  file: (form) => `${form}.wshard`,
  async write(folder, { camera, joints, actions }, form) {
    const file = await encodeEpisode({
      id: "episode",
      timebase: { type: "ticks", tickHz: rateHz },
      length: steps,
      observations: { camera: { data: camera, shape: [height, width, 3] }, joints: { data: joints, shape: [7] } },
      actions: { ctrl: { data: actions, shape: [7] } },
    });
    if (form === "raw") return writeFileSync(join(folder, this.file(form)), file);
    const reader = await openShard(file);
    const sink = new BytesSink();
    const writer = new ShardWriter(sink, {
      role: reader.header.role,
      zstd: { ...zstd, compress: bokuweb.compress },
      level,
    });
    for (const name of reader.names) {
      const frames = name === "signal/camera" ? { codec: "zstd", frameBytes: chunkSteps * frameBytes } : {};
      await writer.write(name, await reader.read(name), { contentType: reader.entry(name).contentType, ...frames });
    }
    await writer.finish();
    writeFileSync(join(folder, this.file(form)), sink.bytes);
  },
  async local(path) {
    return this.open(new FileSource(path));
  },
  async http(url) {
    return this.open(url);
  },
  async open(source) {
    const episode = await openEpisode(source, { zstd: loadZstd, checksums: this.checksums ?? true });
    const camera = episode.observations.get("camera");
    return { read: (start, end) => camera.window(start, end), close: () => episode.close() };
  },
};

/** The same files without checksums of entries, for the formats that have none. */
const unchecked = { ...wshard, name: "@shard-format/core, checksums: false", checksums: false };

// --- HDF5 with h5wasm: chunks of 16 steps. It has gzip, not zstd. It reads files only, so over HTTP the file is fetched first.

const hdf5 = {
  name: "h5wasm",
  stores: { raw: "HDF5, chunks of 16 steps", compressed: "the same with gzip 4" },
  file: (form) => `${form}.h5`,
  async write(folder, { camera, joints, actions }, form) {
    const file = new h5wasm.File(join(folder, this.file(form)), "w");
    file.create_dataset({
      name: "camera",
      data: camera,
      shape: [steps, height, width, 3],
      dtype: "<B",
      chunks: [chunkSteps, height, width, 3],
      ...(form === "raw" ? {} : { compression: "gzip", compression_opts: [4] }),
    });
    file.create_dataset({ name: "joints", data: joints, shape: [steps, 7], dtype: "<f" });
    file.create_dataset({ name: "actions", data: actions, shape: [steps, 7], dtype: "<f" });
    file.close();
  },
  async local(path) {
    return this.open(new h5wasm.File(path, "r"));
  },
  async http(url) {
    memory.writeFile("fetched.h5", new Uint8Array(await (await fetch(url)).arrayBuffer()));
    return this.open(new MemoryFile("fetched.h5", "r"));
  },
  open(file) {
    const camera = file.get("camera");
    return { read: async (start, end) => camera.slice([[start, end], [], [], []]), close: () => file.close() };
  },
};

// --- Zarr with zarrita: a folder with a file for each chunk of 16 steps.

const zarrFormat = {
  name: "zarrita",
  stores: { raw: "Zarr 3, a file for 16 steps", compressed: "the same with zstd" },
  file: (form) => `${form}.zarr`,
  async write(folder, { camera, joints, actions }, form) {
    const root = zarr.root(new FileSystemStore(join(folder, this.file(form))));
    await zarr.create(root);
    const codecs = [{ name: "bytes", configuration: { endian: "little" } }];
    if (form !== "raw") codecs.push({ name: "zstd", configuration: { level, checksum: false } });
    const write = async (name, dataType, shape, chunk, data) => {
      const array = await zarr.create(root.resolve(name), {
        shape,
        chunkShape: chunk,
        chunk_shape: chunk,
        dtype: dataType,
        data_type: dataType,
        codecs,
      });
      const stride = shape.map((_, axis) => shape.slice(axis + 1).reduce((product, size) => product * size, 1));
      await zarr.set(array, null, { data, shape, stride });
    };
    await write("camera", "uint8", [steps, height, width, 3], [chunkSteps, height, width, 3], camera);
    await write("joints", "float32", [steps, 7], [steps, 7], joints);
    await write("actions", "float32", [steps, 7], [steps, 7], actions);
  },
  async local(path) {
    return this.open(new FileSystemStore(path));
  },
  async http(url) {
    return this.open(new zarr.FetchStore(url));
  },
  async open(store) {
    const camera = await zarr.open.v3(zarr.root(store).resolve("camera"), { kind: "array" });
    const read = async (start, end) => (await zarr.get(camera, [zarr.slice(start, end), null, null, null])).data;
    return { read, close: () => undefined };
  },
};

// --- Parquet with hyparquet: a row for each step, row groups of 16 steps, the frame as bytes.

const parquet = {
  name: "hyparquet",
  stores: { raw: "Parquet, row groups of 16 steps", compressed: "the same with zstd" },
  file: (form) => `${form}.parquet`,
  async write(folder, { camera, joints, actions }, form) {
    const rows = (data, size) =>
      Array.from({ length: steps }, (_, step) => data.subarray(step * size, (step + 1) * size));
    const writer = new ByteWriter();
    const schema = [
      { name: "root", num_children: 3 },
      { name: "camera", type: "BYTE_ARRAY", repetition_type: "REQUIRED" },
      { name: "joints", type: "BYTE_ARRAY", repetition_type: "REQUIRED" },
      { name: "actions", type: "BYTE_ARRAY", repetition_type: "REQUIRED" },
    ];
    const codec = form === "raw" ? "UNCOMPRESSED" : "ZSTD";
    const compressors = { ZSTD: (data) => bokuweb.compress(data, level) };
    const file = new ParquetWriter({ writer, schema, codec, compressors });
    await file.write({
      columnData: [
        { name: "camera", data: rows(camera, frameBytes), encoding: "PLAIN" },
        { name: "joints", data: rows(bytesOf(joints), 28), encoding: "PLAIN" },
        { name: "actions", data: rows(bytesOf(actions), 28), encoding: "PLAIN" },
      ],
      rowGroupSize: chunkSteps,
    });
    await file.finish();
    writeFileSync(join(folder, this.file(form)), writer.getBytes());
  },
  async local(path) {
    return this.open(await asyncBufferFromFile(path));
  },
  async http(url) {
    return this.open(await asyncBufferFromUrl({ url }));
  },
  async open(file) {
    const metadata = await parquetMetadataAsync(file);
    const read = async (rowStart, rowEnd) => {
      const frames = [];
      const onChunk = ({ columnData, rowStart: first }) => {
        for (let row = 0; row < columnData.length; row++) {
          if (first + row >= rowStart && first + row < rowEnd) frames[first + row - rowStart] = columnData[row];
        }
      };
      await parquetRead({ file, metadata, columns: ["camera"], rowStart, rowEnd, onChunk, compressors, utf8: false });
      return concat(frames);
    };
    return { read, close: () => undefined };
  },
};

// --- MCAP: a message for each step and topic, chunks of 16 steps with an index.

const mcap = {
  name: "@mcap/core",
  stores: { raw: "MCAP, chunks of 16 steps", compressed: "the same with zstd" },
  file: (form) => `${form}.mcap`,
  async write(folder, { camera, joints, actions }, form) {
    const parts = [];
    let size = 0n;
    const writable = {
      position: () => size,
      async write(bytes) {
        parts.push(bytes.slice());
        size += BigInt(bytes.length);
      },
    };
    const writer = new McapWriter({
      writable,
      chunkSize: chunkSteps * frameBytes,
      ...(form === "raw"
        ? {}
        : { compressChunk: (data) => ({ compression: "zstd", compressedData: bokuweb.compress(data, level) }) }),
    });
    await writer.start({ profile: "", library: "" });
    const channel = async (topic) =>
      writer.registerChannel({ topic, schemaId: 0, messageEncoding: "", metadata: new Map() });
    const topics = [];
    for (const [topic, data, bytes] of [
      ["camera", camera, frameBytes],
      ["joints", bytesOf(joints), 28],
      ["actions", bytesOf(actions), 28],
    ]) {
      topics.push({ channelId: await channel(topic), data, bytes });
    }
    for (let step = 0; step < steps; step++) {
      const logTime = BigInt(Math.round((step * 1e9) / rateHz));
      for (const { channelId, data, bytes } of topics) {
        await writer.addMessage({
          channelId,
          sequence: step,
          logTime,
          publishTime: logTime,
          data: data.subarray(step * bytes, (step + 1) * bytes),
        });
      }
    }
    await writer.end();
    writeFileSync(join(folder, this.file(form)), concat(parts));
  },
  async local(path) {
    const handle = await openFile(path);
    const { size } = await handle.stat();
    const read = async (offset, length) => {
      const bytes = new Uint8Array(Number(length));
      await handle.read(bytes, 0, bytes.length, Number(offset));
      return bytes;
    };
    return this.open({ size: async () => BigInt(size), read }, () => handle.close());
  },
  async http(url) {
    const size = async () => BigInt((await fetch(url, { method: "HEAD" })).headers.get("content-length"));
    const read = async (offset, length) => {
      const range = `bytes=${offset}-${offset + length - 1n}`;
      return new Uint8Array(await (await fetch(url, { headers: { range } })).arrayBuffer());
    };
    return this.open({ size, read }, () => undefined);
  },
  async open(readable, close) {
    const decompressHandlers = { zstd: (data, size) => zstd.decompress(data, Number(size)) };
    const reader = await McapIndexedReader.Initialize({ readable, decompressHandlers });
    const read = async (start, end) => {
      const time = (step) => BigInt(Math.round((step * 1e9) / rateHz));
      const frames = [];
      const range = { startTime: time(start), endTime: time(end - 1) };
      for await (const message of reader.readMessages({ topics: ["camera"], ...range })) frames.push(message.data);
      return concat(frames);
    };
    return { read, close };
  },
};

export const formats = [wshard, unchecked, hdf5, zarrFormat, parquet, mcap];
