// What can be asked about files themselves, whether or not they hold an episode. A worker answers.

import type { EntryFacts } from "./facts";
import type { ReadOptions } from "./reads";

/** The frames of an entry that can be decoded one by one: their sizes, as stored and decoded. */
export interface Frames {
  readonly stored: Float64Array;
  readonly decoded: Float64Array;
  /** How many of them carry a checksum. */
  readonly checksums: number;
}

/** An identity that was computed from the content of a file just now. */
export interface ComputedIdentity {
  readonly digest: string;
  readonly version: number;
  /** Whether the file states it too; a file that states another one is an error instead. */
  readonly isStated: boolean;
}

export interface SignatureFacts {
  readonly file: string;
  readonly identity: string;
  /** The key that the signature names. Anybody can write any key here. */
  readonly publicKey: string;
}

export interface FileReads {
  /** All entries of all files. */
  entries(): Promise<readonly EntryFacts[]>;
  /** Bytes of an entry of one of the files, decoded. */
  bytes(file: string, entry: string, start: number, end: number, options?: ReadOptions): Promise<Uint8Array>;
  /** The frames of an entry; null if it is decoded as one piece. */
  frames(file: string, entry: string): Promise<Frames | null>;
  /** Reads all of an entry against its checksum; fails if it is damaged. */
  checkEntry(file: string, entry: string): Promise<void>;
  /** Reads all of a file and computes its identity; fails if the file states another one. */
  computeIdentity(file: string): Promise<ComputedIdentity>;
  /** The signature beside a file (`X.sig`); null if there is none. */
  signature(file: string): Promise<SignatureFacts | null>;
  /** Checks that the owner of this key signed this content. Fails if not. */
  checkSignature(file: string, key: string): Promise<void>;
}
