// Content types of entries, as spec/registry.md has them: what the ending of a name says, and what is compressed already.

const unknown = "application/octet-stream";

/** The endings of each content type; a `*` marks types that are compressed already. */
const table = `
application/gzip* gz
application/json json
application/jsonl jsonl
application/pdf* pdf
application/vnd.apache.parquet* parquet
application/vnd.msgpack msgpack
application/vnd.shard* shard
application/vnd.shard.episode* wshard
application/vnd.shard.pack* shardpack
application/x-lz4* lz4
application/x-npy npy
application/x-npz* npz
application/x-safetensors safetensors
application/x-tar tar
application/x-xz* xz
application/xml xml
application/yaml yaml yml
application/zip* zip
application/zstd* zst
audio/flac* flac
audio/mpeg* mp3
audio/ogg* ogg opus
audio/wav wav
image/avif* avif
image/bmp bmp
image/gif* gif
image/jpeg* jpeg jpg
image/jxl* jxl
image/png* png
image/svg+xml svg
image/tiff tif tiff
image/webp* webp
text/csv csv
text/html html
text/markdown md
text/plain cls text txt
text/tab-separated-values tsv
video/matroska* mkv
video/mp4* mp4
video/quicktime* mov
video/webm* webm`;

interface Tables {
  byEnding: Map<string, string>;
  isCompressed: Map<string, boolean>;
}

let tables: Tables | undefined;

function readTables(): Tables {
  if (tables === undefined) {
    tables = { byEnding: new Map(), isCompressed: new Map() };
    for (const line of table.trim().split("\n")) {
      const [marked = "", ...endings] = line.split(" ");
      const contentType = marked.replace("*", "");
      tables.isCompressed.set(contentType, marked !== contentType);
      for (const ending of endings) tables.byEnding.set(ending, contentType);
    }
  }
  return tables;
}

/** The content type that the ending of a name stands for. A name without a dot is an ending itself, such as `jpg`. */
export function contentTypeOf(name: string): string {
  const ending = name.slice(name.lastIndexOf(".") + 1);
  // Only A to Z: other letters have no ending in the table.
  const lower = ending.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
  return readTables().byEnding.get(lower) ?? unknown;
}

/** False for contents that are compressed already: to compress them again costs time and gains nothing. */
export function isCompressible(contentType: string): boolean {
  const known = readTables().isCompressed.get(contentType);
  return known === undefined ? !/^(image|video|audio)\//.test(contentType) : !known;
}
