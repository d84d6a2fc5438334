// Where the bytes of a file come from.

import { plainBytes } from "./bytes.js";
import { invalid, ShardError } from "./errors.js";

/** Anything that gives bytes at an offset: the interface of @mcap/core. */
export interface IReadable {
  size(): Promise<bigint>;
  read(offset: bigint, size: bigint): Promise<Uint8Array>;
}

/** How often a source was asked, and for how much. */
export interface SourceStats {
  requests: number;
  bytes: number;
}

/** How something is read. */
export interface ReadOptions {
  /** Ends the read, which then fails with the reason of the signal. */
  signal?: AbortSignal | undefined;
}

/** A file that can be read at any offset. */
export interface Source {
  /** A path or a URL; undefined for bytes in memory. */
  readonly path: string | undefined;
  readonly stats: Readonly<SourceStats>;
  /** Whether an answer takes so long that two requests at once are better than one after the other. */
  readonly isRemote?: boolean;
  /**
   * The size that the file has now, and as many of its bytes from `at` on as one request gives cheaply: 64 at least, if it
   * has them. A later call, for a file that grows, accepts another size.
   */
  start(at?: number): Promise<{ size: number; head: Uint8Array }>;
  /** Exactly these bytes, which lie inside the file. They may be shared: nobody may change them. */
  read(offset: number, length: number, options?: ReadOptions): Promise<Uint8Array>;
  /** A file beside this one, by a relative path with slashes that was found safe (S-MAN-4). */
  sibling?(path: string): Promise<Source>;
  close(): Promise<void>;
}

/** What can be opened. A string or URL is an address of http or https. */
export type SourceLike = Source | IReadable | Uint8Array | ArrayBuffer | Blob | URL | string;

/** How many bytes are read first, of sources that are cheap to ask again. */
export const firstRead = 4096;
/** The same of a server: most heads, and what stands behind short ones, come with the first answer. */
export const firstRequest = 65536;

/** Makes a source of what can be opened. */
export function toSource(given: SourceLike): Source {
  if (given instanceof Uint8Array) return new BytesSource(given);
  if (given instanceof ArrayBuffer) return new BytesSource(new Uint8Array(given));
  if (given instanceof Blob) return new BlobSource(given);
  if (given instanceof URL || typeof given === "string") {
    const url = String(given);
    if (/^https?:/i.test(url)) return new HttpSource(url);
    throw invalid("no http or https address; @shard-format/core/node opens paths", { found: url });
  }
  if ("start" in given) return given;
  return new ReadableSource(given);
}

/** Fails if a source gave another number of bytes than it was asked for. */
export function checkLength(found: number, expected: number, offset: number): void {
  if (found === expected) return;
  throw new ShardError("truncated", "the file ends before it should", {
    expected: `${expected} bytes at offset ${offset}`,
    found,
  });
}

/** An error of the operating system, a server or a source of the caller. */
export function ioError(problem: string, cause: unknown, path?: string): ShardError {
  return cause instanceof ShardError ? cause : new ShardError("io_error", problem, { cause, path });
}

/** Bytes in memory. Reading copies nothing. */
export class BytesSource implements Source {
  readonly path = undefined;
  readonly stats: SourceStats = { requests: 0, bytes: 0 };
  readonly #bytes: Uint8Array;

  constructor(bytes: Uint8Array) {
    this.#bytes = plainBytes(bytes);
  }

  async start(at = 0): Promise<{ size: number; head: Uint8Array }> {
    return { size: this.#bytes.length, head: this.#bytes.subarray(at) };
  }

  async read(offset: number, length: number): Promise<Uint8Array> {
    const found = this.#bytes.subarray(offset, offset + length);
    checkLength(found.length, length, offset);
    return found;
  }

  async close(): Promise<void> {}
}

/** What sources have in common that are asked for each range. */
class AskedSource implements Source {
  declare readonly path: string | undefined;
  readonly stats: SourceStats = { requests: 0, bytes: 0 };
  readonly #size: () => number | Promise<number>;
  readonly #ask: (offset: number, length: number) => Promise<Uint8Array>;

  constructor(
    path: string | undefined,
    size: () => number | Promise<number>,
    ask: (offset: number, length: number) => Promise<Uint8Array>,
  ) {
    this.path = path;
    this.#size = size;
    this.#ask = ask;
  }

  async start(at = 0): Promise<{ size: number; head: Uint8Array }> {
    const size = await this.#io(this.#size);
    return { size, head: await this.read(at, Math.min(size - at, firstRead)) };
  }

  async read(offset: number, length: number, { signal }: ReadOptions = {}): Promise<Uint8Array> {
    if (length <= 0) return new Uint8Array(0); // below 0 at the start of what follows a file that got shorter
    signal?.throwIfAborted();
    this.stats.requests++;
    const found = await this.#io(() => this.#ask(offset, length));
    this.stats.bytes += found.length;
    checkLength(found.length, length, offset);
    return found;
  }

  async #io<T>(run: () => T | Promise<T>): Promise<T> {
    try {
      return await run();
    } catch (error) {
      throw ioError("cannot read", error, this.path);
    }
  }

  async close(): Promise<void> {}
}

/** A Blob or a File of a browser. */
export class BlobSource extends AskedSource {
  constructor(blob: Blob) {
    super(
      (blob as File).name,
      () => blob.size,
      async (offset, length) => new Uint8Array(await blob.slice(offset, offset + length).arrayBuffer()),
    );
  }
}

/** Anything that follows the interface of @mcap/core. */
export class ReadableSource extends AskedSource {
  constructor(readable: IReadable) {
    super(
      undefined,
      async () => Number(await readable.size()),
      async (offset, length) => plainBytes(await readable.read(BigInt(offset), BigInt(length))),
    );
  }
}

/** Options of a file behind a URL. */
export interface HttpOptions {
  /** Replaces the global fetch. */
  fetch?: typeof fetch;
  /** Headers of every request. */
  headers?: Record<string, string>;
  /** Ends all requests. */
  signal?: AbortSignal;
}

/**
 * A file behind a URL, read with range requests. It fails if the file changes between two requests: each answer must
 * have the size and the ETag, or else the time of the last change, of the first one. `If-Range` would say no more, and
 * makes a browser ask the other origin for leave first.
 */
export class HttpSource implements Source {
  readonly path: string;
  readonly stats: SourceStats = { requests: 0, bytes: 0 };
  readonly isRemote = true;
  readonly #options: HttpOptions;
  #size: number | undefined;
  /** What tells this version of the file from others: its ETag or the time of its last change, if the server tells one. */
  declare tag: string | null | undefined;
  /** Whether the file may change while it is read, as a recording does, which only grows. */
  declare mayGrow: boolean | undefined;

  constructor(url: string | URL, options: HttpOptions = {}) {
    this.path = String(url);
    this.#options = options;
  }

  async start(at = 0): Promise<{ size: number; head: Uint8Array }> {
    this.#size = this.tag = undefined;
    const head = await this.#request(at, firstRequest);
    return { size: this.#size as unknown as number, head };
  }

  async read(offset: number, length: number, { signal }: ReadOptions = {}): Promise<Uint8Array> {
    return length === 0 ? new Uint8Array(0) : this.#request(offset, length, signal);
  }

  /** The percent-encoded path takes the place of the last part of the URL; the query stays. */
  async sibling(path: string): Promise<Source> {
    const url = new URL(this.path);
    const parts = path.split("/");
    if (parts.includes(".."))
      throw new ShardError("unsafe_path", "a path leaves its folder", { rule: "S-MAN-4", found: path });
    url.pathname = url.pathname.replace(/[^/]*$/, "") + parts.map(encodeURIComponent).join("/");
    return new HttpSource(url, this.#options);
  }

  async close(): Promise<void> {}

  #error(problem: string, details: { expected?: string; found?: string | number | bigint } = {}): ShardError {
    return new ShardError("io_error", problem, { ...details, path: this.path });
  }

  /** Asks for a range; the first request may reach over the end of the file. */
  async #request(offset: number, length: number, one?: AbortSignal): Promise<Uint8Array> {
    this.stats.requests++;
    const { fetch: ask = fetch, headers, signal: all } = this.#options;
    const signal = one && all ? AbortSignal.any([one, all]) : (one ?? all ?? null);
    try {
      const response = await ask(this.path, {
        headers: { ...headers, range: `bytes=${offset}-${offset + length - 1}` },
        // Where its cache may keep them, Chromium asks for the ranges of one address one after the other.
        cache: "no-store",
        signal,
      });
      const expected = this.#expected(response, offset, length);
      const bytes = await this.#body(response, expected);
      this.stats.bytes += bytes.length;
      return bytes;
    } catch (error) {
      signal?.throwIfAborted();
      throw ioError("cannot read", error, this.path);
    }
  }

  /** Checks the head of an answer, and returns how many bytes its body must have. */
  #expected(response: Response, offset: number, length: number): number {
    const encoding = response.headers.get("content-encoding");
    if (encoding && encoding !== "identity") throw this.#error("the server compresses ranges", { found: encoding });
    const range = response.headers.get("content-range") ?? "";
    const match = /^bytes (?:(\d+)-(\d+)|\*)\/(\d+)$/.exec(range) ?? [];
    const [, first, last, size] = match.map(Number);
    if (response.status === 416 && this.#size === undefined && size <= offset) {
      this.#size = size; // nothing is there yet
      return 0;
    }
    if (response.status === 200) return this.#whole(response, offset, length);
    if (response.status !== 206) throw this.#error("the server refuses", { expected: "206", found: response.status });
    if (size === undefined) {
      throw this.#error("no Content-Range, or one that Access-Control-Expose-Headers hides", { found: range });
    }
    const wanted = Math.min(offset + length, size) - 1;
    if (first !== offset || last !== wanted) {
      throw this.#error("the server gives another range", { expected: `${offset}-${wanted}`, found: range });
    }
    const tag = response.headers.get("etag") ?? response.headers.get("last-modified");
    const isOther = (this.#size ?? size) !== size || (this.tag && tag && this.tag !== tag);
    if (isOther && !this.mayGrow) {
      const expected = `${this.#size} bytes, ${this.tag}`;
      throw this.#error("the file changed while it was read", { expected, found: `${size} bytes, ${tag}` });
    }
    this.#size = size;
    this.tag ??= tag;
    return last - first + 1;
  }

  /** A server that ignores ranges sends the whole file: only a file that the first request asks for whole is taken. */
  #whole(response: Response, offset: number, length: number): number {
    const size = Number(response.headers.get("content-length") ?? Number.NaN);
    if (offset === 0 && size <= length && (this.#size === undefined || this.#size === size)) {
      this.#size = size;
      return size;
    }
    void response.body?.cancel();
    throw this.#error("the server ignores ranges", { expected: "206", found: 200 });
  }

  /** The body, which may lie about its length. */
  async #body(response: Response, expected: number): Promise<Uint8Array> {
    const out = new Uint8Array(expected);
    const reader = response.body?.getReader();
    let at = 0;
    for (let part = await reader?.read(); part?.value; part = await reader?.read()) {
      if (at + part.value.length > expected) {
        void reader?.cancel();
        throw this.#error("the server sends more bytes than it says");
      }
      out.set(part.value, at);
      at += part.value.length;
    }
    if (at !== expected) throw this.#error("the answer is cut off", { expected: `${expected} bytes`, found: at });
    return out;
  }
}
