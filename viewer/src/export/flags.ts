// Episodes that the user has marked, and what to do with the list. The viewer changes no file: it writes commands.

import { type ReadonlySignal, signal } from "@preact/signals";

const flagged = signal<ReadonlySet<string>>(new Set());

/** Names of flagged episodes, as the table shows them. */
export const flags: ReadonlySignal<ReadonlySet<string>> = flagged;

export function toggleFlag(name: string): void {
  const next = new Set(flagged.peek());
  if (!next.delete(name)) next.add(name);
  flagged.value = next;
}

/** Flags those of a link. What is flagged already stays so. */
export function addFlags(names: readonly string[]): void {
  if (names.length > 0) flagged.value = new Set([...flagged.peek(), ...names]);
}

export function clearFlags(): void {
  flagged.value = new Set();
}

/** One name a line. */
export function listText(names: Iterable<string>): string {
  return Array.from(names, (name) => `${oneLine(name)}\n`).join("");
}

/** Commands for a shell: each episode gets a field of its metadata. Episodes inside packs cannot be edited there. */
export function labelCommands(names: Iterable<string>, field: string): string {
  const files = [...names];
  const lines = files
    .filter((name) => !isPacked(name))
    .map((name) => `wshard edit ${quoted(name)} ${quoted(`${field}=true`)}\n`);
  const packed = files.filter(isPacked).map((name) => `# in a pack, which is not edited in place: ${oneLine(name)}\n`);
  return [...lines, ...packed].join("");
}

/**
 * Commands that move the files out of the folder, each to the same place in another one, with what belongs to them:
 * chunks, and whatever begins with the name of the file.
 */
export function dropCommands(names: Iterable<string>, folder: string): string {
  const files = [...names];
  const moves = files
    .filter((name) => !isPacked(name))
    .map((name) => {
      const place = quoted(`${folder}/${name.slice(0, name.lastIndexOf("/") + 1)}`);
      const chunks = name.replace(/_manifest\.wshard$/, "_chunk_");
      const parts = chunks === name ? [name] : [name, chunks];
      return `mkdir -p -- ${place} && mv -- ${parts.map((part) => `${quoted(part)}*`).join(" ")} ${place}\n`;
    });
  const packed = files.filter(isPacked).map((name) => `# in a pack: use shardpack filter: ${oneLine(name)}\n`);
  return [...moves, ...packed].join("");
}

function isPacked(name: string): boolean {
  return name.includes(" › ");
}

/** A name as one word of a POSIX shell. One that begins with a dash is a path, not an option. */
export function quoted(word: string): string {
  const path = word.startsWith("-") ? `./${word}` : word;
  return /^[\w@%+:,./=-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`;
}

/** A name with a line break would add lines of its own. */
function oneLine(name: string): string {
  return name.replace(
    /[\p{Cc}\u2028\u2029]/gu,
    (one) => `\\u${(one.codePointAt(0) ?? 0).toString(16).padStart(4, "0")}`,
  );
}
