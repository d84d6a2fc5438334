import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";
import { packedWorker } from "./scripts/packed-worker.ts";
import { singleFile } from "./scripts/single-file.ts";

const core = fileURLToPath(new URL("../ports/typescript/src/", import.meta.url));

/** The reader is the source of the TypeScript package itself: there is no second parser and no second build. */
export const alias = [
  { find: /^@shard-format\/core$/, replacement: `${core}index.ts` },
  { find: /^@shard-format\/core\/(node|zstd)$/, replacement: `${core}$1.ts` },
  { find: /^@shard-format\/core\/(wshard|shardpack)\/node$/, replacement: `${core}$1/node.ts` },
  { find: /^@shard-format\/core\/(wshard|shardpack)$/, replacement: `${core}$1/index.ts` },
  { find: /^zstddec$/, replacement: fileURLToPath(import.meta.resolve("zstddec")) },
];

export default defineConfig({
  resolve: { alias },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: { target: "es2022", assetsInlineLimit: 0, modulePreload: false, reportCompressedSize: false },
  plugins: [packedWorker(() => ({ resolve: { alias } })), singleFile()],
});
