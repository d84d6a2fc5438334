import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";
import { singleFile } from "./scripts/single-file.ts";

const core = fileURLToPath(new URL("../ports/typescript/src/", import.meta.url));

/** The reader is the source of the TypeScript package itself: there is no second parser and no second build. */
export const alias = [
  { find: /^@shard-format\/core$/, replacement: `${core}index.ts` },
  { find: /^@shard-format\/core\/(node|zstd)$/, replacement: `${core}$1.ts` },
  { find: /^@shard-format\/core\/(wshard|shardpack)\/node$/, replacement: `${core}$1/node.ts` },
  { find: /^@shard-format\/core\/(wshard|shardpack)$/, replacement: `${core}$1/index.ts` },
  // Also for modules outside of this folder: see jsxInject.
  { find: /^preact$/, replacement: fileURLToPath(import.meta.resolve("preact")) },
];

export default defineConfig({
  resolve: { alias },
  // The form with `h` makes a shorter page than that with `jsx`.
  oxc: {
    jsx: { runtime: "classic", pragma: "h", pragmaFrag: "Fragment" },
    jsxInject: 'import { Fragment, h } from "preact"',
  },
  build: { target: "es2022", assetsInlineLimit: 0, modulePreload: false, reportCompressedSize: false },
  plugins: [singleFile()],
});
