// Where bytes come from. Each kind of origin becomes a list of named files, whose sources the reader takes.

import {
  BlobSource,
  BytesSource,
  CachedSource,
  HttpSource,
  type ReadOptions,
  ShardError,
  type Source,
  type SourceStats,
} from "@shard-format/core";

/** Ranges of remote files that are kept, of all files together. */
const keptRanges = 64 << 20;

/** A file that may be opened. */
export interface ListedFile {
  /** A path with slashes, relative to what was opened; or an address. */
  readonly name: string;
  readonly size: number;
  /** What others have found out about its kind: `sidecar`, `episode`, … Undefined: its name and its bytes say. */
  readonly kind?: string;
  /** What `wshard view` calls it. */
  readonly number?: number;
  /** Of a recording: whether its recorder still writes. */
  readonly isLive?: boolean | null;
  open(): Source;
}

/** A source under another name, which finds its siblings among the listed files. */
class NamedSource implements Source {
  readonly isRemote: boolean;

  constructor(
    readonly path: string,
    private readonly source: Source,
    private readonly files: ReadonlyMap<string, ListedFile>,
  ) {
    this.isRemote = source.isRemote ?? false;
  }

  get stats(): Readonly<SourceStats> {
    return this.source.stats;
  }

  start(at?: number): Promise<{ size: number; head: Uint8Array }> {
    return this.source.start(at);
  }

  read(offset: number, length: number, options?: ReadOptions): Promise<Uint8Array> {
    return this.source.read(offset, length, options);
  }

  async sibling(path: string): Promise<Source> {
    const folder = this.path.slice(0, this.path.lastIndexOf("/") + 1);
    const found = path.split("/").includes("..") ? undefined : this.files.get(folder + path);
    if (found === undefined) {
      throw new ShardError("missing_file", "this file was not opened together with the others", {
        path: folder + path,
      });
    }
    return new NamedSource(found.name, found.open(), this.files);
  }

  close(): Promise<void> {
    return this.source.close();
  }
}

/** A part of another source: an episode in a pack. */
export class PartSource implements Source {
  readonly stats: SourceStats = { requests: 0, bytes: 0 };
  readonly isRemote: boolean;

  constructor(
    readonly path: string,
    private readonly source: Source,
    private readonly offset: number,
    private readonly size: number,
  ) {
    this.isRemote = source.isRemote ?? false;
  }

  async start(at = 0): Promise<{ size: number; head: Uint8Array }> {
    return { size: this.size, head: await this.read(at, Math.min(this.size - at, 65536)) };
  }

  read(offset: number, length: number, options?: ReadOptions): Promise<Uint8Array> {
    if (offset + length > this.size) {
      const details = { path: this.path, expected: `${offset + length} bytes`, found: this.size };
      return Promise.reject(new ShardError("truncated", "the file ends before it should", details));
    }
    this.stats.requests++;
    this.stats.bytes += length;
    return this.source.read(this.offset + offset, length, options);
  }

  async close(): Promise<void> {}
}

/** The journal of a recording: it grows, and what was read stays as it is. */
class JournalSource implements Source {
  readonly #source: HttpSource;
  readonly #kept: CachedSource;

  constructor(source: HttpSource) {
    source.mayGrow = true;
    this.#source = source;
    this.#kept = new CachedSource(source, keptRanges);
  }

  get path(): string {
    return this.#source.path;
  }

  get stats(): Readonly<SourceStats> {
    return this.#source.stats;
  }

  get isRemote(): boolean {
    return true;
  }

  /** Not of the cached one, which would forget what it has: the size may be another now. */
  start(at?: number): Promise<{ size: number; head: Uint8Array }> {
    return this.#source.start(at);
  }

  read(offset: number, length: number, options?: ReadOptions): Promise<Uint8Array> {
    return this.#kept.read(offset, length, options);
  }

  close(): Promise<void> {
    return this.#kept.close();
  }
}

/** The files of a folder, by name. */
export type Listing = ReadonlyMap<string, ListedFile>;

/** A source of a file with the name that the user knows. */
export function openListed(file: ListedFile, files: Listing): Source {
  return new NamedSource(file.name, file.open(), files);
}

export function listBlobs(files: readonly { readonly path: string; readonly file: Blob }[]): Listing {
  return listed(files.map(({ path, file }) => ({ name: path, size: file.size, open: () => new BlobSource(file) })));
}

export function listEmbedded(files: readonly { readonly name: string; readonly base64: string }[]): Listing {
  return listed(
    files.map(({ name, base64 }) => {
      const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
      return { name, size: bytes.length, open: () => new BytesSource(bytes) };
    }),
  );
}

/** A file of `files.json`. */
export interface ServedFile {
  readonly number: number;
  readonly name: string;
  readonly size: number;
  readonly kind: string;
  readonly live?: boolean | null;
}

/** `fetch` from `wshard view`, whose end needs other words than a server that refuses pages of others. */
export async function fetchServed(input: RequestInfo | URL, init?: RequestInit): Promise<Response> {
  try {
    return await fetch(input, init);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // cancelled
    throw new ShardError("io_error", "wshard view does not answer", { path: String(input) });
  }
}

export function listServed(base: string, token: string, files: readonly ServedFile[]): Listing {
  const headers = { authorization: `Bearer ${token}` };
  return listed(
    files.map(({ number, name, size, kind, live = null }) => ({
      name,
      size,
      kind,
      number,
      isLive: live,
      open: () => {
        const source = new HttpSource(new URL(`f/${number}`, base), { headers, fetch: fetchServed });
        return kind === "recording" ? new JournalSource(source) : new CachedSource(source, keptRanges);
      },
    })),
  );
}

/** A file of a notebook: `ask` gets ranges from the kernel. */
export function listAsked(
  files: readonly { readonly name: string; readonly size: number }[],
  ask: (file: string, offset: number, length: number) => Promise<Uint8Array>,
): Listing {
  return listed(
    files.map(({ name, size }) => ({
      name,
      size,
      open: () =>
        new CachedSource(
          {
            size: async () => BigInt(size),
            read: (offset: bigint, length: bigint) => ask(name, Number(offset), Number(length)),
          },
          keptRanges,
        ),
    })),
  );
}

/** A file behind an address. Its siblings are beside it, at other addresses. */
export function openUrl(url: string): Source {
  const source = new HttpSource(url);
  const isJournal = new URL(url).pathname.endsWith(".partial");
  return isJournal ? new JournalSource(source) : new CachedSource(source, keptRanges);
}

function listed(files: readonly ListedFile[]): Listing {
  return new Map(files.map((file) => [file.name, file]));
}
