// Turns the full journals of a recording into chunks, and names them in a manifest (spec/journal.md, J-9).

import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { access, stat, unlink } from "node:fs/promises";
import { basename } from "node:path";
import { pipeline } from "node:stream/promises";
import { invalid, ShardError } from "../core/errors.js";
import { canonicalBytes, type JsonObject } from "../core/json.js";
import { checkUri } from "../core/manifest.js";
import { openShard } from "../core/reader.js";
import { ContentType, Role } from "../core/registry.js";
import { ShardWriter } from "../core/writer.js";
import { metaManifest } from "../wshard/names.js";
import { fingerprint } from "../wshard/sidecars.js";
import type { SaveOptions } from "../wshard/writing.js";
import { openRecording, saveEpisode } from "./episodes.js";
import { FileSource } from "./file.js";
import { FileSink, type FileSinkOptions } from "./file-sink.js";
import type { JournalFile } from "./journal-writer.js";

/** The names of the files of a recording. */
export class RecordingNames {
  readonly #base: string;

  constructor(readonly path: string) {
    this.#base = path.replace(/\.wshard$/, "");
  }

  /** The files of the recording that a journal belongs to. */
  static ofJournal(journal: string): RecordingNames {
    return new RecordingNames(journal.replace(/\.partial$/, "").replace(/_chunk_[0-9]{4,}\.wshard$/, ".wshard"));
  }

  chunk(index: number): string {
    return `${this.#base}_chunk_${String(index).padStart(4, "0")}.wshard`;
  }

  get manifest(): string {
    return `${this.#base}_manifest.wshard`;
  }

  /** The journal of a chunk; that of the first has the name of the episode. */
  journal(index: number): string {
    return `${index === 0 ? this.path : this.chunk(index)}.partial`;
  }

  /** Refuses names that a manifest cannot hold (S-MAN-4), and names that an earlier recording in several files has taken. */
  async checkUsable(): Promise<void> {
    try {
      checkUri(basename(this.chunk(0)));
    } catch {
      const expected = "a file name without a backslash and without 'scheme:' at its start";
      throw invalid("a manifest cannot name the chunks of this recording", { path: this.path, expected });
    }
    for (const path of [this.manifest, this.chunk(0), this.chunk(1), this.journal(1)]) {
      if (await exists(path)) throw invalid("a file of an earlier recording is in the way", { path });
    }
  }
}

/** Whether a path leads to anything. */
export async function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}

/** Saves the episode of a journal that its recorder has ended. */
export async function saveJournal(
  journal: string,
  out: string,
  options: SaveOptions & FileSinkOptions,
): Promise<{ length: number; metadata: JsonObject }> {
  const recording = await openRecording(journal);
  try {
    const { isFinished, continues, error, episode } = recording;
    if (!isFinished && !continues)
      throw error ?? new ShardError("truncated", "the journal has changed", { path: journal });
    await saveEpisode(episode, out, options);
    return episode;
  } finally {
    await recording.close();
  }
}

/** Finishes one journal after the other. If the disk refuses, the journals stay where they are. */
export class ChunkFinisher {
  readonly #names: RecordingNames;
  readonly #facts: { id: string; envId: string };
  readonly #options: SaveOptions & FileSinkOptions;
  #rows: JsonObject[] = [];
  #steps = 0;
  #metadata: JsonObject = {};

  constructor(names: RecordingNames, facts: { id: string; envId: string }, options: SaveOptions & FileSinkOptions) {
    this.#names = names;
    this.#facts = facts;
    this.#options = options;
  }

  /** Steps in the chunks so far. */
  get steps(): number {
    return this.#steps;
  }

  /** Writes the chunk of a journal, then the manifest that names it, and then removes the journal. */
  async finish(journal: JournalFile): Promise<void> {
    const path = this.#names.chunk(this.#rows.length);
    await this.add(path, await saveJournal(journal.path, path, this.#options));
    await this.writeManifest();
    await journal.remove();
  }

  /** Counts a chunk that is complete. */
  async add(path: string, { length, metadata }: { length: number; metadata: JsonObject }): Promise<void> {
    const index = this.#rows.length;
    const reader = await openShard(new FileSource(path));
    const start = this.#steps;
    try {
      this.#rows.push({
        chunk_index: index,
        fingerprint: await fingerprint(reader),
        length_T: length,
        sha256: await hashOf(path),
        size: (await stat(path)).size,
        // An empty chunk has no last step.
        timestep_range: [start, Math.max(start, start + length - 1)],
        uri: basename(path),
      });
    } finally {
      await reader.close();
    }
    this.#steps += length;
    this.#metadata = { ...this.#metadata, ...metadata };
  }

  /** Replaces the manifest: it names the chunks so far. */
  async writeManifest(): Promise<void> {
    const total = this.#rows.length;
    const fields: JsonObject = {
      chunks: this.#rows.map((row) => ({ ...row, total_chunks: total })),
      env_id: this.#facts.envId,
      episode_id: this.#facts.id,
      metadata: this.#metadata,
      total_chunks: total,
      total_timesteps: this.#steps,
    };
    const sink = new FileSink(this.#names.manifest, this.#options);
    const writer = new ShardWriter(sink, { role: Role.manifest, names: [metaManifest] });
    await writer.write(metaManifest, canonicalBytes(fields), { contentType: ContentType.json });
    await writer.finish();
  }

  /** Deletes the finished chunks and their manifest. */
  async remove(): Promise<void> {
    if (this.#rows.length === 0) return;
    await unlink(this.#names.manifest);
    for (const index of this.#rows.keys()) await unlink(this.#names.chunk(index));
  }
}

async function hashOf(path: string): Promise<string> {
  const hash = createHash("sha256");
  await pipeline(createReadStream(path), hash);
  return hash.digest("hex");
}
