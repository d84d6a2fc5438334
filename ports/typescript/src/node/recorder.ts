// Records an episode step by step; nothing that was flushed can be lost (spec/journal.md, section 9).

import { invalid, ShardError } from "../core/errors.js";
import { canonicalBytes, type JsonObject } from "../core/json.js";
import { ioError } from "../core/source.js";
import { encodeFrame, type Zstd } from "../core/zstd.js";
import { FrameKind, packFrame } from "../wshard/journal-frames.js";
import { checkId, done, reward, terminated, timeStamps, truncated } from "../wshard/names.js";
import type { SaveOptions } from "../wshard/writing.js";
import { ChunkFinisher, exists, RecordingNames, saveJournal } from "./chunk-finisher.js";
import { checkNoSidecars } from "./episodes.js";
import type { FileSinkOptions } from "./file-sink.js";
import { JournalFile } from "./journal-writer.js";
import { type PendingRun, RecordedChannel, type StepValue } from "./recorder-channels.js";
import {
  type Annotation,
  checkedFacts,
  checkOptions,
  checkTime,
  episodeFields,
  labelsFrom,
  type RecorderOptions,
  type StepFacts,
} from "./recorder-options.js";
import { loadZstd } from "./zstd.js";

const syncMs = 1000;
const largestRun = 16 << 20;
const zstdLevel = 1;
/** What compression must save at least. */
const worthIt = 0.9;

/**
 * Records an episode to `<path>.partial`, a journal whose runs have their own checksums, and makes the episode of it in
 * the end. After a crash, `recoverRecording` or `wshard recover` brings back everything that was flushed.
 */
export class Recorder {
  readonly path: string;
  readonly #names: RecordingNames;
  readonly #finisher: ChunkFinisher;
  #journal: JournalFile;
  readonly #options: RecorderOptions;
  /** How the episode, or its chunks, are saved. */
  readonly #saving: SaveOptions & FileSinkOptions;
  /** The start frame without the chunk: the episode, and all channels so far. */
  readonly #start: { episode: JsonObject; channels: JsonObject[]; v: 1 };
  /** The chunk that is recorded now, and its first step. */
  #chunk = { index: 0, first_step: 0 };
  /** Notes with labels that may reach beyond this chunk. */
  #labels: { interval: { start: number; end: number }; label: string; unit: string }[] = [];
  /** Full journals become chunks one after the other. */
  #finishing: Promise<void> = Promise.resolve();
  #unfinished: JournalFile[] = [];
  readonly #clocked = new Map<string, { channel: RecordedChannel; clock: RecordedChannel; last: bigint | null }>();
  /** Channels of the steps by the key of their values; null before the first step. */
  #steps: Map<string, RecordedChannel> | null = null;
  /** What every step has besides its channels. */
  #facts: Map<keyof StepFacts, RecordedChannel> = new Map();
  #lastTime: bigint | null = null;
  #written = 0;
  #durable = 0;
  #sequence = 0;
  /** Steps and entries in buffers, and their bytes. */
  #buffered = 0;
  #bufferedBytes = 0;
  /** Bytes that were handed over and are not written yet. */
  #queuedBytes = 0;
  /** What was handed over is written one after the other. */
  #queue: Promise<void> = Promise.resolve();
  /** Why nothing can be recorded any more. */
  #failure: unknown = null;
  #isOpen = true;
  readonly #isCompressed = new Map<RecordedChannel, boolean>();
  #flushTimer: NodeJS.Timeout | undefined;
  #syncTimer: NodeJS.Timeout | undefined;
  #synced = Date.now();

  private constructor(path: string, journal: JournalFile, options: RecorderOptions, episode: JsonObject) {
    this.path = path;
    this.#journal = journal;
    this.#options = options;
    this.#start = { channels: [], episode, v: 1 };
    this.#names = new RecordingNames(path);
    const { id, envId = "", fsync, compression } = options;
    this.#saving = { sync: fsync !== "never", ...(compression ? { compression } : {}) };
    this.#finisher = new ChunkFinisher(this.#names, { id, envId }, this.#saving);
  }

  /** Opens the journal of a new recording. The episode appears at `path` when it ends. */
  static async begin(path: string, options: RecorderOptions): Promise<Recorder> {
    checkOptions(options);
    if (!options.overwrite && (await exists(path)))
      throw invalid("a finished episode exists here", { path, expected: "overwrite" });
    await checkNoSidecars(path);
    const episode = episodeFields(options);
    const names = new RecordingNames(path);
    if (options.maxStepsPerFile !== undefined) await names.checkUsable();
    const journal = await JournalFile.open(names.journal(0));
    const recorder = new Recorder(path, journal, options, episode);
    const isOld = (await journal.oldSize()) > 0;
    try {
      if (isOld && !options.discardPartial) {
        throw invalid("an earlier recording is not finished: recover it, or discard it", { path: journal.path });
      }
      await journal.clear();
      await recorder.#begin();
      return recorder;
    } catch (error) {
      // The journal of an earlier recording stays as it is.
      await (isOld && !options.discardPartial ? journal.close() : journal.remove());
      throw ioError("cannot record", error, journal.path);
    }
  }

  async #begin(): Promise<void> {
    for (const def of this.#options.channels) {
      if (!def.ownClock) continue;
      const channel = RecordedChannel.of(def);
      const clock = new RecordedChannel(`time/${channel.block}`, { dtype: "i64" });
      this.#number([channel, clock]);
      this.#clocked.set(def.id, { channel, clock, last: null });
    }
    await this.#journal.append([this.#text(FrameKind.start, this.#start)]);
    if (this.#options.fsync !== "never") await this.#journal.syncWithName();
  }

  // --- what is recorded

  /** Steps recorded so far. */
  get steps(): number {
    return this.#written;
  }

  /** Steps that survive if the process is killed now. */
  get durableSteps(): number {
    return this.#durable;
  }

  /** The journal that is written now. */
  get partialPath(): string {
    return this.#journal.path;
  }

  /** The file to open when the episode is finished: the path, or the manifest of a recording in chunks. */
  get episodePath(): string {
    return this.#chunk.index > 0 ? this.#names.manifest : this.path;
  }

  /**
   * Records one step: a value for every channel without a clock of its own. The arrays may be changed as soon as the
   * call returns. If a value does not fit, nothing of the step is recorded, and you can continue. Wait for the promise
   * to let the disk keep up.
   */
  step(values: Readonly<Record<string, StepValue>>, facts: StepFacts = {}): Promise<void> {
    try {
      this.#check();
      const ends = checkedFacts(facts);
      const channels = this.#steps ?? this.#schema(ends);
      const pieces = this.#piecesOf(channels, values, ends);
      if (this.#steps === null) this.#declare(channels);
      if (this.#written - this.#chunk.first_step === this.#options.maxStepsPerFile) this.#roll();
      for (const [channel, bytes] of pieces) channel.add(bytes);
      this.#lastTime = facts.timestampNs ?? this.#lastTime;
      this.#written++;
      return this.#added(pieces.reduce((sum, [, bytes]) => sum + bytes.length, 0));
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** Records one entry of a channel that has a clock of its own. */
  write(id: string, value: StepValue, timestampNs: bigint): Promise<void> {
    try {
      this.#check();
      const group = this.#clocked.get(id);
      if (group === undefined) throw invalid("the channel does not have a clock of its own", { entry: id });
      checkTime(timestampNs, group.last, group.clock.block);
      const bytes = group.channel.checked(value);
      group.channel.add(bytes);
      group.clock.add(group.clock.checked(timestampNs));
      group.last = timestampNs;
      return this.#added(bytes.length);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** Labels some steps. */
  annotate(text: string, about: Annotation = {}): void {
    this.#check();
    const { label = "notes", start = this.#written, end = start + 1, source, confidence } = about;
    checkId(label, "a label");
    if (!Number.isSafeInteger(start) || !Number.isSafeInteger(end) || start > end)
      throw invalid("an interval ends before it starts");
    const interval: JsonObject & { start: number; end: number } = { end, start, text };
    if (source) interval.source = source;
    if (confidence !== undefined) interval.confidence = confidence;
    canonicalBytes(interval); // throws if it cannot be stored
    const note = { interval, label, unit: "steps" };
    this.#labels.push(note);
    this.#enqueue(() => [this.#text(FrameKind.note, note)]);
  }

  /** Waits until everything recorded so far is in the journal, so that a kill cannot lose it. */
  async flush(): Promise<void> {
    this.#check();
    this.#handOver();
    await this.#queue;
    this.#check();
  }

  /** Finishes the episode: it appears at `path`, and the journal is removed. If that fails, the journal stays. */
  async end(
    last: { metadata?: JsonObject; finalObservations?: Readonly<Record<string, StepValue>> } = {},
  ): Promise<void> {
    this.#check();
    if (this.#steps === null) this.#declare(this.#schema({}));
    const finals = Object.entries(last.finalObservations ?? {}).map(([key, value]): [RecordedChannel, Uint8Array] => {
      const channel = this.#steps?.get(key);
      if (!channel?.block.startsWith("signal/"))
        throw invalid("the steps do not have this observation", { entry: key });
      return [channel, channel.checked(value)];
    });
    canonicalBytes(last.metadata ?? {}); // throws if it cannot be stored
    await this.flush();
    if (finals.length > 0) {
      this.#enqueue(() => [this.#text(FrameKind.note, { length_T: this.#written - this.#chunk.first_step })]);
      for (const [channel, bytes] of finals) channel.add(bytes);
      this.#buffered = 1;
      await this.flush();
    }
    const fields: JsonObject =
      last.metadata && Object.keys(last.metadata).length > 0 ? { metadata: last.metadata } : {};
    this.#enqueue(() => [this.#text(FrameKind.end, fields)]);
    await this.#queue;
    this.#check();
    this.#stop(this.#over());
    this.#isOpen = false;
    try {
      await (this.#chunk.index > 0 ? this.#finishChunks() : this.#save());
    } finally {
      await this.#release();
    }
  }

  /** The episode appears, and then the journal goes (J-5). */
  async #save(): Promise<void> {
    if (!this.#options.overwrite && (await exists(this.path))) {
      throw invalid("a file appeared here during the recording, which is safe in its journal", { path: this.path });
    }
    await saveJournal(this.#journal.path, this.path, this.#saving);
    await this.#journal.remove();
  }

  async #finishChunks(): Promise<void> {
    this.#handToFinisher(this.#journal);
    await this.#finishing;
  }

  #handToFinisher(journal: JournalFile): void {
    this.#unfinished.push(journal);
    this.#finishing = this.#finishing.then(async () => {
      await this.#finisher.finish(journal);
      this.#unfinished.shift();
    });
    this.#finishing.catch(() => undefined); // `end` tells it
  }

  /** Closes the journals that are left. */
  async #release(): Promise<void> {
    for (const journal of new Set([...this.#unfinished, this.#journal])) await journal.close();
  }

  /** Stops recording and keeps the journal, for `recoverRecording`. Does nothing after `end`. */
  async close(): Promise<void> {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    if (this.#failure === null) this.#handOver();
    await this.#queue;
    this.#stop(this.#over());
    await this.#finishing.catch(() => undefined);
    await this.#release();
  }

  /** Stops recording and deletes the journal and the finished chunks. */
  async abort(): Promise<void> {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    this.#stop(this.#over());
    await this.#queue;
    await this.#finishing.catch(() => undefined);
    for (const journal of this.#unfinished) await journal.remove();
    await this.#finisher.remove();
    await this.#journal.remove();
  }

  // --- channels

  /** Numbers channels that the journal learns of now; returns their rows. */
  #number(channels: Iterable<RecordedChannel>): JsonObject[] {
    const rows: JsonObject[] = [];
    for (const channel of channels) {
      channel.number = this.#start.channels.length + rows.length;
      rows.push(...channel.rows);
    }
    this.#start.channels.push(...rows);
    return rows;
  }

  /** What every step has, from what the first one has. */
  #schema(facts: StepFacts): Map<string, RecordedChannel> {
    const defs = this.#options.channels.filter((def) => !def.ownClock);
    const channels = new Map(defs.map((def) => [def.id, RecordedChannel.of(def)]));
    this.#facts = new Map();
    if (facts.reward !== undefined) this.#facts.set("reward", new RecordedChannel(reward, { dtype: "f64" }));
    if (facts.done !== undefined) this.#facts.set("done", new RecordedChannel(done, { dtype: "bool" }));
    if (facts.terminated !== undefined)
      this.#facts.set("terminated", new RecordedChannel(terminated, { dtype: "bool" }));
    if (facts.truncated !== undefined) this.#facts.set("truncated", new RecordedChannel(truncated, { dtype: "bool" }));
    if (facts.timestampNs !== undefined)
      this.#facts.set("timestampNs", new RecordedChannel(timeStamps, { dtype: "i64" }));
    return channels;
  }

  #declare(channels: Map<string, RecordedChannel>): void {
    const rows = this.#number([...channels.values(), ...this.#facts.values()]);
    this.#steps = channels;
    this.#enqueue(() => [this.#text(FrameKind.note, { channels: rows })]);
  }

  /** The bytes of a step, all of which fit. */
  #piecesOf(
    channels: ReadonlyMap<string, RecordedChannel>,
    values: Readonly<Record<string, StepValue>>,
    facts: StepFacts,
  ): [RecordedChannel, Uint8Array][] {
    for (const key of Object.keys(values))
      if (!channels.has(key)) throw invalid("a step has a value for an unknown channel", { entry: key });
    for (const key of Object.keys(facts) as (keyof StepFacts)[]) {
      const isNew = facts[key] !== undefined && !this.#facts.has(key);
      if (isNew) throw invalid("the first step did not have this", { entry: key });
    }
    if (facts.timestampNs !== undefined) checkTime(facts.timestampNs, this.#lastTime, timeStamps);
    const pieces = [...channels].map(([key, channel]): [RecordedChannel, Uint8Array] => [
      channel,
      channel.checked(values[key]),
    ]);
    for (const [key, channel] of this.#facts) {
      // An end that is left out is false; a reward or a time must be there.
      const value = facts[key] ?? (channel.dtype === "bool" ? false : undefined);
      pieces.push([channel, channel.checked(value)]);
    }
    return pieces;
  }

  // --- buffers and frames

  /** Counts what was added; returns when there is room for more. */
  #added(bytes: number): Promise<void> {
    const { flushSteps = 64, flushSeconds = 0.5, bufferBytes = 24 << 20 } = this.#options;
    this.#buffered++;
    this.#bufferedBytes += bytes;
    if (this.#buffered >= flushSteps || this.#bufferedBytes >= largestRun) this.#handOver();
    else this.#flushTimer ??= setTimeout(() => this.#handOver(), flushSeconds * 1000).unref();
    return this.#queuedBytes > bufferBytes ? this.#queue : Promise.resolve();
  }

  *#channels(): Generator<RecordedChannel> {
    for (const { channel, clock } of this.#clocked.values()) yield* [channel, clock];
    yield* this.#steps?.values() ?? [];
    yield* this.#facts.values();
  }

  /** Hands what is in buffers to the queue. */
  #handOver(): void {
    clearTimeout(this.#flushTimer);
    this.#flushTimer = undefined;
    if (this.#buffered === 0) return;
    const [bytes, steps] = [this.#bufferedBytes, this.#written];
    this.#buffered = this.#bufferedBytes = 0;
    this.#queuedBytes += bytes;
    const runs = Array.from(this.#channels(), (channel) => channel.take()).filter((run) => run !== null);
    this.#enqueue(async () => {
      const frames: Uint8Array[] = [];
      for (const run of runs) frames.push(...(await this.#framesOf(run)));
      return frames;
    }, steps);
    this.#queue = this.#queue.then(() => {
      this.#queuedBytes -= bytes;
    });
  }

  /** Writes frames behind everything that was handed over before; `steps` are then durable. A failure ends the recording. */
  #enqueue(make: () => Uint8Array[] | Promise<Uint8Array[]>, steps?: number): void {
    this.#queue = this.#queue.then(async () => {
      if (this.#failure !== null) return;
      try {
        await this.#journal.append(await make());
        await this.#syncIfDue();
        this.#durable = steps ?? this.#durable;
      } catch (error) {
        this.#stop(ioError("cannot record; what was flushed is safe in the journal", error, this.#journal.path));
      }
    });
  }

  /** Continues in the journal of the next chunk, which exists before the previous one gets its end (J-9). */
  #roll(): void {
    this.#handOver();
    const chunk = { index: this.#chunk.index + 1, first_step: this.#written };
    this.#chunk = chunk;
    this.#labels = labelsFrom(this.#labels, chunk.first_step);
    const labels = [...this.#labels];
    this.#enqueue(async () => {
      const [full, last] = [this.#journal, this.#sequence];
      const next = await JournalFile.open(this.#names.journal(chunk.index));
      if ((await next.oldSize()) > 0) {
        await next.close();
        throw invalid("a file is in the way of the next chunk", { path: next.path });
      }
      this.#sequence = 0;
      const frames = [this.#text(FrameKind.start, { ...this.#start, chunk })];
      for (const label of labels) frames.push(this.#text(FrameKind.note, label));
      await next.append(frames);
      if (this.#options.fsync !== "never") await next.syncWithName();
      await full.append([
        packFrame({ kind: FrameKind.end, sequence: last, content: canonicalBytes({ continues: true }) }),
      ]);
      if (this.#options.fsync !== "never") await full.sync();
      this.#journal = next;
      for (const channel of this.#channels()) channel.items = null; // offsets count from the start of each journal
      this.#handToFinisher(full);
      return [];
    });
  }

  async #syncIfDue(): Promise<void> {
    const { fsync = "interval" } = this.#options;
    if (fsync === "never") return;
    const left = fsync === "always" ? 0 : this.#synced + syncMs - Date.now();
    if (left > 0) {
      // Nothing may follow: the disk must have this within a second all the same.
      this.#syncTimer ??= setTimeout(() => this.#enqueue(() => []), left).unref();
      return;
    }
    clearTimeout(this.#syncTimer);
    this.#syncTimer = undefined;
    await this.#journal.sync();
    this.#synced = Date.now();
  }

  #text(kind: number, fields: JsonObject): Uint8Array {
    return packFrame({ kind, sequence: this.#sequence++, content: canonicalBytes(fields) });
  }

  async #framesOf({ channel, content, sizes }: PendingRun): Promise<Uint8Array[]> {
    const frames: Uint8Array[] = [];
    if (content.length > 0) {
      const compressed = await this.#compressed(channel, content);
      const entries = content.length / channel.stepBytes;
      const run = { kind: FrameKind.run, sequence: this.#sequence++, channel: channel.number, entries, content };
      frames.push(packFrame(compressed === null ? run : { ...run, compressed }));
    }
    if (sizes !== null) {
      const offsets = channel.offsetsOf(sizes);
      const entries = offsets.length / 8;
      frames.push(
        packFrame({
          kind: FrameKind.run,
          sequence: this.#sequence++,
          channel: channel.number + 1,
          entries,
          content: offsets,
        }),
      );
    }
    return frames;
  }

  /** One zstd frame of a run; null if the channel is stored raw, which its first run decides (J-RUN-2). */
  async #compressed(channel: RecordedChannel, content: Uint8Array): Promise<Uint8Array | null> {
    if (this.#options.compression !== "zstd" || this.#isCompressed.get(channel) === false) return null;
    const zstd: Zstd = await loadZstd();
    const frame = await encodeFrame(zstd, content, zstdLevel, true);
    const isWorthIt = this.#isCompressed.get(channel) ?? frame.length < worthIt * content.length;
    this.#isCompressed.set(channel, isWorthIt);
    return isWorthIt ? frame : null;
  }

  // --- state

  #check(): void {
    if (this.#failure !== null) throw this.#failure;
  }

  #over(): ShardError {
    return new ShardError("closed", "the recording is over", { path: this.path });
  }

  #stop(failure: unknown): void {
    clearTimeout(this.#flushTimer);
    clearTimeout(this.#syncTimer);
    this.#failure ??= failure;
  }
}
