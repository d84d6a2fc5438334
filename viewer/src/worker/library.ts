// What the user has opened: a table of episodes, each opened when it is looked at.

import { type JsonObject, openShard, parseJson, ShardError, type ShardReader, type Source } from "@shard-format/core";
import { openShardPack } from "@shard-format/core/shardpack";
import { type Episode, openEpisode, openRecording, type Recording } from "@shard-format/core/wshard";
import { loadZstd } from "@shard-format/core/zstd";
import { OpenEpisode } from "./episode";
import { taskOf } from "./facts";
import { OpenFiles } from "./files";
import type { EpisodeRow, Given, OpenedContainer, OpenedEpisode } from "./protocol";
import {
  type Listing,
  listAsked,
  listBlobs,
  listEmbedded,
  listServed,
  openListed,
  openUrl,
  PartSource,
  type ServedFile,
} from "./sources";

const options = { zstd: loadZstd };
/** Files whose heads are read at the same time for the table. */
const atOnce = 4;
/** Rewards of fewer bytes than this are read for the table. */
const smallReward = 256 << 10;
/** Records of a pack that the table lists. */
const mostRecords = 10_000;
/** How often a recording is looked at, in milliseconds. */
const followEvery = 1000;
/** How often an episode is looked for that a recording has become. */
const mostLooks = 60;

/** What a row of the table opens. */
interface Place {
  readonly name: string;
  open(): Source;
  /** The files with added lanes. */
  sidecars(): Source[];
  readonly size: number;
  /** Its number at `wshard view`. */
  readonly served: number | null;
  readonly isRecording: boolean;
}

export interface LibraryEvents {
  rows(rows: readonly EpisodeRow[], isComplete: boolean): void;
  arrived(handle: number, key: string): void;
  grown(episode: OpenEpisode): void;
  ask(file: string, offset: number, length: number): Promise<Uint8Array>;
}

export class Library {
  readonly #events: LibraryEvents;
  readonly #places: Place[] = [];
  readonly #open = new Map<number, OpenEpisode>();
  readonly #containers = new Map<number, ShardReader>();
  readonly #following = new Map<number, { recording: Recording; timer: ReturnType<typeof setTimeout> }>();
  #server: { base: string; token: string } | null = null;
  #handles = 0;

  constructor(events: LibraryEvents) {
    this.#events = events;
  }

  /** Lists what was given. Rows follow as events; which one to open first is returned, null if the user must choose. */
  async list(given: Given): Promise<number | null> {
    switch (given.kind) {
      case "url": {
        const { pathname } = new URL(given.url);
        const place = this.#place(given.url, 0, () => openUrl(given.url));
        if (pathname.endsWith(".shardpack")) return this.#listPack(place);
        this.#places.push(place);
        return this.#places.length - 1;
      }
      case "server":
        return this.#listServer(given.base, given.token);
      case "files":
        return this.#listFiles(listBlobs(given.files));
      case "embedded":
        return this.#listFiles(listEmbedded(given.files));
      case "widget":
        return this.#listFiles(listAsked(given.files, this.#events.ask));
    }
  }

  #place(name: string, size: number, open: () => Source, more: Partial<Place> = {}): Place {
    const isRecording = /\.partial$/.test(name.replace(/[?#].*$/, ""));
    return { name, size, open, sidecars: () => [], served: null, isRecording, ...more };
  }

  // --- lists

  async #listFiles(files: Listing): Promise<number | null> {
    const chunks = await this.#chunksOf(files);
    const first = this.#places.length;
    for (const file of files.values()) {
      if (/\.(overview|sig)$/.test(file.name) || isSidecar(file.name) || chunks.has(file.name)) continue;
      const open = () => openListed(file, files);
      const sidecars = () => sidecarsOf(file.name, files);
      const place = this.#place(file.name, file.size, open, { sidecars, served: file.number ?? null });
      if (file.name.endsWith(".shardpack")) await this.#listPack(place);
      else this.#places.push(place);
    }
    const found = this.#places.length - first;
    if (found > 1) void this.#describeAll(first);
    return found === 1 ? first : null;
  }

  /** Files that a manifest among them names: they are in the table once, as the episode that they make. */
  async #chunksOf(files: Listing): Promise<Set<string>> {
    const named = new Set<string>();
    for (const file of files.values()) {
      if (!file.name.endsWith("_manifest.wshard")) continue;
      try {
        const reader = await openShard(openListed(file, files), options);
        const { chunks } = await reader.readJson("meta/manifest");
        const folder = file.name.slice(0, file.name.lastIndexOf("/") + 1);
        if (Array.isArray(chunks)) {
          for (const row of chunks) named.add(folder + String((row as JsonObject | null)?.["uri"]));
        }
        await reader.close();
      } catch {
        // Opening it says why.
      }
    }
    return named;
  }

  async #listPack(pack: Place): Promise<number | null> {
    const source = pack.open();
    const first = this.#places.length;
    try {
      const reader = await openShardPack(source, options);
      const count = Math.min(reader.length, mostRecords);
      for (let number = 0; number < count; number++) {
        const record = await reader.record(number);
        const name = `${pack.name} › ${record.key}`;
        if (!record.names.includes("wshard")) continue;
        const part = (entry: string): Source => {
          const { encoding, offset, storedSize } = record.entry(entry);
          if (encoding !== "none")
            throw new ShardError("invalid_argument", "a packed episode is compressed", { path: name });
          return new PartSource(name, source, offset, storedSize);
        };
        const lanes = record.names.filter((one) => one.startsWith("wshard.lanes/")).sort();
        const sidecars = () => lanes.map(part);
        this.#places.push(this.#place(name, record.entry("wshard").size, () => part("wshard"), { sidecars }));
      }
      const found = this.#places.length - first;
      if (found > 1) void this.#describeAll(first);
      if (found > 0) return found === 1 ? first : null;
      throw new ShardError("invalid_argument", "no record of this pack is an episode", { path: pack.name });
    } catch (error) {
      this.#places.push({
        ...pack,
        open: () => {
          throw error;
        },
      });
      return this.#places.length - 1;
    }
  }

  async #listServer(base: string, token: string): Promise<number | null> {
    this.#server = { base, token };
    const listing = (await this.#get("files.json")) as { files?: ServedFile[]; open?: number | null };
    const served = listing.files ?? [];
    const files = listServed(base, token, served);
    const first = await this.#listFiles(files);
    if (typeof listing.open !== "number") return first;
    const wanted = this.#places.findIndex((place) => place.served === listing.open);
    return wanted < 0 ? first : wanted;
  }

  async #get(path: string): Promise<unknown> {
    const { base, token } = this.#server as { base: string; token: string };
    const address = new URL(path, base);
    const response = await fetch(address, { headers: { authorization: `Bearer ${token}` } });
    if (!response.ok) {
      throw new ShardError("io_error", "the server refuses", {
        path: String(address),
        expected: "200",
        found: response.status,
      });
    }
    return parseJson(new Uint8Array(await response.arrayBuffer()));
  }

  // --- rows of the table

  async #describeAll(first: number): Promise<void> {
    const known = await this.#served();
    let next = first;
    const work = async () => {
      while (next < this.#places.length) {
        const number = next++;
        const place = this.#places[number] as Place;
        const row = (place.served !== null && known.get(place.served)) || (await this.#describe(number));
        this.#events.rows([{ ...row, number, name: place.name }], false);
      }
    };
    await Promise.all(Array.from({ length: atOnce }, work));
    this.#events.rows([], true);
  }

  /** Rows that `wshard view` knows already. */
  async #served(): Promise<Map<number, EpisodeRow>> {
    const found = new Map<number, EpisodeRow>();
    if (this.#server === null) return found;
    try {
      const { rows } = (await this.#get("episodes.json")) as { rows?: Record<string, never>[] };
      for (const row of rows ?? []) {
        if (row["record"] !== null && row["record"] !== undefined) continue;
        found.set(Number(row["file"]), {
          ...emptyRow(0, "", Number(row["bytes"] ?? 0)),
          id: String(row["id"] ?? ""),
          envId: String(row["env_id"] ?? ""),
          task: String(row["task"] ?? ""),
          length: number(row["length"]),
          duration: number(row["duration_s"]),
          return: number(row["return"]),
          success: typeof row["success"] === "boolean" ? row["success"] : null,
          channels: number(row["channels"]),
          findings: number(row["findings"]),
        });
      }
    } catch {
      // Without the list, the files themselves say it.
    }
    return found;
  }

  async #describe(number: number): Promise<EpisodeRow> {
    const place = this.#places[number] as Place;
    const row = emptyRow(number, place.name, place.size);
    try {
      if (place.isRecording) return { ...row, kind: "recording" };
      const episode = await openEpisode(place.open(), options);
      try {
        return { ...row, ...(await rowOf(episode)) };
      } finally {
        await episode.close();
      }
    } catch (error) {
      const isOther = error instanceof ShardError && error.rule === "W-ROL-1";
      if (isOther) return { ...row, kind: "container" };
      return { ...row, problem: error instanceof Error ? error.message : String(error) };
    }
  }

  // --- episodes

  async open(number: number): Promise<OpenedEpisode> {
    const place = this.#places[number];
    if (place === undefined) throw new ShardError("invalid_argument", "no such row", { found: number });
    const handle = this.#handles++;
    const origin = {
      row: number,
      isUnfinished: place.isRecording,
      arrived: (key: string) => this.#events.arrived(handle, key),
      findings: () => this.#findings(place),
    };
    if (place.isRecording) {
      const recording = await openRecording(place.open(), options);
      const opened = new OpenEpisode(handle, recording.episode, origin);
      this.#open.set(handle, opened);
      this.#follow(opened, recording, async () => {
        const finished = await this.#finished(place);
        if (finished !== null) origin.isUnfinished = false;
        return finished;
      });
      return { handle, facts: opened.facts };
    }
    const opened = new OpenEpisode(handle, await this.#openFile(place), origin);
    this.#open.set(handle, opened);
    return { handle, facts: opened.facts };
  }

  async #openFile(place: Place): Promise<Episode> {
    const sidecars = place.sidecars();
    return openEpisode(place.open(), { ...options, ...(sidecars.length > 0 ? { sidecars } : {}) });
  }

  /** Reads what is added, and then the episode that the recording becomes: its journal is removed. */
  #follow(opened: OpenEpisode, recording: Recording, finished: () => Promise<Episode | null>): void {
    let looks = mostLooks;
    const grow = (episode: Episode) => {
      opened.grow(episode);
      this.#events.grown(opened);
    };
    const look = async () => {
      let hasEnded = recording.isFinished;
      try {
        if (!hasEnded && (await recording.refresh())) grow(recording.episode);
      } catch {
        hasEnded = true; // its journal is gone
      }
      const episode = hasEnded ? await finished().catch(() => null) : null;
      if (this.#open.get(opened.handle) !== opened) return;
      if (episode !== null) grow(episode);
      // If there is no episode, what was read stays.
      if (episode !== null || (hasEnded && --looks === 0)) return;
      this.#following.set(opened.handle, { recording, timer: setTimeout(look, followEvery) });
    };
    this.#following.set(opened.handle, { recording, timer: setTimeout(look, followEvery) });
  }

  /** The episode that a recording has become; null while it is not there. */
  async #finished(place: Place): Promise<Episode | null> {
    const name = place.name.replace(/\.partial$/, "");
    if (this.#server === null) return /^https?:/.test(name) ? openEpisode(openUrl(name), options) : null;
    const { base, token } = this.#server;
    const { files } = (await this.#get("files.json")) as { files?: ServedFile[] };
    const listed = listServed(base, token, files ?? []);
    const file = listed.get(name);
    return file === undefined ? null : openEpisode(openListed(file, listed), options);
  }

  async #findings(place: Place): Promise<JsonObject | null> {
    if (this.#server === null || place.served === null) return null;
    return (await this.#get(`findings/${place.served}`)) as JsonObject;
  }

  episode(handle: number): OpenEpisode {
    const found = this.#open.get(handle);
    if (found === undefined) throw new ShardError("closed", "the episode is closed");
    return found;
  }

  async close(handle: number): Promise<void> {
    const following = this.#following.get(handle);
    if (following !== undefined) clearTimeout(following.timer);
    this.#following.delete(handle);
    const found = this.#open.get(handle);
    this.#open.delete(handle);
    await found?.close();
    await this.#containers.get(handle)?.close();
    this.#containers.delete(handle);
  }

  /** Opens a file that is no episode. */
  async openContainer(number: number): Promise<OpenedContainer> {
    const reader = await openShard((this.#places[number] as Place).open(), options);
    const handle = this.#handles++;
    this.#containers.set(handle, reader);
    return { handle, name: reader.path ?? "", role: reader.header.role, size: reader.header.totalFileSize };
  }

  files(handle: number): OpenFiles {
    const container = this.#containers.get(handle);
    return container === undefined ? this.episode(handle).files : new OpenFiles([container]);
  }
}

function emptyRow(number: number, name: string, bytes: number): EpisodeRow {
  return {
    number,
    name,
    kind: "episode",
    id: "",
    envId: "",
    task: "",
    length: null,
    duration: null,
    return: null,
    success: null,
    channels: null,
    bytes,
    findings: null,
    spark: null,
    problem: null,
  };
}

function number(value: unknown): number | null {
  return typeof value === "number" || typeof value === "bigint" ? Number(value) : null;
}

async function rowOf(episode: Episode): Promise<Partial<EpisodeRow>> {
  const { length, timebase, metadata } = episode;
  const rewards = await rewardsOf(episode);
  return {
    id: episode.id,
    envId: episode.envId,
    task: taskOf(metadata),
    length,
    duration: timebase.tickHz === null ? null : length / timebase.tickHz,
    return: rewards === null ? null : rewards.reduce((sum, one) => sum + one, 0),
    success: typeof metadata["success"] === "boolean" ? metadata["success"] : null,
    channels: episode.observations.size + episode.actions.size + episode.omens.size,
    spark: rewards === null ? null : sparkOf(rewards),
  };
}

async function rewardsOf({ rewards, files }: Episode): Promise<Float64Array | null> {
  if (rewards?.layout !== "dense" || rewards.source.size > smallReward || files[0]?.source.isRemote) return null;
  try {
    return Float64Array.from(await rewards.data(), Number);
  } catch {
    return null; // opening the episode says why
  }
}

/** The cumulative reward in at most 60 places, from 0 to 1. */
function sparkOf(rewards: Float64Array): number[] {
  const count = Math.min(60, rewards.length);
  const sums: number[] = [];
  let [sum, at] = [0, 0];
  for (let place = 1; place <= count; place++) {
    for (; at < (place * rewards.length) / count; at++)
      sum += Number.isFinite(rewards[at]) ? (rewards[at] as number) : 0;
    sums.push(sum);
  }
  const least = Math.min(...sums);
  const span = Math.max(...sums) - least || 1;
  return sums.map((one) => (one - least) / span);
}

function isSidecar(name: string): boolean {
  return /\.lanes\/[^/]+$/.test(name);
}

function sidecarsOf(name: string, files: Listing): Source[] {
  const folder = `${name}.lanes/`;
  return [...files.values()]
    .filter((file) => file.name.startsWith(folder) && file.name.endsWith(".wshard"))
    .sort((a, b) => (a.name < b.name ? -1 : 1))
    .map((file) => openListed(file, files));
}
