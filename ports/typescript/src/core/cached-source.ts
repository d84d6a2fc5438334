// A source in front of another one, for programs that show parts of large remote files.

import { ShardError } from "./errors.js";
import { type ReadOptions, type Source, type SourceLike, type SourceStats, toSource } from "./source.js";

/** Ranges that are nearer to each other than this are asked for as one. */
const largestGap = 65536;
/** Merging makes no range longer than this: short ones would wait for the rest. */
const longestMerged = 1 << 20;
/** Requests that run at the same time. Browsers allow no more to a server with HTTP/1.1. */
const mostRequests = 6;
const usualCapacity = 64 << 20;

/** A range that somebody waits for. */
interface Want {
  readonly source: Source;
  readonly start: number;
  readonly end: number;
  /** Ends the wait, with the bytes of the range or with a reason. */
  readonly done: (bytes: Uint8Array) => void;
  readonly fail: (reason: unknown) => void;
}

/** A range that the source was asked for, and who waits for it. */
interface Request {
  readonly source: Source;
  readonly start: number;
  readonly end: number;
  readonly wants: Set<Want>;
  readonly controller: AbortController;
}

interface Piece {
  readonly source: Source;
  readonly start: number;
  readonly bytes: Uint8Array;
}

/** Remembers pieces and runs requests: one for all files of an episode. */
class Desk {
  /** The piece that was used last comes last. */
  readonly #pieces = new Set<Piece>();
  readonly #waiting = new Set<Want>();
  readonly #running = new Set<Request>();
  readonly #capacity: number;
  #size = 0;
  #isPlanned = false;

  constructor(capacity: number) {
    this.#capacity = capacity;
  }

  /** A range that is remembered. */
  find(source: Source, start: number, end: number): Uint8Array | undefined {
    for (const piece of this.#pieces) {
      if (piece.source !== source || start < piece.start || end > piece.start + piece.bytes.length) continue;
      this.#pieces.delete(piece);
      this.#pieces.add(piece);
      return piece.bytes.subarray(start - piece.start, end - piece.start);
    }
    return undefined;
  }

  keep(piece: Piece): void {
    this.#pieces.add(piece);
    this.#size += piece.bytes.length;
    for (const oldest of this.#pieces) {
      if (this.#size <= this.#capacity) break;
      this.#forget(oldest);
    }
  }

  forget(source: Source): void {
    for (const piece of this.#pieces) if (piece.source === source) this.#forget(piece);
  }

  #forget(piece: Piece): void {
    this.#pieces.delete(piece);
    this.#size -= piece.bytes.length;
  }

  ask(want: Want): void {
    for (const request of this.#running) {
      if (request.source === want.source && request.start <= want.start && want.end <= request.end) {
        request.wants.add(want);
        return;
      }
    }
    this.#waiting.add(want);
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    // What is asked for meanwhile can be merged.
    setTimeout(() => {
      this.#isPlanned = false;
      this.#send();
    });
  }

  /** Nobody waits for this any longer. A request that nobody waits for ends. */
  drop(want: Want): void {
    this.#waiting.delete(want);
    for (const { wants, controller } of this.#running) if (wants.delete(want) && wants.size === 0) controller.abort();
  }

  failAll(source: Source, reason: unknown): void {
    for (const want of [...this.#waiting, ...[...this.#running].flatMap(({ wants }) => [...wants])]) {
      if (want.source === source) want.fail(reason);
    }
  }

  #send(): void {
    while (this.#waiting.size > 0 && this.#running.size < mostRequests) void this.#run(this.#next());
  }

  /** The shortest range that is waited for, with its neighbours. */
  #next(): Request {
    const sorted = [...this.#waiting].sort((a, b) => a.end - a.start - (b.end - b.start));
    const { source } = sorted[0];
    let { start, end } = sorted[0];
    const near = sorted.filter((one) => one.source === source).sort((a, b) => a.start - b.start);
    const at = near.indexOf(sorted[0]);
    const fits = (one: Want): boolean => {
      const [from, to] = [Math.min(start, one.start), Math.max(end, one.end)];
      if (one.start - end >= largestGap || start - one.end >= largestGap || to - from > longestMerged) return false;
      [start, end] = [from, to];
      return true;
    };
    for (let next = at + 1; next < near.length && fits(near[next]); ) next++;
    for (let next = at - 1; next >= 0 && fits(near[next]); ) next--;
    const wants = new Set(near.filter((one) => start <= one.start && one.end <= end));
    for (const want of wants) this.#waiting.delete(want);
    return { source, start, end, wants, controller: new AbortController() };
  }

  async #run(request: Request): Promise<void> {
    const { source, start, end, wants, controller } = request;
    this.#running.add(request);
    try {
      const bytes = await source.read(start, end - start, { signal: controller.signal });
      this.keep({ source, start, bytes });
      for (const want of wants) want.done(bytes.subarray(want.start - start, want.end - start));
    } catch (error) {
      for (const want of wants) want.fail(error);
    }
    this.#running.delete(request);
    this.#send();
  }
}

/**
 * A source that remembers what it read last, asks for ranges near each other at once, and makes at most six requests at
 * the same time, the shortest first. The files beside it share all this.
 */
export class CachedSource implements Source {
  readonly sibling?: (path: string) => Promise<Source>;
  readonly #source: Source;
  #desk: Desk;

  /** `capacity` is how many bytes it remembers at most: 64 MiB if it is not given. */
  constructor(source: SourceLike, capacity = usualCapacity) {
    const from = toSource(source);
    this.#source = from;
    this.#desk = new Desk(capacity);
    if (!from.sibling) return;
    this.sibling = async (path) => {
      const found = new CachedSource((await from.sibling?.(path)) as Source);
      found.#desk = this.#desk;
      return found;
    };
  }

  get path(): string | undefined {
    return this.#source.path;
  }

  /** How often the other source was asked, and for how much. */
  get stats(): Readonly<SourceStats> {
    return this.#source.stats;
  }

  get isRemote(): boolean {
    return this.#source.isRemote ?? false;
  }

  async start(at = 0): Promise<{ size: number; head: Uint8Array }> {
    this.#desk.forget(this.#source); // it may be another version now
    const found = await this.#source.start(at);
    this.#desk.keep({ source: this.#source, start: at, bytes: found.head });
    return found;
  }

  async read(offset: number, length: number, { signal }: ReadOptions = {}): Promise<Uint8Array> {
    signal?.throwIfAborted();
    const source = this.#source;
    const end = offset + length;
    const known = length === 0 ? new Uint8Array(0) : this.#desk.find(source, offset, end);
    if (known) return known;
    return new Promise((resolve, reject) => {
      const finish = () => {
        this.#desk.drop(want);
        signal?.removeEventListener("abort", abort);
      };
      const fail = (reason: unknown) => {
        finish();
        reject(reason);
      };
      const done = (bytes: Uint8Array) => {
        finish();
        resolve(bytes);
      };
      const abort = () => fail(signal?.reason);
      const want = { source, start: offset, end, done, fail };
      signal?.addEventListener("abort", abort);
      this.#desk.ask(want);
    });
  }

  async close(): Promise<void> {
    this.#desk.forget(this.#source);
    this.#desk.failAll(this.#source, new ShardError("closed", "the source is closed", { path: this.path }));
    await this.#source.close();
  }
}
