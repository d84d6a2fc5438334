import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import {
  COMPRESS_ZSTD,
  Compressor,
  compressionByte,
  compressionFromByte,
  createShardHeader,
  decodeBool,
  decodeFloat32_2D,
  decodeInt64,
  decompressBlock,
  encodeBool,
  encodeFloat32,
  encodeFloat32_2D,
  encodeInt64,
  hasZstdSupport,
  initXxHash,
  initZstd,
  isCompressed,
  modalityContentType,
  normalizePath,
  omenBlock,
  parseHeader,
  parseIndexEntry,
  SHARD_HEADER_SIZE,
  serializeHeader,
  serializeIndexEntry,
  uncertBlock,
  WShardReader,
  WShardStreamWriter,
  WShardWriter,
} from "../src/wshard/compat.js";
import { openEpisode } from "../src/wshard/node.js";

const folder = await mkdtemp(join(tmpdir(), "compat-"));
afterAll(() => rm(folder, { recursive: true }));

test("the writer and the reader of @wshard/core work as its README calls them", async () => {
  const path = join(folder, "written.wshard");
  const steps = Array.from({ length: 100 }, (_, t) => t);
  const size = await new WShardWriter(path, { compression: "none" })
    .setEpisode({ episode_id: "ep_001", env_id: "CartPole-v1", source: "simulation", length_t: 100, timebase: "ticks" })
    .addChannel({ id: "joint_pos", dtype: "f32", shape: [2], unit: "rad" })
    .setSignalFloat32_2D(
      "joint_pos",
      steps.map((t) => [t, -t]),
    )
    .setActionFloat32("ctrl", steps)
    .setOmenFloat32("ctrl", "dreamer", steps)
    .setUncertFloat32("ctrl", "dreamer", "std", steps)
    .setMultiModalSignal("wrist", "depth", encodeFloat32(steps))
    .setLatentActionFloat32_2D(
      "vae",
      steps.map((t) => [t, t, t]),
    )
    .setLatentActionCodebookInt32("vae", steps)
    .setReward(steps)
    .setDone(steps.map((t) => t === 99))
    .setModels({ models: [] })
    .computeAndSetResidual(
      "joint_pos",
      steps.map((t) => t % 2),
    )
    .write();
  const reader = new WShardReader(path);
  await reader.open();
  expect([reader.lengthT, reader.episodeMeta?.env_id, size > 0]).toEqual([100, "CartPole-v1", true]);
  expect([reader.episodeMeta?.metadata, reader.getChannelDef("none")]).toEqual([{ source: "simulation" }, null]);
  expect(reader.getChannelDef("joint_pos")).toMatchObject({ dtype: "f32", shape: [2], unit: "rad" });
  expect((await reader.getSignalFloat32_2D("joint_pos", 2))[3]).toEqual([3, -3]);
  expect((await reader.getActionFloat32("ctrl")).slice(0, 3)).toEqual([0, 1, 2]);
  expect((await reader.getOmenFloat32("ctrl", "dreamer"))[5]).toBe(5);
  expect((await reader.getUncertFloat32("ctrl", "dreamer", "std"))[5]).toBe(5);
  expect((await reader.getMultiModalSignalFloat32("wrist", "depth"))[7]).toBe(7);
  expect((await reader.getLatentActionFloat32_2D("vae", 3))[4]).toEqual([4, 4, 4]);
  expect((await reader.getLatentActionCodebookInt32("vae"))[9]).toBe(9);
  expect((await reader.getTimeTicks()).length).toBe(100);
  expect((await reader.getReward())[2]).toBe(2);
  expect((await reader.getDone()).filter(Boolean).length).toBe(1);
  expect(Array.from((await reader.getResidualSign2ndDiffUnpacked("joint_pos")).subarray(0, 4))).toEqual([0, 1, -1, 1]);
  expect([reader.hasBlock("meta/models"), reader.blockSize("reward"), reader.modelsMeta !== undefined]).toEqual([
    true,
    400,
    true,
  ]);
  await reader.close();
});

test("the stream writer records steps, which need not be waited for", async () => {
  const path = join(folder, "streamed.wshard");
  const defs = [
    { name: "state", dtype: "f32" as const, shape: [2] },
    { name: "ctrl", dtype: "f32" as const, shape: [1] },
  ];
  const writer = new WShardStreamWriter(path, "ep_002", defs, { flushInterval: 8 });
  writer.beginEpisode("Env-v0");
  for (let t = 0; t < 20; t++) {
    if (t % 2) writer.writeTimestepFloat32(t, { state: [t, t] }, { ctrl: [t] }, t, t === 19);
    else writer.writeTimestep(t, { state: encodeFloat32([t, t]) }, { ctrl: encodeFloat32([t]) }, t, false);
  }
  expect(await writer.endEpisode()).toBeGreaterThan(0);
  expect([writer.count, writer.isFinalized]).toEqual([20, true]);
  const opened = await openEpisode(path);
  expect([opened.length, [...opened.observations.keys()], [...opened.actions.keys()]]).toEqual([
    20,
    ["state"],
    ["ctrl"],
  ]);
  await opened.close();
  const unfit = new WShardStreamWriter(join(folder, "unfit.wshard"), "ep", defs);
  await unfit.beginEpisode();
  const short = unfit.writeTimestep(0, { state: new Uint8Array(5) }, { ctrl: encodeFloat32([0]) }, 0, false);
  await expect(short).rejects.toMatchObject({ code: "invalid_argument" });
});

test("names, headers, values and codecs are those of @wshard/core", async () => {
  await initXxHash();
  await initZstd();
  expect(hasZstdSupport()).toBe(true);
  expect([omenBlock("a", "m"), uncertBlock("a", "m", "std"), normalizePath("signal", "signal/a")]).toEqual([
    "omen/a/m",
    "uncert/a/m/std",
    "signal/a",
  ]);
  expect([compressionByte("zstd"), compressionFromByte(2)]).toEqual([COMPRESS_ZSTD, "lz4"]);
  const header = serializeHeader({ ...createShardHeader(), entryCount: 3 });
  expect([header.length, parseHeader(header)]).toMatchObject([
    SHARD_HEADER_SIZE,
    { entryCount: 3, role: 5, schemaOffset: 0n },
  ]);
  expect(() => parseHeader(Buffer.alloc(64))).toThrow("bad_magic");
  const row = {
    ...{ nameHash: 1n, nameOffset: 0, nameLen: 1, flags: 1, dataOffset: 128n, diskSize: 3n },
    origSize: 4n,
  };
  const entry = { ...row, checksum: 5, contentType: 2, name: "" };
  expect(parseIndexEntry(serializeIndexEntry(entry))).toEqual(entry);
  expect([isCompressed(entry), modalityContentType("depth"), modalityContentType("rgb")]).toEqual([true, 1, 6]);
  expect(decodeInt64(encodeInt64([1n, -(2n ** 63n)]))).toEqual([1n, -(2n ** 63n)]);
  expect(
    decodeFloat32_2D(
      encodeFloat32_2D([
        [1, 2],
        [3, 4],
      ]),
      2,
    ),
  ).toEqual([
    [1, 2],
    [3, 4],
  ]);
  expect(decodeBool(encodeBool([true, false]))).toEqual([true, false]);
  const data = Buffer.alloc(1000, 7);
  for (const type of ["none", "zstd", "lz4"] as const) {
    const compressor = new Compressor(type, "fastest");
    const packed = await compressor.compressAsync(data);
    expect(packed.length < data.length).toBe(type !== "none");
    expect(await compressor.decompressAsync(packed, data.length)).toEqual(data);
    expect(compressor.decompress(packed, data.length)).toEqual(data);
    expect(decompressBlock(packed, data.length, type)).toEqual(data);
  }
});
