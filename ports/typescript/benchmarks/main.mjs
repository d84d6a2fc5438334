// Measures, in one run: opening over HTTP, decoding, and 64 steps of a camera out of an episode, beside other formats.
// Prints Markdown.
//
//     npm run build && cd benchmarks && npm install && npm run bench
//
// Contenders take turns in every round, and the median of the rounds counts. Memory is collected before each turn, so that
// nobody pays for what another left behind. Files are written to a temporary folder.

import { fork } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, rmSync, statSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import * as bokuweb from "@bokuweb/zstd-wasm";
import { BytesSink, loadZstd, openShard, ShardWriter } from "@shard-format/core/node";
import { createShardPack, openShardPack } from "@shard-format/core/shardpack/node";
import { frameBytes, makeEpisode, noise, steps } from "./data.mjs";
import { formats } from "./formats.mjs";

const rounds = Number(process.env.ROUNDS ?? 15);
const first = 200;
const last = first + 64;
/** Milliseconds that a request waits, and megabits a second of a link, of servers that are far away. */
const latency = 20;
const linkRate = 100;
const forms = ["raw", "compressed"];
const folder = mkdtempSync(join(tmpdir(), "shard-benchmarks-"));

async function startServer(...options) {
  const server = fork(new URL("server.mjs", import.meta.url), [folder, ...options.map(String)]);
  const next = () => new Promise((done) => server.once("message", done));
  const { port } = await next();
  return {
    url: (file) => `http://127.0.0.1:${port}/${file}`,
    /** Requests and bytes since the last call. */
    count() {
      server.send("count");
      return next();
    },
    stop: () => server.kill(),
  };
}

/** Time of the processor in milliseconds: what a busy machine does meanwhile counts little. */
function processorTime() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}

const median = (list) => list.sort((a, b) => a - b)[list.length >> 1];

/** The median times of each contender in milliseconds: on the clock, and of the processor. All run once before. */
async function compare(contenders, times = rounds) {
  const found = contenders.map(() => ({ clock: [], processor: [] }));
  for (const run of contenders) await run();
  for (let round = 0; round < times; round++) {
    // Another order in each round: nobody always cleans up after the same one.
    for (const number of shuffled(contenders.length)) {
      globalThis.gc();
      await pause(5); // threads still sweep
      const [clock, processor] = [performance.now(), processorTime()];
      await contenders[number]();
      found[number].clock.push(performance.now() - clock);
      found[number].processor.push(processorTime() - processor);
    }
  }
  return found.map(({ clock, processor }) => ({ clock: median(clock), processor: median(processor) }));
}

const random = noise(2);

function shuffled(count) {
  const keys = Array.from({ length: count }, (_, number) => ({ number, key: random.next().value }));
  return keys.sort((a, b) => a.key - b.key).map(({ number }) => number);
}

function table(title, note, head, rows) {
  console.log(`### ${title}\n\n${note}\n`);
  const lines = [head, head.map((_, column) => (column === 0 ? "---" : "---:")), ...rows];
  console.log(`${lines.map((cells) => `| ${cells.join(" | ")} |`).join("\n")}\n`);
}

const digits = (value) => value.toFixed(value < 10 ? 1 : 0);
const both = ({ clock, processor }) => `${digits(clock)} / ${digits(processor)}`;
const kb = (bytes) => `${(bytes / 1000).toFixed(0)} KB`;

async function sizeOf(path) {
  if (!statSync(path).isDirectory()) return statSync(path).size;
  const names = readdirSync(path, { recursive: true }).map((name) => statSync(join(path, name)));
  return names.reduce((sum, one) => sum + (one.isFile() ? one.size : 0), 0);
}

// --- 1: opening over HTTP

async function opening(server) {
  const pack = createShardPack(join(folder, "records.shardpack"), { sync: false });
  for (let number = 0; number < 2000; number++) await pack.write(`key ${number}`, { bin: new Uint8Array(2000) });
  await pack.finish();
  const contenders = [
    ["@shard-format/core, a container", async () => (await openShard(server.url("raw.wshard"))).close()],
    [
      "@shard-format/core, a shard of 2000 records",
      async () => (await openShardPack(server.url("records.shardpack"))).close(),
    ],
    ...formats.map((format) => [
      `${format.name}${format.name.startsWith("@shard") ? ", an episode" : ""}`,
      async () => (await format.http(server.url(format.file("raw")))).close(),
    ]),
  ];
  const medians = await compare(contenders.map(([, run]) => run));
  const rows = [];
  for (const [number, [name, run]] of contenders.entries()) {
    await server.count();
    await run();
    const { requests, bytes } = await server.count();
    rows.push([name, requests, kb(bytes), both(medians[number])]);
  }
  const note = "On the loopback. h5wasm reads files only, so it fetches all of it.";
  table("Open a file over HTTP", note, ["", "requests", "fetched", "ms"], rows);
}

// --- 2: decoding, against the decoder alone

async function decoding() {
  const zstd = await loadZstd();
  const { camera } = makeEpisode();
  const blocks = Array.from({ length: 12 }, (_, number) => camera.subarray(number << 20, (number + 1) << 20));
  const sink = new BytesSink();
  const writer = new ShardWriter(sink, { compression: "zstd", zstd: { ...zstd, compress: bokuweb.compress } });
  for (const [number, block] of blocks.entries()) await writer.write(`block ${number}`, block);
  await writer.finish();
  const reader = await openShard(sink.bytes);
  const unchecked = await openShard(sink.bytes, { checksums: false });
  const frames = [];
  for (const { dataOffset, diskSize } of reader.entries())
    frames.push(sink.bytes.subarray(dataOffset, dataOffset + diskSize));
  const bare = async () => {
    for (const frame of frames) await zstd.decompress(frame, 1 << 20);
  };
  const all = (from) => async () => {
    for (const name of from.names) await from.read(name);
  };
  const medians = await compare([bare, all(reader), all(unchecked)], 4 * rounds);
  const rate = (time) => `${((12 << 20) / 1000 / time).toFixed(0)} MB/s`;
  table(
    "Decode 12 entries of 1 MiB, zstd",
    "Time of the processor.",
    ["", "speed", "against the decoder"],
    ["the decoder alone", "read, with checksums", "read, without checksums"].map((name, number) => {
      return [
        name,
        rate(medians[number].processor),
        `${(medians[number].processor / medians[0].processor).toFixed(2)} ×`,
      ];
    }),
  );
}

// --- 3: 64 steps of a camera

const checked = {
  raw: "@shard-format/core, h5wasm and zarrita compare no checksums of raw values here. `checksums: false` also leaves out those of the small entries that describe the episode.",
  compressed: "The frames of @shard-format/core have checksums that zstd compares, also with `checksums: false`.",
};

async function windows(server, distant, limited) {
  const expected = makeEpisode().camera.subarray(first * frameBytes, last * frameBytes);
  const bytesOf = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength);
  for (const form of forms) {
    const path = (format) => join(folder, format.file(form));
    const openAndRead = (open) => async () => {
      const opened = await open();
      const found = await opened.read(first, last);
      await opened.close();
      if (found.length !== expected.length) throw new Error("another number of bytes");
    };
    const opened = [];
    for (const format of formats) {
      opened.push(await format.local(path(format)));
      if (bytesOf(await opened.at(-1).read(first, last)).compare(expected) !== 0)
        throw new Error(`${format.name} reads other bytes`);
    }
    const fresh = await compare(formats.map((format) => openAndRead(() => format.local(path(format)))));
    const again = await compare(
      opened.map(
        ({ read }) =>
          () =>
            read(first, last),
      ),
    );
    for (const one of opened) await one.close();
    const overHttp = await compare(
      formats.map((format) => openAndRead(() => format.http(server.url(format.file(form))))),
    );
    const overNetwork = [];
    for (const far of [distant, limited]) {
      const runs = formats.map((format) => openAndRead(() => format.http(far.url(format.file(form)))));
      overNetwork.push(await compare(runs, 5));
    }
    const rows = [];
    for (const [number, format] of formats.entries()) {
      await server.count();
      await openAndRead(() => format.http(server.url(format.file(form))))();
      const { requests, bytes } = await server.count();
      rows.push([
        format.name,
        format.stores[form],
        kb(await sizeOf(path(format))),
        ...[fresh, again, overHttp].map((medians) => both(medians[number])),
        requests,
        kb(bytes),
        ...overNetwork.map((medians) => digits(medians[number].clock)),
      ]);
    }
    table(
      `Read 64 of ${steps} steps of a camera, 96 × 96 × 3 bytes each, ${form}`,
      checked[form],
      [
        "",
        "stores",
        "size",
        "file: open and read, ms",
        "open file: read, ms",
        "HTTP: open and read, ms",
        "requests",
        "fetched",
        `HTTP with ${latency} ms, ms`,
        `the same and ${linkRate} Mbit/s, ms`,
      ],
      rows,
    );
  }
}

console.log(
  `Node ${process.version}, ${process.platform}/${process.arch}, ${cpus().length} processors. Medians of ${rounds} rounds. Times are milliseconds on the clock / of the processor.\n`,
);
const episode = makeEpisode();
for (const form of forms)
  for (const format of formats)
    if (!existsSync(join(folder, format.file(form)))) await format.write(folder, episode, form);
const server = await startServer();
const distant = await startServer(latency);
const limited = await startServer(latency, linkRate);
try {
  await opening(server);
  await decoding();
  await windows(server, distant, limited);
} finally {
  server.stop();
  distant.stop();
  limited.stop();
  rmSync(folder, { recursive: true });
}
