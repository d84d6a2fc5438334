// What the user has opened: a table of episodes, each opened when it is looked at.

import { type JsonObject, openShard, parseJson, ShardError, type ShardReader, type Source } from "@shard-format/core";
import { openShardPack, type PackRecord, type ShardPackReader } from "@shard-format/core/shardpack";
import { type Episode, openEpisode, openOverviews, openRecording, type Recording } from "@shard-format/core/wshard";
import { OpenEpisode } from "./episode";
import { taskOf } from "./facts";
import { OpenFiles } from "./files";
import { thumbnailOf } from "./posters";
import type { EpisodeRow, Given, LeftOut, Listed, OpenedContainer, OpenedEpisode } from "./protocol";
import { isBehind, isJournal, recordingOf, stemOf, type Unfinished, unfinishedOf } from "./recordings";
import { Served, type ServedRecord } from "./served";
import {
  fetchServed,
  type ListedFile,
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
import { zstd } from "./zstd";

const options = { zstd };
/** Files whose heads are read at the same time for the table. */
const atOnce = 4;
/** Rewards of fewer bytes than this are read for the table. */
const smallReward = 256 << 10;
/** Rows that `wshard view` has described and whose rewards are read for the table all the same. */
const mostSparks = 500;
/** Records of a pack that the table lists. */
const mostRecords = 10_000;
/** How often a recording is looked at, in milliseconds. */
const followEvery = 1000;
/** How often an episode is looked for that a recording has become. */
const mostLooks = 60;

/** What a row of the table opens. */
interface Place {
  readonly name: string;
  open(): Source | Promise<Source>;
  /** The files with added lanes. */
  sidecars(): Source[] | Promise<Source[]>;
  readonly size: number;
  /** Its number at `wshard view`. */
  readonly served: number | null;
  /** What `wshard view` says about it, if it is in a pack or a recording. */
  readonly known: Partial<EpisodeRow> | null;
  readonly isRecording: boolean;
  /** The recording that this is, or has chunks of. */
  readonly unfinished: Unfinished | null;
  readonly hasOverview: boolean;
}

/** What a recording has become so far. */
interface Finished {
  /** Null if it is the one of before. */
  readonly episode: Episode | null;
  /** Whether nothing more follows. */
  readonly isWhole: boolean;
}

interface OpenPack {
  readonly source: Source;
  readonly reader: ShardPackReader;
}

export interface LibraryEvents {
  rows(rows: readonly EpisodeRow[], isComplete: boolean): void;
  leftOut(files: readonly LeftOut[]): void;
  arrived(handle: number, key: string): void;
  grown(episode: OpenEpisode): void;
  ask(file: string, offset: number, length: number): Promise<Uint8Array>;
}

export class Library {
  readonly #events: LibraryEvents;
  readonly #places: Place[] = [];
  readonly #open = new Map<number, OpenEpisode>();
  readonly #containers = new Map<number, ShardReader>();
  readonly #following = new Map<number, ReturnType<typeof setTimeout>>();
  #server: { base: string; token: string } | null = null;
  /** Rows that wait to be sent together. */
  #described: EpisodeRow[] = [];
  #handles = 0;
  #thumbnails: Promise<unknown> = Promise.resolve();
  /** Whether `wshard view` serves files of its own machine. */
  #isNear = false;

  constructor(events: LibraryEvents) {
    this.#events = events;
  }

  /** Lists what was given. Rows follow as events. */
  async list(given: Given): Promise<Listed> {
    if (given.kind === "server") return this.#listServer(given.base, given.token);
    return { first: await this.#list(given), title: null };
  }

  async #list(given: Exclude<Given, { kind: "server" }>): Promise<number | null> {
    switch (given.kind) {
      case "url": {
        const { pathname } = new URL(given.url);
        const place = this.#place(given.url, 0, () => openUrl(given.url));
        if (pathname.endsWith(".shardpack")) return this.#listPack(place);
        this.#places.push(place);
        return this.#places.length - 1;
      }
      case "files":
        return this.#listFiles(listBlobs(given.files));
      case "embedded":
        return this.#listFiles(listEmbedded(given.files));
      case "widget":
        return this.#listFiles(listAsked(given.files, this.#events.ask));
    }
  }

  #place(name: string, size: number, open: Place["open"], more: Partial<Place> = {}): Place {
    const isRecording = isJournal(name);
    const unfinished = isRecording ? { isLive: null, journal: name } : null;
    return {
      ...{ name, size, open, sidecars: () => [], served: null, known: null, isRecording, unfinished },
      hasOverview: false,
      ...more,
    };
  }

  #placeOf(file: ListedFile, files: Listing, unfinished: ReadonlyMap<string, Unfinished>): Place {
    const open = () => {
      if (/\.(parquet|wshard-index)$/.test(file.name)) {
        throw new ShardError("invalid_argument", "a catalogue only names episodes", { path: file.name });
      }
      return openListed(file, files);
    };
    const sidecars = () => sidecarsOf(file.name, files);
    const hasOverview = files.has(`${file.name}.overview`);
    return this.#place(file.name, file.size, open, {
      sidecars,
      served: file.number ?? null,
      hasOverview,
      unfinished: recordingOf(file.name, unfinished),
    });
  }

  // --- lists

  async #listFiles(files: Listing, served: Served | null = null, mayGrow = false): Promise<number | null> {
    const chunks = await this.#chunksOf(files);
    const unfinished = unfinishedOf(files);
    const first = this.#places.length;
    for (const file of files.values()) {
      if (/\.(overview|sig)$/.test(file.name) || isSidecar(file.name) || chunks.has(file.name)) continue;
      // A set is shown as its packs. Without them, its own entries can be listed.
      if (file.name.endsWith(".shardpack-set") && files.size > 1) continue;
      if (isBehind(file.name, files, unfinished)) continue;
      const place = this.#placeOf(file, files, unfinished);
      const isPack = file.kind === undefined ? file.name.endsWith(".shardpack") : file.kind === "pack";
      const records = served?.records.get(file.number ?? -1);
      if (records !== undefined) this.#placeRecords(place, records);
      else if (isPack) await this.#listPack(place, false);
      else this.#places.push(place);
    }
    const isOne = this.#places.length === first + 1;
    if (!isOne || mayGrow) void this.#describeAll(first, served);
    return isOne ? first : null;
  }

  /** Episodes of a pack that `wshard view` has described: the pack is read when one is opened. */
  #placeRecords(pack: Place, records: readonly ServedRecord[]): void {
    let opened: Promise<OpenPack> | null = null;
    const open = async (): Promise<OpenPack> => {
      const source = await pack.open();
      return { source, reader: await openShardPack(source, options) };
    };
    const reader = () => {
      opened ??= open().catch((error: unknown) => {
        opened = null;
        throw error;
      });
      return opened;
    };
    for (const { number, key, row } of records) {
      const name = `${pack.name} › ${key}`;
      const parts = async () => {
        const { reader: shard, source } = await reader();
        const record = await shard.record(number);
        if (record.key === key) return partsOf(record, source, name);
        throw new ShardError("io_error", "the pack changed while it was read", { path: name });
      };
      this.#places.push(
        this.#place(name, row.bytes ?? 0, async () => (await parts()).open(), {
          sidecars: async () => (await parts()).sidecars(),
          known: row,
        }),
      );
    }
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

  async #listPack(pack: Place, describes = true): Promise<number | null> {
    const source = await pack.open();
    const first = this.#places.length;
    try {
      const reader = await openShardPack(source, options);
      const count = Math.min(reader.length, mostRecords);
      for (let number = 0; number < count; number++) {
        const record = await reader.record(number);
        const name = `${pack.name} › ${record.key}`;
        if (!record.names.includes("wshard")) continue;
        const { open, sidecars } = partsOf(record, source, name);
        this.#places.push(this.#place(name, record.entry("wshard").size, open, { sidecars }));
      }
      const found = this.#places.length - first;
      if (found > 1 && describes) void this.#describeAll(first, null);
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

  async #listServer(base: string, token: string): Promise<Listed> {
    this.#server = { base, token };
    const listing = (await this.#get("files.json")) as {
      title?: string;
      files?: ServedFile[];
      open?: number | null;
      follow?: number | null;
      local?: boolean;
    };
    const files = listServed(base, token, listing.files ?? []);
    this.#isNear = listing.local === true;
    const title = typeof listing.title === "string" ? listing.title : null;
    // Packs are not read record by record: their rows are known.
    const hasPacks = [...files.values()].some(({ kind }) => kind === "pack");
    const served = new Served(() => this.#get("episodes.json"));
    if (hasPacks) await served.read();
    const first = await this.#listFiles(files, served, Boolean(listing.follow));
    if (listing.follow) this.#followFiles(base, token, listing.follow);
    if (typeof listing.open !== "number") return { first, title };
    const wanted = this.#places.findIndex((place) => place.served === listing.open);
    return { first: wanted < 0 ? first : wanted, title };
  }

  /** The table gets new files, and a recording becomes its episode. */
  #followFiles(base: string, token: string, seconds: number): void {
    const rows = new Map(
      this.#places.flatMap(({ name, served }, row) => (served === null ? [] : [[name, row] as const])),
    );
    let looks = mostLooks;
    let pause = seconds * 1000;
    const look = async () => {
      const started = performance.now();
      try {
        const { files, follow } = (await this.#get("files.json")) as { files?: ServedFile[]; follow?: number | null };
        await this.#update(listServed(base, token, files ?? []), rows);
        // Another recording may begin after this one.
        if (follow) looks = mostLooks;
        // A large folder takes a while to list.
        pause = (follow ?? 1) * 1000 + 10 * (performance.now() - started);
      } catch {
        // The next question may have an answer.
      }
      if (--looks > 0) setTimeout(look, pause);
    };
    setTimeout(look, pause);
  }

  /** Brings the rows up to date with a listing. `rows` are those of files, by their names. */
  async #update(listed: Listing, rows: Map<string, number>): Promise<void> {
    const unfinished = unfinishedOf(listed);
    const replaced = new Set<string>();
    for (const file of listed.values()) {
      if (!isEpisode(file) || replaced.has(file.name) || isBehind(file.name, listed, unfinished)) continue;
      let place = this.#placeOf(file, listed, unfinished);
      const journal = `${stemOf(file.name)}.wshard.partial`;
      let row = rows.get(file.name);
      if (row === undefined) {
        // A chunk is shown as a part of its episode.
        if (/_chunk_\d+[^/]*$/.test(file.name)) continue;
        row = rows.get(journal) ?? this.#places.length;
        // It may still be there for a moment.
        if (rows.delete(journal)) replaced.add(journal);
        rows.set(file.name, row);
      } else {
        const before = this.#places[row] as Place;
        const isSame = before.unfinished?.isLive === place.unfinished?.isLive;
        if (isSame && (place.isRecording || before.size === place.size)) continue;
        place = { ...place, known: before.known };
      }
      this.#places[row] = place;
      this.#events.rows([await this.#describe(row)], true);
    }
    for (const [name, row] of rows) {
      if (listed.has(name)) continue;
      rows.delete(name);
      const place = this.#places[row] as Place;
      this.#events.rows(
        [{ ...this.#emptyRow(place, row), kind: "episode", problem: "this file is not there any more" }],
        true,
      );
    }
  }

  async #get(path: string): Promise<unknown> {
    const { base, token } = this.#server as { base: string; token: string };
    const address = new URL(path, base);
    const response = await fetchServed(address, { headers: { authorization: `Bearer ${token}` } });
    if (!response.ok) {
      throw new ShardError("io_error", "wshard view refuses", {
        path: String(address),
        expected: "200",
        found: response.status,
      });
    }
    return parseJson(new Uint8Array(await response.arrayBuffer()));
  }

  // --- rows of the table

  async #describeAll(first: number, served: Served | null): Promise<void> {
    // The names come at once, so that one can be opened.
    const names = this.#places.slice(first).map((place, at) => this.#emptyRow(place, first + at));
    this.#events.rows(names, false);
    await served?.read();
    const problems = new Map(served?.leftOut.map(({ name, problem }) => [name, problem]));
    const rest: number[] = [];
    const sparks: number[] = [];
    for (let number = first; number < this.#places.length; number++) {
      const place = this.#places[number] as Place;
      const known = place.known ?? (place.served === null ? undefined : served?.rows.get(place.served));
      if (place.isRecording && known !== undefined) this.#places[number] = { ...place, known };
      const problem = problems.get(place.name);
      problems.delete(place.name);
      if (known !== undefined) {
        const isSmall = sparks.length < mostSparks && this.#isNear && !place.isRecording;
        if (isSmall && known.return !== null) sparks.push(number);
        this.#described.push({ ...this.#emptyRow(place, number), ...known });
      } else if (problem !== undefined) {
        this.#described.push({ ...this.#emptyRow(place, number), problem });
      } else rest.push(number);
    }
    this.#sendRows(false);
    if (problems.size > 0) this.#events.leftOut([...problems].map(([name, problem]) => ({ name, problem })));
    await this.#eachOf(rest, async (number) => {
      const row = await this.#describe(number);
      this.#described.push(row);
    });
    this.#sendRows(true);
    await this.#eachOf(sparks, async (number) => {
      const { spark } = await this.#describe(number);
      const place = this.#places[number] as Place;
      const known = place.known ?? served?.rows.get(place.served ?? -1);
      if (spark !== null) this.#described.push({ ...this.#emptyRow(place, number), ...known, spark });
    });
    this.#sendRows(true);
  }

  /** Some at the same time; what was found is sent twenty times a second. */
  async #eachOf(numbers: readonly number[], work: (number: number) => Promise<void>): Promise<void> {
    let next = 0;
    let sent = performance.now();
    const turn = async () => {
      while (next < numbers.length) {
        await work(numbers[next++] as number);
        if (performance.now() - sent < 50) continue;
        this.#sendRows(false);
        sent = performance.now();
      }
    };
    await Promise.all(Array.from({ length: atOnce }, turn));
  }

  #sendRows(isComplete: boolean): void {
    const rows = this.#described;
    this.#described = [];
    this.#events.rows(rows, isComplete);
  }

  #emptyRow(place: Place, number: number): EpisodeRow {
    const { name, size, unfinished, hasOverview } = place;
    const kind = unfinished === null ? "episode" : unfinished.isLive === true ? "recording" : "unfinished";
    const recover = unfinished?.isLive === false ? unfinished.journal : "";
    return { ...emptyRow(number, name, size), kind, hasOverview, recover };
  }

  async #describe(number: number): Promise<EpisodeRow> {
    const place = this.#places[number] as Place;
    const row = this.#emptyRow(place, number);
    try {
      if (place.isRecording) return { ...row, ...place.known };
      const episode = await openEpisode(await place.open(), options);
      try {
        return { ...row, ...(await rowOf(episode, this.#isNear)) };
      } finally {
        await episode.close();
      }
    } catch (error) {
      const isOther = error instanceof ShardError && error.rule === "W-ROL-1";
      if (isOther) return { ...row, kind: "container" };
      return { ...row, problem: error instanceof Error ? error.message : String(error) };
    }
  }

  /** A small image of an episode; null if there is none. One after the other: they must not get in the way. */
  thumbnail(number: number): Promise<Uint8Array | null> {
    const found = this.#thumbnails.then(() => this.#thumbnail(this.#places[number] as Place));
    this.#thumbnails = found.catch(() => {});
    return found;
  }

  async #thumbnail(place: Place): Promise<Uint8Array | null> {
    const episode = await openEpisode(await place.open(), options);
    try {
      const overviews = await openOverviews(episode, options);
      const found = overviews === null ? null : await thumbnailOf(overviews);
      await overviews?.close();
      return found;
    } finally {
      await episode.close();
    }
  }

  // --- episodes

  async open(number: number): Promise<OpenedEpisode> {
    const place = this.#places[number];
    if (place === undefined) throw new ShardError("invalid_argument", "no such row", { found: number });
    const handle = this.#handles++;
    const { unfinished } = place;
    const origin = {
      row: number,
      isUnfinished: unfinished !== null,
      recover: this.#emptyRow(place, number).recover,
      arrived: (key: string) => this.#events.arrived(handle, key),
      findings: () => this.#findings(place),
    };
    const recording = place.isRecording ? await openRecording(await place.open(), options) : null;
    const opened = new OpenEpisode(handle, recording?.episode ?? (await this.#openFile(place)), origin);
    this.#open.set(handle, opened);
    if (unfinished !== null) {
      const finished = this.#finisher(place);
      this.#follow(
        opened,
        recording,
        async () => {
          const found = await finished();
          if (found?.isWhole) origin.isUnfinished = false;
          return found;
        },
        () => {
          const { recover } = this.#emptyRow(this.#places[number] as Place, number);
          const isNew = recover !== origin.recover;
          origin.recover = recover;
          return isNew;
        },
      );
    }
    return { handle, facts: opened.facts };
  }

  async #openFile(place: Place): Promise<Episode> {
    const sidecars = await place.sidecars();
    return openEpisode(await place.open(), { ...options, ...(sidecars.length > 0 ? { sidecars } : {}) });
  }

  /** Reads what is added, and then the episode that the recording becomes: its journal is removed. */
  #follow(
    opened: OpenEpisode,
    recording: Recording | null,
    finished: () => Promise<Finished | null>,
    hasLost: () => boolean,
  ): void {
    let looks = mostLooks;
    let hasEnded = recording === null;
    const grow = (episode: Episode) => {
      opened.grow(episode);
      this.#events.grown(opened);
    };
    const look = async () => {
      hasEnded ||= recording?.isFinished === true;
      try {
        if (!hasEnded && recording !== null && (await recording.refresh())) grow(recording.episode);
      } catch {
        hasEnded = true; // its journal is gone
      }
      const found = hasEnded ? await finished().catch(() => null) : null;
      if (this.#open.get(opened.handle) !== opened) return;
      // Its recorder has gone, or was started again.
      if (hasLost() || found?.episode) grow(found?.episode ?? opened.episode);
      if (opened.origin.recover !== "") return;
      // If there is no episode, what was read stays.
      if (found?.isWhole || (hasEnded && found === null && --looks === 0)) return;
      this.#following.set(opened.handle, setTimeout(look, followEvery));
    };
    this.#following.set(opened.handle, setTimeout(look, followEvery));
  }

  /** The episode that a recording has become; null while it is not there. A long one becomes chunks, one by one. */
  #finisher(place: Place): () => Promise<Finished | null> {
    const name = place.name.replace(/\.partial$/, "");
    const stem = stemOf(name);
    let seen = place.isRecording ? -1 : place.size;
    return async () => {
      if (this.#server === null) {
        if (!/^https?:/.test(name)) return null;
        return { episode: await openEpisode(openUrl(name), options), isWhole: true };
      }
      const { base, token } = this.#server;
      const { files } = (await this.#get("files.json")) as { files?: ServedFile[] };
      const listed = listServed(base, token, files ?? []);
      const manifest = listed.get(`${stem}_manifest.wshard`);
      const file = manifest ?? listed.get(name);
      if (file === undefined) return null;
      const isWhole = !unfinishedOf(listed).has(stem);
      // While it goes on, the manifest gets longer with each chunk.
      if (!isWhole && file.size === seen) return { episode: null, isWhole };
      const episode = await openEpisode(openListed(file, listed), options);
      seen = file.size;
      return { episode, isWhole };
    };
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
    clearTimeout(following);
    this.#following.delete(handle);
    const found = this.#open.get(handle);
    this.#open.delete(handle);
    await found?.close();
    await this.#containers.get(handle)?.close();
    this.#containers.delete(handle);
  }

  /** Opens a file that does not hold an episode. */
  async openContainer(number: number): Promise<OpenedContainer> {
    const reader = await openShard(await (this.#places[number] as Place).open(), options);
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
    recover: "",
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
    hasOverview: false,
    problem: null,
  };
}

/** An episode that is a record of a pack, and its added lanes. */
function partsOf(record: PackRecord, source: Source, name: string): { open(): Source; sidecars(): Source[] } {
  const part = (entry: string): Source => {
    const { encoding, offset, storedSize } = record.entry(entry);
    if (encoding !== "none") throw new ShardError("invalid_argument", "a packed episode is compressed", { path: name });
    return new PartSource(name, source, offset, storedSize);
  };
  const lanes = record.names.filter((one) => one.startsWith("wshard.lanes/")).sort();
  return { open: () => part("wshard"), sidecars: () => lanes.map(part) };
}

async function rowOf(episode: Episode, isNear: boolean): Promise<Partial<EpisodeRow>> {
  const { length, timebase, metadata } = episode;
  const rewards = await rewardsOf(episode, isNear);
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

async function rewardsOf({ rewards, files }: Episode, isNear: boolean): Promise<Float64Array | null> {
  if (rewards?.layout !== "dense" || rewards.source.size > smallReward) return null;
  if (files[0]?.source.isRemote && !isNear) return null;
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

function isEpisode({ kind = "" }: ListedFile): boolean {
  return ["episode", "manifest", "recording"].includes(kind);
}

function sidecarsOf(name: string, files: Listing): Source[] {
  const folder = `${name}.lanes/`;
  return [...files.values()]
    .filter((file) => file.name.startsWith(folder) && file.name.endsWith(".wshard"))
    .sort((a, b) => (a.name < b.name ? -1 : 1))
    .map((file) => openListed(file, files));
}
