// Reads files in a browser, in a page or in a worker, and tells what is in them.

import { openShard } from "../../src/index.js";
import { openShardPack, streamRecords } from "../../src/shardpack/index.js";
import { openEpisode } from "../../src/wshard/index.js";
import { loadZstd } from "../../src/zstd.js";

/** What to read: from its address, or from a file that the user has chosen. */
export interface Job {
  kind: "container" | "episode" | "pack";
  url: string;
  from: "url" | "file";
}

export interface Told {
  /** SHA-256 of every content, by what it is called. */
  digests: Record<string, string>;
  /** How often the source was asked to open the file. */
  requests: number;
  /** The global object, to tell a page from a worker. */
  where: string;
}

const options = { zstd: loadZstd };

async function digest(bytes: Uint8Array): Promise<string> {
  const found = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes as BufferSource));
  return Array.from(found, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function fileOf(url: string): Promise<File> {
  return new File([await (await fetch(url)).arrayBuffer()], url.split("/").pop() ?? "file");
}

export async function readFile({ kind, url, from }: Job): Promise<Told> {
  const given = from === "url" ? url : await fileOf(url);
  const read = { container: readContainer, episode: readEpisode, pack: readPack }[kind];
  return { ...(await read(given)), where: globalThis.constructor.name };
}

async function readContainer(given: string | File): Promise<Omit<Told, "where">> {
  const reader = await openShard(given, options);
  const { requests } = reader.source.stats;
  const digests: Told["digests"] = {};
  for (const name of reader.names) digests[name] = await digest(await reader.read(name));
  return { digests, requests };
}

async function readEpisode(given: string | File): Promise<Omit<Told, "where">> {
  const episode = await openEpisode(given, options);
  const requests = episode.files.reduce((sum, file) => sum + file.source.stats.requests, 0);
  const digests: Told["digests"] = { id: episode.id, length: String(episode.length) };
  for (const channel of [...episode.observations.values(), ...episode.actions.values()]) {
    if (channel.layout === "dense") digests[channel.block] = await digest(await channel.source.read());
  }
  return { digests, requests };
}

async function readPack(given: string | File): Promise<Omit<Told, "where">> {
  const reader = await openShardPack(given, options);
  const { requests } = reader.source.stats;
  const digests: Told["digests"] = {};
  for await (const record of reader) {
    for (const entry of record.entries()) digests[`${record.key} ${entry.name}`] = await digest(await entry.read());
  }
  const stream = typeof given === "string" ? (await fetch(given)).body : given.stream();
  let count = 0;
  for await (const record of streamRecords(stream as ReadableStream<Uint8Array>, options)) {
    if (record.offset !== reader.offsets[count++]) throw new Error("the stream gives other records");
  }
  if (count !== reader.length) throw new Error("the stream gives another number of records");
  return { digests, requests };
}
