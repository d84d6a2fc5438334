// What a journal says, up to where it follows the rules (spec/journal.md, sections 3 to 7).

import { crc32c } from "../core/crc32c.js";
import { toTypedArray } from "../core/dtypes.js";
import { broken, located, ShardError } from "../core/errors.js";
import { checkFilteredFrame, type Filters, parseFilters, undoFilters } from "../core/filters.js";
import { canonicalBytes, isInteger, isObject, type Json, type JsonObject, parseJsonObject } from "../core/json.js";
import { defaultLimits, dtypeSizes } from "../core/registry.js";
import type { Source } from "../core/source.js";
import { decodeFrame, loadZstd, walkFrames, type ZstdProvider } from "../core/zstd.js";
import type { Block } from "./blocks.js";
import { concatenated } from "./blocks.js";
import { FrameCodec, type FrameHead, FrameKind, headSize, parseHead } from "./journal-frames.js";
import { type Interval, isCount, type Label, parseFacts, parseLabel, parseRow, type Row, told } from "./metadata.js";
import { done, reward, rewardExact, splitFirst, terminated, timeStamps, truncated } from "./names.js";

/** Blocks that are not in a lane with names. */
const flatBlocks: ReadonlySet<string> = new Set([reward, rewardExact, done, terminated, truncated, timeStamps]);
const pieceSize = 1 << 20;
const offsetSize = 8;
const largestEntry = 2n ** 32n - 1n;
const largestLimitedRun = 64 << 20;

/** One run of a channel. */
interface Run {
  /** Where its stored bytes are. */
  readonly offset: number;
  readonly storedSize: number;
  readonly contentCrc32c: number;
  /** Where its content starts and ends in that of all runs. */
  readonly start: number;
  readonly end: number;
}

/** A channel of a journal: its row, and where its runs are. */
export class RecordedRuns {
  readonly runs: Run[] = [];
  /** Of a ragged or text channel: its offsets, which are the next channel. */
  offsets: RecordedRuns | null = null;
  /** Of offsets: the channel that they belong to. */
  owner: RecordedRuns | null = null;
  codec: number | null = null;
  filters: Filters | null = null;
  /** With how many entries the recorder fills it, for the steps before it was added. */
  filled = 0;
  /** Entries in all runs; items of a ragged or text channel. */
  held = 0;
  lastOffset = 0n;

  constructor(readonly row: Row) {}

  get block(): string {
    return this.row.block;
  }

  /** Bytes of an entry or item. */
  get stepBytes(): number {
    return this.row.shape.reduce((product, size) => product * size, dtypeSizes[this.row.dtype]);
  }

  /** Entries that are complete: a ragged or text channel has one fewer than offsets. */
  get entries(): number {
    return this.offsets === null ? this.held : Math.max(0, this.offsets.held - 1);
  }

  /** Whether its recorder died before it had filled the steps before it (J-3). */
  get isLeftOut(): boolean {
    const channel = this.owner ?? this;
    return channel.entries < channel.filled;
  }

  /** Whether it has one entry for each step. */
  get followsSteps(): boolean {
    const isClock = this.block.startsWith("time/") && !flatBlocks.has(this.block);
    return this.owner === null && this.row.timeBlock === null && !isClock;
  }

  /** Bytes in all runs. */
  get size(): number {
    return this.runs.at(-1)?.end ?? 0;
  }
}

/** The frames of a journal that follow the rules, read so far. Reading a journal never changes it (J-7). */
export class Journal {
  /** Where the next frame is expected. */
  position = 0;
  /** The rule that stopped reading before the end of the file; null if none did. */
  error: ShardError | null = null;
  /** The `episode` of the start frame; null before it was read. */
  episode: JsonObject | null = null;
  readonly channels: RecordedRuns[] = [];
  readonly labels = new Map<string, Label & { intervals: Interval[] }>();
  // Without a prototype, so that any key is safe.
  readonly metadata: JsonObject = Object.create(null);
  readonly dropped: JsonObject = Object.create(null);
  /** The number of steps, once no more will follow. */
  length: bigint | null = null;
  hasEnded = false;
  /** Whether the recording continues in another journal. */
  continues = false;
  chunk: { readonly index: number; readonly firstStep: number } | null = null;
  #sequence = 0;
  /** What was read ahead: frames are often small. */
  #ahead: { offset: number; bytes: Uint8Array } = { offset: 0, bytes: new Uint8Array(0) };

  constructor(
    readonly source: Source,
    private readonly zstd: ZstdProvider | undefined,
  ) {}

  /** Reads the frames that are complete by now and were not read before (J-2); returns how many. */
  async read(): Promise<number> {
    const { size, head } = await this.source.start(this.position);
    this.#ahead = { offset: this.position, bytes: head };
    const first = this.#sequence;
    this.error = null;
    while (this.position < size) {
      try {
        this.position = await this.#readFrame(size);
        this.#sequence++;
      } catch (error) {
        if (!(error instanceof ShardError) || error.code === "io_error" || error.code === "missing_extra") throw error;
        this.error = located(error, this.source.path) as ShardError;
        break;
      }
    }
    return this.#sequence - first;
  }

  /** Bytes of the journal, whose size is known. */
  async #bytes(offset: number, length: number, size: number): Promise<Uint8Array> {
    const { offset: start, bytes } = this.#ahead;
    if (offset >= start && offset + length <= start + bytes.length) {
      return bytes.subarray(offset - start, offset - start + length);
    }
    const read = await this.source.read(offset, Math.min(Math.max(length, pieceSize), size - offset));
    this.#ahead = { offset, bytes: read };
    return read.subarray(0, length);
  }

  /** Reads one frame; returns where the next one starts. */
  async #readFrame(size: number): Promise<number> {
    const room = size - this.position;
    const head = parseHead(await this.#bytes(this.position, Math.min(headSize, room), size), this.#sequence);
    const offset = this.position + headSize;
    const end = offset + head.storedSize;
    if (end > size)
      throw broken("truncated", "J-FRM-11", "a frame is cut off", {
        expected: `${head.storedSize} bytes`,
        found: size - offset,
      });
    let checksum = 0;
    for (let at = offset; at < end; at += pieceSize) {
      checksum = crc32c(await this.#bytes(at, Math.min(pieceSize, end - at), size), checksum);
    }
    if (checksum !== head.storedCrc32c)
      throw broken("checksum_mismatch", "J-FRM-12", "the stored bytes of a frame are damaged");
    const isStart = head.kind === FrameKind.start;
    if (!isStart && this.#sequence === 0)
      throw broken("bad_profile", "J-ORD-1", "the first frame is not a start frame");
    if (isStart && this.#sequence > 0) throw broken("bad_profile", "J-ORD-2", "there is a second start frame");
    if (this.hasEnded) throw broken("trailing_data", "J-ORD-3", "there is a frame after the end");
    if (head.kind === FrameKind.run) await this.#addRun(head, offset);
    else this.#addText(head.kind, await this.#fields(head, offset, size));
    return end;
  }

  async #fields(head: FrameHead, offset: number, size: number): Promise<JsonObject> {
    const limit = { code: "limit_exceeded", rule: "J-TXT-2" } as const;
    if (head.storedSize > defaultLimits.maxJsonBytes)
      throw broken(limit.code, limit.rule, "a frame of JSON is too long");
    const text = await this.#bytes(offset, head.storedSize, size);
    try {
      return parseJsonObject(text, { what: "a frame", rule: "J-TXT-1" });
    } catch (error) {
      throw error instanceof ShardError && error.code === limit.code
        ? broken(limit.code, limit.rule, error.problem)
        : error;
    }
  }

  #addText(kind: number, fields: JsonObject): void {
    if (kind === FrameKind.start) this.#addStart(fields);
    else this.#addNote(fields);
    this.hasEnded = kind === FrameKind.end;
  }

  // --- start

  #addStart(fields: JsonObject): void {
    if (!isInteger(fields, "v") || fields.v !== 1) {
      throw broken("unsupported_version", "J-STA-1", "the journal has an unknown version", {
        expected: 1,
        found: told(fields.v),
      });
    }
    const { episode } = fields;
    if (!isObject(episode)) throw broken("bad_metadata", "J-STA-2", "the start frame does not describe an episode");
    renamed("J-STA-2", () => parseFacts(episode, {}, 0n));
    const chunk = parseChunk(fields.chunk);
    this.channels.push(...this.#newChannels(fields.channels));
    this.chunk = chunk;
    this.episode = episode;
  }

  #newChannels(listed: Json | undefined): RecordedRuns[] {
    if (!Array.isArray(listed)) throw broken("bad_metadata", "J-CHN-1", "'channels' is not a list");
    const known = new Set(this.channels.map((channel) => channel.block));
    const added: RecordedRuns[] = [];
    for (const fields of listed) {
      const channel = new RecordedRuns(renamed("J-CHN-1", () => parseRow(fields)));
      if (known.has(channel.block))
        throw broken("bad_metadata", "J-CHN-2", "two channels have one block", { entry: channel.block });
      known.add(channel.block);
      const before = added.at(-1);
      if (before !== undefined && isItems(before)) [before.offsets, channel.owner] = [channel, before];
      if (!isRecordable(channel))
        throw broken("bad_metadata", "J-CHN-3", "a channel cannot be recorded", { entry: channel.block });
      added.push(channel);
    }
    const last = added.at(-1);
    if (last !== undefined && isItems(last))
      throw broken("bad_metadata", "J-CHN-3", "the offsets are not the next channel", { entry: last.block });
    return added;
  }

  // --- runs

  async #addRun(head: FrameHead, offset: number): Promise<void> {
    const channel = this.channels[head.channel];
    if (channel === undefined)
      throw broken("bad_header", "J-RUN-1", "a run belongs to an unknown channel", { found: head.channel });
    const entry = channel.block;
    const expected = channel.filters === null ? channel.codec : FrameCodec.zstd;
    if (expected !== null && expected !== head.codec)
      throw broken("bad_header", "J-RUN-2", "a run has another codec than expected", { entry });
    const size = BigInt(head.entries) * BigInt(channel.stepBytes);
    const isLimited = channel.filters !== null || channel.row.layout === "text";
    if (
      head.entries === 0 ||
      size !== BigInt(head.contentSize) ||
      (isLimited && head.contentSize > largestLimitedRun)
    ) {
      throw broken("size_mismatch", "J-RUN-3", "a run does not hold its entries", {
        entry,
        expected: `${size} bytes`,
        found: head.contentSize,
      });
    }
    const start = channel.size;
    const run = {
      offset,
      storedSize: head.storedSize,
      contentCrc32c: head.contentCrc32c,
      start,
      end: start + head.contentSize,
    };
    if (head.codec === FrameCodec.zstd) await this.content(run, channel.filters, true);
    if (channel.owner !== null) channel.lastOffset = await this.#checkedOffsets(head, run, channel, channel.owner);
    channel.codec = head.codec;
    channel.held += head.entries;
    channel.runs.push(run);
  }

  /** The bytes of a run (J-RUN-4). */
  async content(run: Run, filters: Filters | null, isCompressed: boolean): Promise<Uint8Array> {
    const stored = await this.source.read(run.offset, run.storedSize);
    const size = run.end - run.start;
    const content = isCompressed ? await this.#decoded(stored, size, filters) : stored;
    if (crc32c(content) === run.contentCrc32c) return content;
    throw broken("checksum_mismatch", "J-RUN-4", "a run decodes to other bytes");
  }

  async #decoded(stored: Uint8Array, size: number, filters: Filters | null): Promise<Uint8Array> {
    const frames = renamed("J-RUN-4", () => walkFrames(stored, defaultLimits.maxWindowBytes));
    const [frame] = frames;
    if (frames.length !== 1 || frame.start !== 0 || frame.end !== stored.length || !frame.hasChecksum) {
      throw broken("bad_compression", "J-RUN-4", "a run is not exactly one zstd frame with a checksum");
    }
    if (frame.contentSize !== size)
      throw broken("size_mismatch", "J-RUN-4", "a run declares another size than its head");
    const zstd = await loadZstd(this.zstd);
    let content: Uint8Array;
    try {
      content = await decodeFrame(zstd, stored, frame, size);
    } catch (error) {
      throw withRule(error, "J-RUN-4");
    }
    if (content.length !== size) throw broken("size_mismatch", "J-RUN-4", "a run decodes to another size");
    return filters === null ? content : undoFilters(filters, content);
  }

  /** The last offset of a run of offsets, all of which follow J-RAG. */
  async #checkedOffsets(head: FrameHead, run: Run, channel: RecordedRuns, owner: RecordedRuns): Promise<bigint> {
    const entry = channel.block;
    if (head.codec !== FrameCodec.none)
      throw broken("bad_header", "J-RAG-1", "a run of offsets is compressed", { entry });
    const texts = owner.row.layout === "text" ? new TextCheck(this.block(owner, owner.size), channel.lastOffset) : null;
    let last = channel.lastOffset;
    let isFirst = channel.held === 0;
    const ends: bigint[] = [];
    for (let at = 0; at < run.storedSize; at += pieceSize) {
      for (const offset of toTypedArray(
        "i64",
        await this.source.read(run.offset + at, Math.min(pieceSize, run.storedSize - at)),
      )) {
        if (offset < last || (isFirst && offset !== 0n)) {
          throw broken("bad_value", "J-RAG-2", "offsets do not start with 0, or fall", { entry, found: offset });
        }
        isFirst = false;
        last = offset;
        if (texts !== null) ends.push(offset);
      }
    }
    if (last > BigInt(owner.held))
      throw broken("bad_value", "J-RAG-3", "offsets count items that are not there", { entry, found: last });
    await texts?.check(ends);
    return last;
  }

  /** The first bytes of the content of a channel. */
  block(channel: RecordedRuns, size: number): Block {
    const { runs } = channel;
    let known: { run: Run; content: Promise<Uint8Array> } | null = null;
    const contentOf = (run: Run) => {
      if (known?.run !== run)
        known = { run, content: this.content(run, channel.filters, channel.codec === FrameCodec.zstd) };
      return known.content;
    };
    const read = async (start = 0, end = size): Promise<Uint8Array> => {
      const pieces: Uint8Array[] = [];
      for (let number = firstRun(runs, start); number < runs.length && runs[number].start < end; number++) {
        const run = runs[number];
        const from = Math.max(start, run.start) - run.start;
        const to = Math.min(end, run.end) - run.start;
        // A part of a raw run is read alone; its checksum was compared before.
        const isPart = channel.codec !== FrameCodec.zstd && to - from < run.end - run.start;
        pieces.push(
          isPart ? await this.source.read(run.offset + from, to - from) : (await contentOf(run)).subarray(from, to),
        );
      }
      return concatenated(pieces);
    };
    return { name: channel.block, path: this.source.path, size, read };
  }

  // --- notes

  #addNote(fields: JsonObject): void {
    const wrong = (what: string) =>
      broken("bad_metadata", "J-NOT-1", `${what} of a note has the wrong type`, { found: told(fields[what]) });
    const { metadata = {}, dropped = {}, filters = {}, continues = false } = fields;
    if (!isObject(metadata)) throw wrong("metadata");
    if (!isObject(dropped)) throw wrong("dropped");
    if (!isObject(filters)) throw wrong("filters");
    if (typeof continues !== "boolean") throw wrong("continues");
    const length = "length_T" in fields ? fields.length_T : this.length;
    if (length !== null && "length_T" in fields && !(isInteger(fields, "length_T") && BigInt(length as number) >= 0n))
      throw wrong("length_T");
    if ("filled" in fields && !isCount(fields, "filled")) throw wrong("filled");
    const label = "interval" in fields ? this.#parseInterval(fields) : null;
    const added = "channels" in fields ? this.#newChannels(fields.channels) : [];
    for (const channel of added) channel.filled = Number(fields.filled ?? 0);
    const filtered = this.#parseFilters(filters, added);
    // Nothing below can fail: a note that is refused leaves nothing behind.
    if (label !== null) {
      const lane = this.labels.get(label.name) ?? { ...label.lane, intervals: [] };
      lane.intervals.push(...label.lane.intervals);
      this.labels.set(label.name, lane);
    }
    this.channels.push(...added);
    for (const [channel, found] of filtered) channel.filters = found;
    this.length = length === null ? null : BigInt(length as number | bigint);
    this.continues = continues;
    Object.assign(this.metadata, metadata);
    Object.assign(this.dropped, dropped);
  }

  #parseInterval(fields: JsonObject): { name: string; lane: Label } {
    const name = fields.label;
    if (typeof name !== "string" || name === "")
      throw broken("bad_metadata", "J-NOT-1", "a note has an interval without a label");
    const { unit = "steps" } = fields;
    const lane = renamed("J-NOT-1", () => parseLabel({ intervals: [fields.interval], unit }));
    const known = this.labels.get(name);
    if (known !== undefined && known.unit !== lane.unit)
      throw broken("bad_metadata", "J-NOT-1", "the intervals of one label have two units");
    return { name, lane };
  }

  #parseFilters(listed: JsonObject, added: readonly RecordedRuns[]): [RecordedRuns, Filters][] {
    const known = new Map([...this.channels, ...added].map((channel) => [channel.block, channel]));
    return Object.entries(listed).map(([block, steps]) => {
      const channel = known.get(block);
      if (channel === undefined || channel.held > 0 || channel.filters !== null) {
        throw broken("bad_metadata", "J-FLT-1", "a note has filters for a channel that is unknown or has begun", {
          entry: block,
        });
      }
      const filters = renamed("J-FLT-2", () => parseFilters(canonicalBytes({ filters: steps })));
      renamed("J-FLT-3", () => checkFilteredFrame(filters, channel.stepBytes));
      return [channel, filters];
    });
  }
}

/** Whether the strings of a text channel are strict UTF-8, each on its own (J-RAG-4). */
class TextCheck {
  readonly #decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

  constructor(
    private readonly content: Block,
    private start: bigint,
  ) {}

  async check(ends: readonly bigint[]): Promise<void> {
    for (let first = 0; first < ends.length; ) {
      // Several strings at a time, which are rarely longer than a piece.
      let next = first + 1;
      while (next < ends.length && ends[next] - this.start <= pieceSize) next++;
      const bytes = await this.content.read(Number(this.start), Number(ends[next - 1]));
      let at = 0;
      for (; first < next; first++) {
        const end = at + Number(ends[first] - this.start);
        this.#checkString(bytes.subarray(at, end));
        this.start = ends[first];
        at = end;
      }
    }
  }

  #checkString(bytes: Uint8Array): void {
    try {
      this.#decoder.decode(bytes);
    } catch {
      throw broken("bad_value", "J-RAG-4", "a string is not UTF-8", { entry: this.content.name });
    }
  }
}

function isItems(channel: RecordedRuns): boolean {
  return channel.row.layout === "ragged" || channel.row.layout === "text";
}

/** The number of the first run that ends after a place. */
function firstRun(runs: readonly Run[], place: number): number {
  let [low, high] = [0, runs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (runs[middle].end > place) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** J-CHN-3 */
function isRecordable({ row, owner }: RecordedRuns): boolean {
  const { block, layout, offsetsBlock } = row;
  const [lane] = splitFirst(block);
  const hasLane = lane === "signal" || lane === "action";
  let isPlaced = flatBlocks.has(block) || block.startsWith("time/") || (hasLane && block === `${lane}/${row.id}`);
  if (owner !== null) {
    isPlaced =
      block === `offsets/${owner.block}` && row.timeBlock === null && row.dtype === "i64" && row.shape.length === 0;
  }
  let isKnown = layout === "dense" && offsetsBlock === null;
  if (layout === "ragged" || layout === "text") {
    isKnown =
      hasLane &&
      offsetsBlock === `offsets/${block}` &&
      (layout === "ragged" || (row.dtype === "u8" && row.shape.length === 0));
  }
  const size = row.shape.reduce((product, one) => product * BigInt(one), BigInt(dtypeSizes[row.dtype]));
  return isPlaced && isKnown && row.length === null && row.startNs === null && size > 0n && size <= largestEntry;
}

/** J-STA-3 */
function parseChunk(chunk: Json | undefined): { index: number; firstStep: number } | null {
  if (chunk === undefined || chunk === null) return null;
  if (!isObject(chunk) || !isCount(chunk, "index", 1n) || !isCount(chunk, "first_step")) {
    throw broken("bad_metadata", "J-STA-3", "'chunk' does not say which part of a recording this is");
  }
  return { index: Number(chunk.index), firstStep: Number(chunk.first_step) };
}

/** Runs something whose errors name another rule. */
function renamed<T>(rule: string, run: () => T): T {
  try {
    return run();
  } catch (error) {
    throw withRule(error, rule);
  }
}

function withRule(error: unknown, rule: string): unknown {
  if (!(error instanceof ShardError)) return error;
  const { code, problem, entry, expected, found } = error;
  return new ShardError(code, problem, { rule, entry, expected, found });
}

/** Whether a block of a journal is not in a lane with names. */
export function isFlat(block: string): boolean {
  return flatBlocks.has(block);
}

/** Bytes of an offset. */
export const bytesOfOffset = offsetSize;
