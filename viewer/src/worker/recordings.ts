// Which files of a folder are recordings that have not ended, and which one stands for each of them in the table.

import type { Listing } from "./sources";

/** A recording that has not ended. */
export interface Unfinished {
  /** Whether its recorder still writes; null if unknown. */
  readonly isLive: boolean | null;
  /** The name of a journal of it. */
  readonly journal: string;
}

export function isJournal(name: string): boolean {
  return /\.partial$/.test(name.replace(/[?#].*$/, ""));
}

/** What the names of all files of a recording begin with. */
export function stemOf(name: string): string {
  return name.replace(/(_chunk_\d+[^/]*?|_manifest)?\.wshard(\.partial)?$/, "");
}

/** Recordings that have not ended, by the beginnings of their names. */
export function unfinishedOf(files: Listing): Map<string, Unfinished> {
  const found = new Map<string, Unfinished>();
  for (const { name, isLive = null } of files.values()) {
    if (!isJournal(name)) continue;
    const stem = stemOf(name);
    const before = found.get(stem);
    // Of the journals of a long recording, all but the last may be left by their recorder.
    if (before === undefined) found.set(stem, { isLive, journal: name });
    else if (before.isLive === false) found.set(stem, { ...before, isLive });
  }
  return found;
}

/** The recording that a file is the row of: its first journal until there is a manifest, and then the manifest. */
export function recordingOf(name: string, unfinished: ReadonlyMap<string, Unfinished>): Unfinished | null {
  const isOfIt = isJournal(name) || name.endsWith("_manifest.wshard");
  return (isOfIt && unfinished.get(stemOf(name))) || null;
}

/** Whether another file stands for this one. */
export function isBehind(name: string, files: Listing, unfinished: ReadonlyMap<string, Unfinished>): boolean {
  const stem = stemOf(name);
  const first = `${stem}.wshard.partial`;
  if (isJournal(name)) return files.has(`${stem}_manifest.wshard`) || (name !== first && files.has(first));
  return /_chunk_\d+[^/]*$/.test(name) && unfinished.has(stem);
}
