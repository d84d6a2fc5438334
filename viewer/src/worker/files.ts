// What can be asked about the files of an episode, or about one that holds none: entries, bytes, frames, checks.

import {
  computeIdentity,
  parseSignature,
  type ReadOptions,
  ShardError,
  type ShardReader,
  type Signature,
  sha256,
  verifyIdentity,
  verifySignature,
} from "@shard-format/core";
import type { EntryFacts } from "../model/facts";
import type { ComputedIdentity, FileReads, Frames, SignatureFacts } from "../model/files";
import { baseName, entryFacts } from "./facts";

const identityEntry = "meta/identity";
/** A signature is a short JSON text. */
const mostSignature = 16 << 10;

export class OpenFiles implements FileReads {
  constructor(readonly readers: readonly ShardReader[]) {}

  #reader(file: string, entry?: string): ShardReader {
    const found = this.readers.find((one) => (one.path ?? "") === file && (entry === undefined || one.has(entry)));
    if (found === undefined) throw new ShardError("entry_not_found", "no such entry", { path: file, entry });
    return found;
  }

  async entries(): Promise<EntryFacts[]> {
    return this.readers.flatMap(entryFacts);
  }

  async bytes(file: string, entry: string, start: number, end: number, options?: ReadOptions): Promise<Uint8Array> {
    const reader = this.#reader(file, entry);
    const size = reader.entry(entry).origSize;
    return (await reader.readRange(entry, Math.min(start, size), Math.min(end, size), options)).slice();
  }

  async frames(file: string, entry: string): Promise<Frames | null> {
    const frames = await this.#reader(file, entry).seekFrames(entry);
    if (frames === undefined) return null;
    return {
      stored: Float64Array.from(frames, ({ compressedSize }) => compressedSize),
      decoded: Float64Array.from(frames, ({ decompressedSize }) => decompressedSize),
      checksums: frames.filter(({ checksum }) => checksum !== undefined).length,
    };
  }

  async checkEntry(file: string, entry: string): Promise<void> {
    await this.#reader(file, entry).read(entry);
  }

  async computeIdentity(file: string): Promise<ComputedIdentity> {
    const reader = this.#reader(file);
    if (!reader.has(identityEntry)) {
      return { digest: await (await computeIdentity(reader)).digest(), version: 2, isStated: false };
    }
    const version = await verifyIdentity(reader);
    return { digest: await sha256(await reader.read(identityEntry)), version, isStated: true };
  }

  async signature(file: string): Promise<SignatureFacts | null> {
    const found = await this.#signature(file);
    return found && { file: found.name, identity: found.signature.identity, publicKey: found.signature.publicKey };
  }

  async checkSignature(file: string, key: string): Promise<void> {
    const found = await this.#signature(file);
    if (found === null) throw new ShardError("missing_file", "there is no signature beside the file", { path: file });
    await verifySignature(this.#reader(file), found.signature, key);
  }

  async #signature(file: string): Promise<{ name: string; signature: Signature } | null> {
    const { source } = this.#reader(file);
    const name = `${baseName(file)}.sig`;
    let text: Uint8Array;
    try {
      const found = await source.sibling?.(name);
      if (found === undefined) return null;
      const { size } = await found.start();
      if (size > mostSignature) return null;
      text = await found.read(0, size);
      await found.close();
    } catch (error) {
      if (error instanceof ShardError) return null; // most files have no signature
      throw error;
    }
    return { name, signature: parseSignature(text) };
  }
}
