// The page's side of the worker: the table of episodes, and the reads of those that are open.

import { batch, type ReadonlySignal, type Signal, signal } from "@preact/signals";
import type {
  EpisodeRow,
  FromWorker,
  Given,
  LeftOut,
  Listed,
  OpenedContainer,
  OpenedEpisode,
  Problem,
  ToWorker,
} from "../worker/protocol";
import { startWorker } from "../worker/start";
import { EpisodeModel } from "./episode";
import type { EpisodeFacts } from "./facts";
import type { FileReads } from "./files";
import type { ReadOptions, Reads } from "./reads";

/** An error of the reader, in its words. */
export class ReadError extends Error {
  override readonly name = "ReadError";

  constructor(
    message: string,
    /** The code of a ShardError; empty if it is no such error. */
    readonly code: string,
  ) {
    super(message);
  }
}

interface Waiting {
  resolve(value: unknown): void;
  reject(reason: unknown): void;
}

/** A worker that does not answer for so long, in milliseconds, is ended. */
const patience = 30_000;

/** Gives ranges of files to the worker: a notebook does. */
export type GiveRange = (file: string, offset: number, length: number) => Promise<Uint8Array>;

interface OpenModel {
  readonly arrivals: Map<string, Signal<number>>;
  readonly grown: (facts: EpisodeFacts) => void;
}

/** A file that holds no episode, and is open. */
export interface ContainerModel extends OpenedContainer {
  readonly reads: FileReads;
  close(): void;
}

export class Library {
  readonly rows = signal<readonly EpisodeRow[]>([]);
  /** What is there and has no row. */
  readonly leftOut = signal<readonly LeftOut[]>([]);
  /** Whether rows may still follow. */
  readonly isListing = signal(false);
  /** Why the worker ended; null while it works. */
  readonly failure = signal<string | null>(null);
  readonly #worker: Worker;
  readonly #waiting = new Map<number, Waiting>();
  readonly #models = new Map<number, OpenModel>();
  readonly #thumbnails = new Map<number, Promise<Blob | null>>();
  readonly #giveRange: GiveRange;
  #questions = 0;
  /** Asks the worker from time to time whether it still works, or waits for its answer. */
  #watching: ReturnType<typeof setTimeout> | undefined;

  constructor(giveRange: GiveRange) {
    this.#giveRange = giveRange;
    this.#worker = startWorker("read");
    this.#worker.onmessage = ({ data }: MessageEvent<FromWorker>) => this.#receive(data);
    this.#worker.onerror = (event) => this.#fail(`the reader stopped: ${event.message}`);
  }

  #post(message: ToWorker): void {
    this.#worker.postMessage(message);
  }

  async list(given: Given): Promise<Listed> {
    this.isListing.value = given.kind !== "url";
    try {
      return (await this.#ask("list", [given])) as Listed;
    } catch (error) {
      this.isListing.value = false;
      throw error;
    }
  }

  async open(
    row: number,
  ): Promise<{ episode: EpisodeModel; close: () => void; grown: ReadonlySignal<EpisodeModel | null> }> {
    const { handle, facts } = (await this.#ask("open", [row])) as OpenedEpisode;
    const arrivals = new Map<string, Signal<number>>();
    const reads = this.#readsOf(handle, arrivals);
    const grown = signal<EpisodeModel | null>(null);
    this.#models.set(handle, {
      arrivals,
      grown: (now) => {
        grown.value = new EpisodeModel(now, reads);
      },
    });
    const close = () => {
      this.#models.delete(handle);
      void this.#ask("close", [handle]).catch(() => {});
    };
    return { episode: new EpisodeModel(facts, reads), close, grown };
  }

  /** A small image of an episode, as a JPEG or PNG file; null if it has none. */
  thumbnail(row: number): Promise<Blob | null> {
    let found = this.#thumbnails.get(row);
    if (found === undefined) {
      found = this.#ask("thumbnail", [row]).then((bytes) => (bytes === null ? null : new Blob([bytes as BlobPart])));
      found.catch(() => {});
      this.#thumbnails.set(row, found);
    }
    return found;
  }

  /** Opens a file that does not hold an episode: it has entries and their bytes. */
  async container(row: number): Promise<ContainerModel> {
    const opened = (await this.#ask("container", [row])) as OpenedContainer;
    return {
      ...opened,
      reads: this.#fileReadsOf(opened.handle),
      close: () => void this.#ask("close", [opened.handle]).catch(() => {}),
    };
  }

  #asker(handle: number) {
    return (method: string) =>
      (...given: unknown[]): Promise<never> => {
        const last = given.at(-1);
        const isOptions = typeof last === "object" && last !== null && "signal" in last;
        const options = isOptions ? (given.pop() as ReadOptions) : {};
        return this.#ask(method, [handle, ...given], options.signal) as Promise<never>;
      };
  }

  #fileReadsOf(handle: number): FileReads {
    const ask = this.#asker(handle);
    return {
      entries: ask("entries"),
      bytes: ask("bytes"),
      frames: ask("frames"),
      checkEntry: ask("checkEntry"),
      computeIdentity: ask("computeIdentity"),
      signature: ask("signature"),
      checkSignature: ask("checkSignature"),
    };
  }

  #readsOf(handle: number, arrivals: Map<string, Signal<number>>): Reads {
    const ask = this.#asker(handle);
    return {
      ...this.#fileReadsOf(handle),
      columns: ask("columns"),
      window: ask("window"),
      entryAt: ask("entryAt"),
      positions: ask("positions"),
      times: ask("times"),
      extent: ask("extent"),
      intervals: ask("intervals"),
      posters: ask("posters"),
      scales: ask("scales"),
      provenance: ask("provenance"),
      identity: ask("identity"),
      findings: ask("findings"),
      traffic: ask("traffic"),
      arrived: (key) => {
        let found = arrivals.get(key);
        if (found === undefined) {
          found = signal(0);
          arrivals.set(key, found);
        }
        return found;
      },
    };
  }

  #ask(method: string, args: readonly unknown[], ending?: AbortSignal): Promise<unknown> {
    if (this.failure.peek() !== null) return Promise.reject(new ReadError(this.failure.peek() ?? "", ""));
    ending?.throwIfAborted();
    const id = this.#questions++;
    return new Promise((resolve, reject) => {
      const abort = () => {
        this.#post({ cancel: id });
        this.#waiting.delete(id);
        reject(ending?.reason);
      };
      const finish = () => ending?.removeEventListener("abort", abort);
      this.#waiting.set(id, {
        resolve: (value) => {
          finish();
          resolve(value);
        },
        reject: (reason) => {
          finish();
          reject(reason);
        },
      });
      ending?.addEventListener("abort", abort);
      this.#post({ id, method, args });
      this.#watch();
    });
  }

  /** A worker that hangs answers no ping either. One that waits for a server does. */
  #watch(): void {
    if (this.#watching !== undefined) return;
    this.#watching = setTimeout(() => {
      if (this.#waiting.size === 0) {
        this.#watching = undefined;
        return;
      }
      this.#watching = setTimeout(() => this.#fail("the reader did not answer for 30 seconds"), patience);
      const done = () => {
        clearTimeout(this.#watching);
        this.#watching = undefined;
      };
      this.#ask("ping", []).then(done, done);
    }, patience / 3);
  }

  /** Ends the worker and everything that waits for it. */
  end(): void {
    this.#fail("closed");
  }

  #fail(message: string): void {
    this.#worker.terminate();
    clearTimeout(this.#watching);
    this.failure.value = message;
    this.isListing.value = false;
    for (const { reject } of this.#waiting.values()) reject(new ReadError(message, ""));
    this.#waiting.clear();
  }

  #receive(data: FromWorker): void {
    if ("id" in data) {
      const waiting = this.#waiting.get(data.id);
      this.#waiting.delete(data.id);
      if ("problem" in data) waiting?.reject(errorOf(data.problem));
      else waiting?.resolve(data.value);
    } else if ("arrived" in data) {
      const arrivals = this.#models.get(data.handle)?.arrivals.get(data.arrived);
      if (arrivals !== undefined) arrivals.value++;
    } else if ("rows" in data) {
      this.#addRows(data.rows, data.isComplete);
    } else if ("leftOut" in data) {
      this.leftOut.value = data.leftOut;
    } else if ("grown" in data) {
      const model = this.#models.get(data.grown);
      batch(() => {
        model?.grown(data.facts);
        for (const count of model?.arrivals.values() ?? []) count.value++;
      });
    } else {
      const { want, file, offset, length } = data;
      this.#giveRange(file, offset, length).then(
        (bytes) => this.#post({ given: want, bytes }),
        ({ message }: Error) => this.#post({ given: want, refused: message }),
      );
    }
  }

  #addRows(rows: readonly EpisodeRow[], isComplete: boolean): void {
    batch(() => {
      if (rows.length > 0) {
        const all = new Map(this.rows.peek().map((row) => [row.number, row]));
        for (const row of rows) all.set(row.number, row);
        this.rows.value = [...all.values()].sort((a, b) => a.number - b.number);
      }
      if (isComplete) this.isListing.value = false;
    });
  }
}

function errorOf({ name, message, code }: Problem): Error {
  return name === "AbortError" ? new DOMException(message, name) : new ReadError(message, code);
}
