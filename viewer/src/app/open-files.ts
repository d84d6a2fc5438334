// Files that the user drops or chooses, with their paths.

import { words } from "../words";
import type { Given } from "../worker/protocol";

type Found = { path: string; file: Blob }[];

/** More files than this are not listed: a whole home folder was dropped by mistake. */
const mostFiles = 20_000;

interface Chosen {
  readonly given: Given;
  readonly title: string;
}

export async function droppedFiles(data: DataTransfer): Promise<Chosen> {
  // Entries must be taken before the first wait: the browser empties the list.
  const entries = [...data.items].map((item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
  const files: Found = [];
  for (const entry of entries) await walk(entry, files);
  return given(wanted(files), entries.length === 1 ? (entries[0]?.name ?? "") : "");
}

async function walk(entry: FileSystemEntry, found: Found): Promise<void> {
  if (found.length >= mostFiles || entry.name.startsWith(".")) return;
  const path = entry.fullPath.replace(/^\//, "");
  if (entry.isFile) {
    const file = await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject));
    found.push({ path, file });
    return;
  }
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  // A folder gives its entries in parts; an empty part is the end.
  for (;;) {
    const part = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (part.length === 0) return;
    for (const one of part) await walk(one, found);
  }
}

export function chosenFiles(list: FileList): Chosen {
  const files = [...list].slice(0, mostFiles).map((file) => ({ path: file.webkitRelativePath || file.name, file }));
  return given(wanted(files), "");
}

function given(files: Found, name: string): Chosen {
  const [first] = files;
  if (first === undefined) throw new Error(words.table.empty);
  const folder = first.path.includes("/") ? (first.path.split("/")[0] ?? "") : "";
  const title = name || (files.length === 1 ? first.path : folder) || `${files.length} files`;
  files.sort((a, b) => a.path.localeCompare(b.path, "en", { numeric: true }));
  return { given: { kind: "files", files }, title };
}

/** Those that may be ours. If none is, the first one is opened all the same, and the page says what is wrong with it. */
function wanted(files: Found): Found {
  const found = files.filter(({ path }) => /\.(wshard|shard|shardpack|shardpack-set|partial|overview|sig)$/.test(path));
  return found.length > 0 ? found : files.slice(0, 1);
}
