// Where the bytes of a new file go.

import { ByteBuffer, concat } from "./bytes.js";
import { ioError } from "./source.js";

/** Takes the data of a file piece by piece, and its head at the end. */
export interface Sink {
  /** A path; undefined if the file has none. */
  readonly path: string | undefined;
  /** Called once, before the data. The size of the head is undefined if it is not known yet. */
  begin(headSize: number | undefined): Promise<void>;
  /** Takes the next bytes of data. They may change when this is done. */
  append(bytes: Uint8Array): Promise<void>;
  /** Takes the head, which stands in front of the data, and completes the file. */
  finish(head: Uint8Array): Promise<void>;
  /** Leaves nothing behind. */
  abort(): Promise<void>;
}

/** Collects a file in memory. */
export class BytesSink implements Sink {
  readonly path = undefined;
  #data = new ByteBuffer();
  #bytes: Uint8Array | undefined;

  /** The file; undefined until it is finished. */
  get bytes(): Uint8Array | undefined {
    return this.#bytes;
  }

  async begin(): Promise<void> {}

  async append(bytes: Uint8Array): Promise<void> {
    this.#data.append(bytes);
  }

  async finish(head: Uint8Array): Promise<void> {
    this.#bytes = concat([head, this.#data.bytes]);
    this.#data = new ByteBuffer();
  }

  async abort(): Promise<void> {
    this.#data = new ByteBuffer();
  }
}

/**
 * Writes a file to a stream. The data of a container waits in memory until its head, which comes first, is known. A shard
 * of a dataset has no head, and is written as it grows.
 */
export class StreamSink implements Sink {
  readonly path = undefined;
  readonly #stream: WritableStream<Uint8Array>;
  #hasHead = true;
  #data = new ByteBuffer();

  constructor(stream: WritableStream<Uint8Array>) {
    this.#stream = stream;
  }

  async begin(headSize: number | undefined): Promise<void> {
    this.#hasHead = headSize !== 0;
  }

  async append(bytes: Uint8Array): Promise<void> {
    if (this.#hasHead) this.#data.append(bytes);
    else await this.#write([new Uint8Array(bytes)], false);
  }

  async finish(head: Uint8Array): Promise<void> {
    const parts = this.#hasHead ? [head, this.#data.bytes] : [];
    this.#data = new ByteBuffer();
    await this.#write(parts, true);
  }

  async abort(): Promise<void> {
    this.#data = new ByteBuffer();
    if (!this.#stream.locked) await this.#stream.abort().catch(() => undefined);
  }

  async #write(parts: readonly Uint8Array[], isLast: boolean): Promise<void> {
    const writer = this.#stream.getWriter();
    try {
      for (const part of parts) {
        await writer.ready;
        await writer.write(part);
      }
      if (isLast) await writer.close();
    } catch (error) {
      throw ioError("cannot write", error);
    } finally {
      writer.releaseLock();
    }
  }
}
