// How large the package is in a page that uses a part of it.

import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";
import { describe, expect, test } from "vitest";

const src = fileURLToPath(new URL("../src", import.meta.url));

/** Bytes of a minified bundle of these lines, compressed with gzip. */
async function bundleSize(lines: string): Promise<number> {
  const built = await build({
    stdin: { contents: lines, resolveDir: src, loader: "ts" },
    alias: {
      "@shard-format/core/shardpack": `${src}/shardpack/index.ts`,
      "@shard-format/core/wshard": `${src}/wshard/index.ts`,
      "@shard-format/core": `${src}/index.ts`,
    },
    bundle: true,
    minify: true,
    format: "esm",
    platform: "browser",
    target: "es2022",
    write: false,
  });
  expect(built.warnings).toEqual([]);
  return gzipSync(built.outputFiles[0].contents, { level: 9 }).length;
}

const container = 'export { openShard } from "@shard-format/core";';
const episodes = 'export { openEpisode } from "@shard-format/core/wshard";';
const packs = 'export { openShardPack } from "@shard-format/core/shardpack";';

describe("a page", () => {
  // Without zstd, which a page adds if it needs it.
  test.each([
    ["that reads containers has 12 KiB at most", container, 12_288],
    ["that also reads episodes has 28.6 KB at most", container + episodes, 28_600],
    ["that also reads shards of datasets has 21 KB at most", container + packs, 21_000],
  ])("%s", async (_, lines, most) => {
    const size = await bundleSize(lines);
    expect(size).toBeLessThanOrEqual(most);
  });

  test("that uses one function has nothing else", async () => {
    expect(await bundleSize('export { crc32c } from "@shard-format/core";')).toBeLessThan(1000);
  });
});
