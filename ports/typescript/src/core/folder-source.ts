// A folder of a browser: files that a user has dropped or chosen.

import { ShardError } from "./errors.js";
import { BlobSource, type Source } from "./source.js";

/** One of several files, by paths with slashes: a manifest finds those that it names, such as the chunks of an episode. */
export class FolderSource extends BlobSource {
  readonly #files: ReadonlyMap<string, Blob>;
  readonly #folder: string;

  /** `path` is one of the keys of `files`. */
  constructor(files: ReadonlyMap<string, Blob>, path: string) {
    const file = files.get(path);
    if (file === undefined) throw new ShardError("missing_file", "no such file", { path, rule: "S-MAN-5" });
    super(file);
    this.#files = files;
    this.#folder = path.slice(0, path.lastIndexOf("/") + 1);
  }

  async sibling(path: string): Promise<Source> {
    const parts: string[] = [];
    for (const part of path.split("/")) {
      if (part === "..") {
        if (parts.pop() !== undefined) continue;
        throw new ShardError("unsafe_path", "a path leaves its folder", { rule: "S-MAN-4", found: path });
      }
      if (part !== "" && part !== ".") parts.push(part);
    }
    return new FolderSource(this.#files, this.#folder + parts.join("/"));
  }
}
