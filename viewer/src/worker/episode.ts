// One opened episode: answers what panels ask.

import { type JsonObject, ShardError, sha256, type TypedArray } from "@shard-format/core";
import {
  type Channel,
  type Episode,
  type Overview,
  type Overviews,
  openOverviews,
  type Residual,
} from "@shard-format/core/wshard";
import { type Derived, parseDerived } from "../model/derived";
import type { ChannelFacts, EpisodeFacts, Interval } from "../model/facts";
import type { Columns, Extent, PosterImage, Range, ReadOptions, Window } from "../model/reads";
import { type Clock, regularClock, sampledClock, secondsClock, stepAt, stepClock } from "../plot-data/clocks";
import { Pyramid } from "../plot-data/pyramid";
import type { Numbers } from "../plot-data/samples";
import { episodeFacts, type Readable, readables } from "./facts";
import { OpenFiles } from "./files";
import { Lines, mostPyramid, type ReadValues } from "./lines";
import { Lru } from "./lru";
import { postersOf } from "./posters";
import { Turns } from "./turns";
import { DenseReader, decoded } from "./values";
import { zstd } from "./zstd";

/** If all pyramids together are larger than this, those that were used least recently are dropped. */
const mostLines = 96 << 20;
/** Steps of more bytes are pictures, clouds and the like: one is read for each moment. */
const smallStep = 4096;
/** Channels of fewer bytes are read: asking for an overview would take as long. */
const longChannel = 1 << 20;
/** A channel with its own clock needs a position for each entry. */
const mostClocked = 1 << 23;
/** How many times are read of a longer clock without an overview. */
const sampledTimes = 129;

export interface Origin {
  /** The row of the table. */
  readonly row: number;
  readonly isUnfinished: boolean;
  readonly recover: string;
  readonly arrived: (key: string) => void;
  /** Findings that somebody else has computed. */
  readonly findings: () => Promise<JsonObject | null>;
}

export class OpenEpisode {
  #readables: ReadonlyMap<string, Readable> = new Map();
  #facts: EpisodeFacts | undefined;
  readonly #readers = new Map<string, DenseReader>();
  readonly #clocks = new Map<string, Promise<Clock>>();
  readonly #lines = new Lru<Promise<Lines>>(mostLines);
  readonly #turns = new Turns(3);
  #overviews: Promise<Overviews | null> | undefined;
  #stepSeconds: Promise<Clock> | undefined;

  constructor(
    readonly handle: number,
    public episode: Episode,
    readonly origin: Origin,
  ) {
    this.#describe();
  }

  get facts(): EpisodeFacts {
    return this.#facts as EpisodeFacts;
  }

  #describe(): void {
    const found = readables(this.episode);
    this.#readables = new Map(found.map((one) => [one.facts.key, one]));
    this.#facts = episodeFacts(this.origin.row, this.episode, found, this.origin);
  }

  /** A recording has grown: `episode` is what it is now. */
  grow(episode: Episode): void {
    this.episode = episode;
    this.#clocks.clear();
    this.#readers.clear();
    this.#lines.deleteAll("");
    this.#stepSeconds = undefined;
    decoded.deleteAll(`${this.handle}/`);
    this.#describe();
  }

  async close(): Promise<void> {
    decoded.deleteAll(`${this.handle}/`);
    await (await this.#overviews)?.close();
    await this.episode.close();
  }

  #readable(key: string): Readable {
    const found = this.#readables.get(key);
    if (found === undefined) throw new ShardError("entry_not_found", "the episode has no such channel", { entry: key });
    return found;
  }

  #channel(key: string): Channel {
    const { channel } = this.#readable(key);
    if (channel === null) throw new ShardError("invalid_argument", "this has no steps", { entry: key });
    return channel;
  }

  /** What reads the values of a channel or residual. */
  #values(key: string): ReadValues {
    const { channel, residual } = this.#readable(key);
    if (residual !== null) return (start, end) => this.#residual(residual, start, end);
    if (channel?.layout !== "dense") {
      throw new ShardError("invalid_argument", "this channel has no numbers for each step", { entry: key });
    }
    let reader = this.#readers.get(key);
    if (reader === undefined) {
      reader = new DenseReader(`${this.handle}/${key}`, channel, this.episode.files);
      this.#readers.set(key, reader);
    }
    const from = reader;
    return (start, end, options) => from.window(start, end, options);
  }

  /** Residuals are read whole: their bits follow dimension by dimension. */
  async #residual(residual: Residual, start: number, end: number): Promise<TypedArray> {
    const key = `${this.handle}/${residual.block}/${residual.length}`;
    let values = decoded.get(key);
    if (values === undefined) {
      const size = residual.length * residual.dimensions;
      if (size > decoded.capacity) {
        const expected = `at most ${decoded.capacity} values`;
        throw new ShardError("limit_exceeded", "the residual is too large to show", { expected, found: size });
      }
      values = await residual.data();
      decoded.set(key, values, values.byteLength);
    }
    return values.subarray(start * residual.dimensions, end * residual.dimensions);
  }

  // --- clocks

  #clock(key: string): Promise<Clock> {
    let found = this.#clocks.get(key);
    if (found === undefined) {
      const { facts, channel } = this.#readable(key);
      found =
        channel === null || !channel.hasOwnClock
          ? Promise.resolve(stepClock(facts.length))
          : this.#ownClock(channel, facts.length);
      this.#clocks.set(key, found);
      found.catch(() => this.#clocks.delete(key));
    }
    return found;
  }

  async #ownClock(channel: Channel, length: number): Promise<Clock> {
    const { timebase, clocks: stored } = this.episode;
    const { startNs, samplingRateHz } = channel;
    const isRegular = startNs !== null && samplingRateHz !== null && channel.row?.timeBlock === null;
    if (isRegular && stored.timestamps === null && timebase.tickHz !== null) {
      const start = (Number(startNs - timebase.epochNs) / 1e9) * timebase.tickHz;
      return regularClock(length, samplingRateHz / timebase.tickHz, start);
    }
    const { tickHz } = timebase;
    const clock = channel.clockBlock();
    if (clock === null && (startNs === null || samplingRateHz === null)) return stepClock(length);
    // Without a rate, the entries are spread evenly over the episode.
    if (stored.timestamps === null && !tickHz) return regularClock(length, length / Math.max(1, this.episode.length));
    const read = (from: number, to: number) => channel.timestampsNs(from, to);
    const times = await this.#secondsOf(clock?.name ?? "", length, read);
    let place = (time: number) => time * (tickHz ?? 0);
    let stepsOff = 0;
    if (stored.timestamps !== null) {
      const steps = await this.#timesOfSteps();
      const last = steps.length - 1;
      stepsOff = last > 0 ? ((steps.off ?? 0) * last) / (steps.at(last) - steps.at(0)) : 0;
      let step = 0;
      place = (time) => {
        if (times.steps !== null) step = Math.max(0, stepAt(steps, time));
        while (step < last && steps.at(step + 1) <= time) step++;
        while (step > 0 && steps.at(step) > time) step--;
        return step + partOfStep(steps, step, time);
      };
    }
    const positions = times.seconds.map(place);
    if (times.steps === null) return secondsClock(positions);
    const sampled = sampledClock(times.steps, positions);
    return { ...sampled, off: sampled.off + stepsOff };
  }

  /** Seconds of all steps after the epoch. */
  #timesOfSteps(): Promise<Clock> {
    this.#stepSeconds ??= (async () => {
      const { length } = this.episode;
      const read = (from: number, to: number) => this.episode.timesNs(from, to);
      const { seconds, steps } = await this.#secondsOf("time/timestamps_ns", length, read);
      return steps === null ? secondsClock(seconds) : sampledClock(steps, seconds);
    })();
    return this.#stepSeconds;
  }

  /**
   * The entries of a clock in seconds after the epoch: all of them, or those of some steps of a clock that is too long:
   * the first of each bucket of its overview, or as many as may be asked for one by one.
   */
  async #secondsOf(
    block: string,
    length: number,
    read: (from: number, to: number) => Promise<BigInt64Array | null>,
  ): Promise<{ readonly seconds: Float64Array; readonly steps: Float64Array | null }> {
    const { epochNs } = this.episode.timebase;
    const inSeconds = (times: ArrayLike<bigint>) => Float64Array.from(times, (time) => Number(time - epochNs) / 1e9);
    if (length <= mostClocked) return { seconds: inSeconds((await read(0, length)) ?? []), steps: null };
    const overview = await this.#readOverview(block);
    if (overview !== null) {
      const { stepsPerBucket, minima, maxima } = overview;
      const steps = Float64Array.from({ length: minima.length }, (_, at) => at * stepsPerBucket);
      const ends = [...minima, maxima.at(-1)] as bigint[];
      return { seconds: inSeconds(ends), steps: Float64Array.of(...steps, length - 1) };
    }
    const owner = this.episode.files.find((file) => file.has(block));
    if (owner !== undefined && owner.entry(block).codec !== "none" && !(await owner.seekFrames(block))) {
      throw new ShardError("limit_exceeded", "a clock that is compressed in one piece is too long to show", {
        entry: block,
        expected: `at most ${mostClocked} entries, frames (wshard repack), or an overview (wshard repack --overview)`,
        found: length,
      });
    }
    const steps = Float64Array.from({ length: sampledTimes }, (_, at) =>
      Math.round((at * (length - 1)) / (sampledTimes - 1)),
    );
    const times: bigint[] = [];
    // A few at a time: each is a request where the file is far away.
    for (let first = 0; first < sampledTimes; first += 8) {
      const some = Array.from(steps.subarray(first, first + 8), (step) => read(step, step + 1));
      for (const time of await Promise.all(some)) times.push(time?.[0] ?? 0n);
    }
    return { seconds: inSeconds(times), steps };
  }

  // --- what panels ask

  async columns(
    key: string,
    dims: readonly number[],
    range: Range,
    width: number,
    options: ReadOptions,
  ): Promise<Columns> {
    const lines = await this.#linesOf(key);
    return lines.columns(dims, range, width, options);
  }

  async extent(key: string, dims: readonly number[]): Promise<readonly Extent[]> {
    return (await this.#linesOf(key)).extent(dims);
  }

  #linesOf(key: string): Promise<Lines> {
    let found = this.#lines.get(key);
    if (found === undefined) {
      found = this.#makeLines(key);
      const { facts } = this.#readable(parseDerived(key)?.b ?? key);
      // Two values and flags for each bucket of 16, and the levels above.
      this.#lines.set(key, found, Math.min(mostPyramid, facts.length * Math.min(64, facts.dimensions) * 3));
      found.catch(() => this.#lines.delete(key));
    }
    return found;
  }

  async #makeLines(key: string): Promise<Lines> {
    const shared = { arrived: () => this.origin.arrived(key), turn: (bytes: number) => this.#turns.plot(bytes) };
    const derived = parseDerived(key);
    if (derived !== null) {
      const [a, b] = [this.#readable(derived.a).facts, this.#readable(derived.b).facts];
      const stepBytes = stepBytesOf(a) + stepBytesOf(b);
      const clock = stepClock(Math.min(a.length, b.length));
      const read = this.#combined(derived, a, b);
      return new Lines({ ...shared, width: b.dimensions, stepBytes, clock, read, exact32: false, overview: null });
    }
    const readable = this.#readable(key);
    const { facts } = readable;
    const read = this.#values(key);
    const [clock, overview] = await Promise.all([this.#clock(key), this.#overview(readable)]);
    const exact32 = !["f64", "i32", "u32", "i64", "u64"].includes(facts.dtype);
    return new Lines({
      ...shared,
      width: facts.dimensions,
      stepBytes: stepBytesOf(facts),
      clock,
      read,
      exact32,
      overview,
    });
  }

  /** a + times · b, sample by sample. Of steps with a horizon the first value counts, which is about the step itself. */
  #combined({ times, isVariance, ...keys }: Derived, a: ChannelFacts, b: ChannelFacts): ReadValues {
    const [readA, readB] = [this.#values(keys.a), this.#values(keys.b)];
    const width = b.dimensions;
    return async (start, end, options) => {
      const [first, second] = await Promise.all([readA(start, end, options), readB(start, end, options)]);
      const found = new Float64Array((end - start) * width);
      for (let at = 0, step = 0; step < end - start; step++) {
        for (let dim = 0; dim < width; dim++, at++) {
          const other = Number(second[at]);
          found[at] = Number(first[step * a.dimensions + dim]) + times * (isVariance ? Math.sqrt(other) : other);
        }
      }
      return found;
    };
  }

  /** The extremes of a long channel, which a file beside the episode may have, by dimension. */
  async #overview({ facts }: Readable): Promise<readonly Pyramid[] | null> {
    if (facts.bytes < longChannel || this.origin.isUnfinished) return null;
    const found = await this.#readOverview(facts.key);
    if (found === null) return null;
    const { length, stepsPerBucket, buckets, minima, maxima } = found;
    const part = (values: TypedArray, dim: number) => {
      return { values: values as Numbers, offset: dim * buckets, stride: 1, first: 0, length: buckets };
    };
    return Array.from({ length: facts.dimensions }, (_, dim) =>
      Pyramid.ofOverview(length, stepsPerBucket, part(minima, dim), part(maxima, dim)),
    );
  }

  async #readOverview(block: string): Promise<Overview | null> {
    return (await (await this.#openOverviews())?.read(block).catch(() => null)) ?? null;
  }

  #openOverviews(): Promise<Overviews | null> {
    // What is wrong with an overview is no reason not to show the episode (W-OVW-8).
    this.#overviews ??= openOverviews(this.episode, { zstd }).catch(() => null);
    return this.#overviews;
  }

  /** Small images of a camera. */
  async posters(key: string, options: ReadOptions): Promise<readonly PosterImage[]> {
    if (this.#readable(key).facts.bytes < longChannel || this.origin.isUnfinished) return [];
    const overviews = await this.#openOverviews();
    return overviews === null ? [] : postersOf(overviews, key, options);
  }

  async window(key: string, start: number, stop: number, options: ReadOptions): Promise<Window> {
    const { facts } = this.#readable(key);
    const isPicture = facts.layout !== "dense" || stepBytesOf(facts) > smallStep;
    if (!isPicture) await this.#turns.settled;
    const end = isPicture ? await this.#turns.picture() : () => {};
    try {
      options.signal?.throwIfAborted();
      return await this.#window(key, start, stop, options);
    } finally {
      end();
    }
  }

  async #window(key: string, start: number, end: number, options: ReadOptions): Promise<Window> {
    const { residual } = this.#readable(key);
    if (residual !== null) return { kind: "dense", start, values: owned(await this.#values(key)(start, end, options)) };
    const channel = this.#channel(key);
    switch (channel.layout) {
      case "dense":
        return { kind: "dense", start, values: owned(await this.#values(key)(start, end, options)) };
      case "ragged":
        return { kind: "ragged", start, items: (await channel.window(start, end, options)).map(owned) };
      case "text":
        return { kind: "text", start, texts: await channel.window(start, end, options) };
      case "video": {
        const packets = await channel.window(start, end, options);
        const { extradata } = channel;
        return {
          kind: "video",
          start,
          packets: packets.map((packet) => ({ ...packet, data: packet.data.slice() })),
          extradata: extradata.slice(),
        };
      }
      default:
        return channel.data();
    }
  }

  async entryAt(key: string, position: number): Promise<number> {
    return stepAt(await this.#clock(key), position);
  }

  async positions(key: string, start: number, end: number): Promise<Float64Array> {
    const clock = await this.#clock(key);
    return Float64Array.from({ length: end - start }, (_, at) => clock.at(start + at));
  }

  async times(start: number, end: number): Promise<BigInt64Array | null> {
    const { length } = this.episode;
    return (await this.episode.timesNs(Math.min(start, length), Math.min(end, length)))?.slice() ?? null;
  }

  async intervals(key: string): Promise<Interval[]> {
    const { facts } = this.#readable(key);
    const lane = [...this.episode.labels.values()].find(({ block }) => block === facts.key);
    if (lane === undefined) return [];
    const { unit, intervals } = await lane.read();
    const { tickHz, epochNs } = this.episode.timebase;
    const isTimed = unit === "ns";
    const steps = isTimed && this.episode.clocks.timestamps !== null ? await this.#timesOfSteps() : null;
    const toStep = (value: bigint): number => {
      if (!isTimed) return Number(value);
      const seconds = Number(value - epochNs) / 1e9;
      if (steps !== null) return steps.index(seconds);
      return tickHz === null ? Number(value) : seconds * tickHz;
    };
    return intervals.map(({ start, end, text, source, confidence }) => ({
      start: toStep(start),
      end: toStep(end),
      text,
      source,
      confidence,
    }));
  }

  async scales(key: string): Promise<{ scales: Float32Array; window: number } | null> {
    const { residual } = this.#readable(key);
    const scales = (await residual?.scales()) ?? null;
    return scales === null || residual === null ? null : { scales: scales.slice(), window: residual.window };
  }

  get files(): OpenFiles {
    return new OpenFiles(this.episode.files);
  }

  async provenance(): Promise<JsonObject | null> {
    const found = await this.episode.provenance();
    return found === null ? null : { ...found };
  }

  async identity(): Promise<string | null> {
    const [file] = this.episode.files;
    if (!file?.has("meta/identity")) return null;
    return sha256(await file.read("meta/identity"));
  }

  findings(): Promise<JsonObject | null> {
    return this.origin.findings();
  }

  async traffic(): Promise<{ bytes: number; requests: number }> {
    let [bytes, requests] = [0, 0];
    for (const { source } of this.episode.files) {
      bytes += source.stats.bytes;
      requests += source.stats.requests;
    }
    return { bytes, requests };
  }
}

function stepBytesOf({ length, bytes }: ChannelFacts): number {
  return length === 0 ? 0 : bytes / length;
}

/** A copy, which may be transferred. */
function owned<T extends TypedArray>(values: T): T {
  return values.slice() as T;
}

/** How far a time is between a step and the next, 0 to 1; before the first and after the last, in the steps next to it. */
function partOfStep(steps: Clock, step: number, time: number): number {
  const at = Math.min(step, steps.length - 2);
  if (at < 0) return 0;
  const gap = steps.at(at + 1) - steps.at(at);
  return gap > 0 ? (time - steps.at(step)) / gap : 0;
}
