// What `wshard view` knows of its episodes without any of them being opened.

import type { EpisodeRow, LeftOut } from "./protocol";

/** An episode in a pack. */
export interface ServedRecord {
  readonly number: number;
  readonly key: string;
  readonly row: Partial<EpisodeRow>;
}

/** The answer to `episodes.json`. Empty if there is none: the files themselves say it then. */
export class Served {
  /** Of files, by their numbers. */
  readonly rows = new Map<number, Partial<EpisodeRow>>();
  /** Of packs, by their numbers. */
  readonly records = new Map<number, ServedRecord[]>();
  leftOut: readonly LeftOut[] = [];
  #reading: Promise<void> | null = null;

  constructor(private readonly get: () => Promise<unknown>) {}

  read(): Promise<void> {
    this.#reading ??= this.#read().catch(() => {});
    return this.#reading;
  }

  async #read(): Promise<void> {
    const { rows, left_out } = (await this.get()) as Record<string, readonly Record<string, unknown>[] | undefined>;
    this.leftOut = (left_out ?? []).map(({ name, problem }) => ({ name: text(name), problem: text(problem) }));
    for (const given of rows ?? []) {
      const file = Number(given["file"]);
      const { record, record_number: number } = given;
      if (typeof record !== "string") {
        this.rows.set(file, rowOf(given));
        continue;
      }
      const records = this.records.get(file) ?? [];
      records.push({ number: Number(number), key: record, row: rowOf(given) });
      this.records.set(file, records);
    }
  }
}

function rowOf(row: Record<string, unknown>): Partial<EpisodeRow> {
  return {
    id: text(row["id"]),
    envId: text(row["env_id"]),
    task: text(row["task"]),
    length: number(row["length"]),
    duration: number(row["duration_s"]),
    return: number(row["return"]),
    success: typeof row["success"] === "boolean" ? row["success"] : null,
    channels: number(row["channels"]),
    bytes: number(row["bytes"]) ?? 0,
    findings: number(row["findings"]),
  };
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function number(value: unknown): number | null {
  return typeof value === "number" || typeof value === "bigint" ? Number(value) : null;
}
