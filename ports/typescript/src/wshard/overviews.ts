// Overviews of long channels and posters of cameras, in a file beside the episode (spec/wshard.md, section 18).

import { type TypedArray, toTypedArray } from "../core/dtypes.js";
import { broken, located, ShardError } from "../core/errors.js";
import { isInteger, isObject, type Json, type JsonObject } from "../core/json.js";
import { type OpenOptions, openShard, type ShardReader } from "../core/reader.js";
import { type DType, dtypeSizes, Role } from "../core/registry.js";
import type { ReadOptions, SourceLike } from "../core/source.js";
import type { Block } from "./blocks.js";
import type { Channel } from "./channels.js";
import { type Episode, entryBlock } from "./episode.js";
import { isCount, parseForm, told } from "./metadata.js";
import { done, reward, terminated, timeTicks, truncated } from "./names.js";

export const metaOverview = "meta/overview";
export const overviewSuffix = ".overview";
export const mostBuckets = 4096;
export const mostValues = 256;
const mostPosters = 1024;
const longestSide = 4096;
/** Where the size of a JPEG image must be. */
const mostHead = 1 << 20;
const wideMeans: ReadonlySet<DType> = new Set(["f64", "i64", "i32", "u64", "u32"]);

/**
 * The minimum, maximum and mean of a channel over ranges of its entries, which are called buckets. The arrays hold the
 * buckets of one value of a step after those of another: that of value v and bucket b is at `v * buckets + b`.
 */
export interface Overview {
  readonly block: string;
  readonly dtype: DType;
  /** The shape of one step. */
  readonly shape: readonly number[];
  /** How many entries the channel has. */
  readonly length: number;
  /** Bucket b is about the entries from `b * stepsPerBucket` on; the last one may have fewer. */
  readonly stepsPerBucket: number;
  readonly buckets: number;
  readonly means: Float32Array | Float64Array;
  /** As the values of the channel: 64-bit integers as BigInt64Array, f16 and bf16 as Float32Array. */
  readonly minima: TypedArray;
  readonly maxima: TypedArray;
}

/** A small image of a camera. */
export interface Poster {
  readonly number: number;
  /** The camera. */
  readonly block: string;
  /** The entry that it shows. */
  readonly step: number;
  readonly width: number;
  readonly height: number;
}

/** How overviews are opened. */
export interface OverviewOptions extends OpenOptions {
  /** The overview file, where it cannot be found by its name. */
  file?: SourceLike;
}

/** What a row must say about a block to fit. */
interface Facts {
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly length: bigint;
  readonly origSize: bigint;
  readonly crc32c: number;
}

/** A block of an episode's files that a row can be about. */
export interface KnownBlock extends Facts {
  readonly isDense: boolean;
  readonly source: Block;
}

/** How the overview of a block is stored. */
export interface OverviewForm {
  readonly values: number;
  readonly stepsPerBucket: number;
  readonly buckets: number;
  readonly meanType: "f32" | "f64";
  /** Bytes of the means, and of the minima or the maxima. */
  readonly meanSize: number;
  readonly size: number;
}

/**
 * Opens the overviews of an open episode: the file `<file>.overview` beside it. Null if there is none, also for an episode
 * in chunks. An error says what is wrong with the overview file; the episode can be read all the same.
 */
export async function openOverviews(episode: Episode, options: OverviewOptions = {}): Promise<Overviews | null> {
  const base = episode.files[0];
  if (base === undefined || base.header.role === Role.manifest) return null;
  const name = nameOf(base.path);
  let source = options.file;
  try {
    if (source === undefined) {
      if (!name || !base.source.sibling) return null;
      source = await base.source.sibling(name + overviewSuffix);
    }
    const reader = await openShard(source, options);
    try {
      return await Overviews.of(reader, episode);
    } catch (error) {
      await reader.close();
      throw located(error, reader.path);
    }
  } catch (error) {
    if (options.file === undefined && isAbsent(error)) return null;
    throw error;
  }
}

/** The last part of a path or of the path of a URL. */
function nameOf(path: string | undefined): string | undefined {
  if (path === undefined) return undefined;
  if (/^https?:/i.test(path)) return decodeURIComponent(new URL(path).pathname.split("/").at(-1) ?? "");
  return path.split(/[\\/]/).at(-1);
}

/** Whether a file is not there. A server that may not list its files says of a missing one that it is forbidden. */
function isAbsent(error: unknown): boolean {
  if (!(error instanceof ShardError)) return false;
  const { code } = (error.cause ?? {}) as { code?: string };
  return (
    error.code === "missing_file" ||
    (error.code === "io_error" &&
      (["403", "404", "410"].includes(error.found ?? "") || ["ENOENT", "ENAMETOOLONG"].includes(code ?? "")))
  );
}

/** The overviews and posters of an episode that fit it. `openOverviews` makes one. */
export class Overviews {
  /** The blocks that have an overview. */
  readonly blocks: readonly string[];
  /** The images of cameras; the largest of a camera is its poster, others show it at other steps. */
  readonly posters: readonly Poster[];
  /** The blocks that were changed, or removed, after their overview was made. */
  readonly stale: readonly string[];
  readonly #reader: ShardReader;
  readonly #known: ReadonlyMap<string, KnownBlock>;

  private constructor(
    reader: ShardReader,
    known: ReadonlyMap<string, KnownBlock>,
    rows: readonly string[],
    posters: Poster[],
  ) {
    this.#reader = reader;
    this.#known = known;
    this.blocks = rows.filter((block) => known.has(block) && reader.has(`overview/${block}`));
    this.stale = rows.filter((block) => !known.has(block)).sort();
    this.posters = posters.filter(({ block }) => known.has(block));
  }

  /** Use `openOverviews`. */
  static async of(reader: ShardReader, episode: Episode): Promise<Overviews> {
    if (!reader.has(metaOverview))
      throw broken("bad_profile", "W-OVW-1", "not an overview file", { entry: metaOverview });
    const fields = await reader.readJson(metaOverview, "W-OVW-2");
    const rows = parseRows(fields);
    const posters = parsePosters(fields.posters, rows);
    const known = new Map<string, KnownBlock>();
    for (const [block, facts] of knownBlocks(episode)) {
      const row = rows.get(block);
      if (row !== undefined && isSame(row, facts)) known.set(block, facts);
    }
    return new Overviews(reader, known, [...rows.keys()], posters);
  }

  /** The path or URL of the overview file. */
  get path(): string | undefined {
    return this.#reader.path;
  }

  /** Reads the overview of a block such as `signal/joint_pos`; null if it has none that fits. */
  async read(block: string, options?: ReadOptions): Promise<Overview | null> {
    const known = this.#known.get(block);
    const entry = `overview/${block}`;
    if (known === undefined || !this.#reader.has(entry)) return null;
    const { dtype, shape } = known;
    const form = formOf(known);
    this.#checkForm(known, form, entry);
    const { stepsPerBucket, buckets, meanType, meanSize, size } = form;
    const found = this.#reader.entry(entry).origSize;
    if (found !== meanSize + 2 * size) {
      const details = { path: this.path, entry, expected: `${meanSize + 2 * size} bytes`, found };
      throw broken("size_mismatch", "W-OVW-5", "the overview has another size than its channel asks for", details);
    }
    const bytes = await this.#reader.read(entry, options);
    return {
      ...{ block, dtype, shape, length: Number(known.length), stepsPerBucket, buckets },
      means: toTypedArray(meanType, bytes.subarray(0, meanSize)),
      minima: toTypedArray(dtype, bytes.subarray(meanSize, meanSize + size)),
      maxima: toTypedArray(dtype, bytes.subarray(meanSize + size)),
    };
  }

  #checkForm({ isDense }: KnownBlock, { values }: OverviewForm, entry: string): void {
    const details = { path: this.path, entry };
    if (!isDense) throw broken("bad_profile", "W-OVW-5", "an overview of a channel that is not dense", details);
    if (values <= mostValues) return;
    const limit = { ...details, expected: `at most ${mostValues}`, found: values };
    throw broken("limit_exceeded", "W-OVW-5", "an overview of too many values a step", limit);
  }

  /** How many bytes the file of a poster has; 0 if it is missing. */
  posterSize({ number }: Poster): number {
    const entry = `poster/${number}`;
    return this.#reader.has(entry) ? this.#reader.entry(entry).origSize : 0;
  }

  /** The JPEG or PNG file of a poster. */
  async readPoster({ number, width, height }: Poster, options?: ReadOptions): Promise<Uint8Array> {
    const entry = `poster/${number}`;
    const details = { path: this.path, entry };
    if (!this.#reader.has(entry)) throw broken("bad_profile", "W-OVW-6", "the entry of a poster is missing", details);
    const bytes = await this.#reader.read(entry, options);
    const size = imageSize(bytes);
    if (size?.width === width && size.height === height) return bytes;
    throw broken("bad_value", "W-OVW-6", "a poster is not the image that is described", {
      ...details,
      expected: `a JPEG or PNG file of ${width} × ${height} pixels`,
      found: size === null ? "another file" : `${size.width} × ${size.height} pixels`,
    });
  }

  /** Closes the overview file. */
  async close(): Promise<void> {
    await this.#reader.close();
  }
}

// --- what the episode has

/** The buckets of a block, and how many bytes its overview has. */
export function formOf({ dtype, shape, length }: KnownBlock): OverviewForm {
  const values = shape.reduce((product, one) => product * one, 1);
  const stepsPerBucket = Math.max(1, Math.ceil(Number(length) / mostBuckets));
  const buckets = Math.ceil(Number(length) / stepsPerBucket);
  const meanType = wideMeans.has(dtype) ? "f64" : "f32";
  const [meanSize, size] = [dtypeSizes[meanType], dtypeSizes[dtype]].map((one) => one * values * buckets);
  return { values, stepsPerBucket, buckets, meanType, meanSize, size };
}

/** The blocks of an episode's files that rows can be about. */
export function knownBlocks(episode: Episode): Map<string, KnownBlock> {
  const known = new Map<string, KnownBlock>();
  const put = (block: string, of: (size: bigint) => Pick<KnownBlock, "dtype" | "shape" | "length" | "isDense">) => {
    const file = episode.files.find((one) => one.has(block));
    const at = file?.index.find(block);
    if (file === undefined || at === undefined || known.has(block)) return;
    const { origSize, crc32c } = file.index.row(at);
    const size = BigInt(origSize);
    // 0 can mean that there is no checksum (W-OVW-4).
    if (crc32c === 0 && size > 0n) return;
    known.set(block, { ...of(size), origSize: size, crc32c, source: entryBlock(file, block) });
  };
  const flat = (block: string, dtype: DType) =>
    put(block, (size) => ({ dtype, shape: [], length: size / BigInt(dtypeSizes[dtype]), isDense: true }));
  for (const block of [done, terminated, truncated]) flat(block, "u8");
  flat(reward, "f32");
  for (const file of episode.files)
    for (const name of file.names) if (name.startsWith("time/") && name !== timeTicks) flat(name, "i64");
  for (const channel of channelsOf(episode)) {
    const { block, dtype, shape, layout } = channel;
    try {
      const length = BigInt(channel.length);
      put(block, () => ({ dtype, shape, length, isDense: layout === "dense" }));
    } catch (error) {
      if (!(error instanceof ShardError)) throw error; // the channel cannot be read, so nothing fits it
    }
  }
  return known;
}

function* channelsOf(episode: Episode): Generator<Channel> {
  yield* episode.observations.values();
  yield* episode.actions.values();
  if (episode.rewards !== null) yield episode.rewards;
  for (const models of episode.omens.values()) yield* models.values();
  for (const models of episode.uncerts.values()) for (const kinds of models.values()) yield* kinds.values();
}

function isSame(row: Facts, known: KnownBlock): boolean {
  return (
    row.dtype === known.dtype &&
    row.length === known.length &&
    row.origSize === known.origSize &&
    row.crc32c === known.crc32c &&
    row.shape.length === known.shape.length &&
    row.shape.every((size, axis) => size === known.shape[axis])
  );
}

// --- what the overview file says

function wrong(rule: string, what: string, found: Json | undefined): ShardError {
  return broken("bad_metadata", rule, `${what} is missing or wrong`, { entry: metaOverview, found: told(found) });
}

/** W-OVW-2 */
function parseRows(fields: JsonObject): Map<string, Facts> {
  if (!isInteger(fields, "v") || fields.v !== 1) throw wrong("W-OVW-2", "'v'", fields.v);
  if (!isObject(fields.blocks)) throw wrong("W-OVW-2", "'blocks'", fields.blocks);
  const rows = new Map<string, Facts>();
  for (const [block, row] of Object.entries(fields.blocks)) {
    if (!isObject(row)) throw wrong("W-OVW-2", `the row of '${block}'`, row);
    for (const key of ["length", "orig_size", "crc32c"])
      if (!isCount(row, key)) throw wrong("W-OVW-2", `'${key}' of '${block}'`, row[key]);
    const [length, origSize, crc32c] = [row.length, row.orig_size, row.crc32c].map((one) => BigInt(one as number));
    if (crc32c > 0xffffffffn) throw wrong("W-OVW-2", `'crc32c' of '${block}'`, row.crc32c);
    if (!Array.isArray(row.shape)) throw wrong("W-OVW-2", `'shape' of '${block}'`, row.shape);
    rows.set(block, { ...typeOf(block, row), length, origSize, crc32c: Number(crc32c) });
  }
  return rows;
}

function typeOf(block: string, row: JsonObject): { dtype: DType; shape: readonly number[] } {
  try {
    return parseForm(row);
  } catch (error) {
    if (!(error instanceof ShardError)) throw error;
    throw wrong("W-OVW-2", `'dtype' or 'shape' of '${block}'`, row);
  }
}

/** W-OVW-3 */
function parsePosters(listed: Json | undefined, rows: ReadonlyMap<string, Facts>): Poster[] {
  if (listed === undefined) return [];
  if (!Array.isArray(listed) || listed.length > mostPosters) throw wrong("W-OVW-3", "'posters'", listed);
  return listed.map((row, number) => {
    const block = isObject(row) ? row.block : undefined;
    const facts = typeof block === "string" ? rows.get(block) : undefined;
    if (!isObject(row) || facts === undefined) throw wrong("W-OVW-3", `the block of poster ${number}`, row);
    const integer = (key: string, least: bigint, most: bigint) => {
      const value = isCount(row, key, least) ? BigInt(row[key] as number | bigint) : -1n;
      if (value < least || value > most) throw wrong("W-OVW-3", `'${key}' of poster ${number}`, row[key]);
      return Number(value);
    };
    return {
      number,
      block: block as string,
      step: integer("step", 0n, facts.length - 1n),
      width: integer("width", 1n, BigInt(longestSide)),
      height: integer("height", 1n, BigInt(longestSide)),
    };
  });
}

/** Width and height that a JPEG or PNG file states; null for anything else. */
export function imageSize(bytes: Uint8Array): { width: number; height: number } | null {
  const view = new DataView(bytes.buffer, bytes.byteOffset, Math.min(bytes.length, mostHead));
  const isPng = view.byteLength >= 24 && view.getUint32(0) === 0x89504e47 && view.getUint32(4) === 0x0d0a1a0a;
  if (isPng && view.getUint32(12) === 0x49484452) return { width: view.getUint32(16), height: view.getUint32(20) };
  if (view.byteLength < 3 || view.getUint16(0) !== 0xffd8 || view.getUint8(2) !== 0xff) return null;
  for (let at = 2; at + 9 <= view.byteLength && view.getUint8(at) === 0xff; ) {
    const marker = view.getUint8(at + 1);
    if (marker === 0xff) {
      at++; // a byte that fills
    } else if (marker === 1 || (marker >= 0xd0 && marker <= 0xd8)) {
      at += 2; // a marker without a length
    } else if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker)) {
      return { width: view.getUint16(at + 7), height: view.getUint16(at + 5) };
    } else {
      at += 2 + Math.max(2, view.getUint16(at + 2));
    }
  }
  return null;
}
