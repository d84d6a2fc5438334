import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";
import { singleFile } from "./scripts/single-file.ts";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));
const core = here("../ports/typescript/src/");

/** The reader is the source of the TypeScript package itself: there is no second parser and no second build. */
export const alias = [
  { find: /^@shard-format\/core$/, replacement: `${core}index.ts` },
  { find: /^@shard-format\/core\/(node|zstd)$/, replacement: `${core}$1.ts` },
  { find: /^@shard-format\/core\/(wshard|shardpack)\/node$/, replacement: `${core}$1/node.ts` },
  { find: /^@shard-format\/core\/(wshard|shardpack)$/, replacement: `${core}$1/index.ts` },
  // A browser has gzip, and the page does not show the metadata of the records of a pack.
  { find: /^\.\/gzip\.js$/, replacement: here("src/worker/gunzip.ts") },
  { find: /^\.\/messagepack\.js$/, replacement: here("src/worker/no-messagepack.ts") },
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
  // The development server gives packages as they are: they are modules. Bundling them first would reload the page.
  optimizeDeps: { noDiscovery: true },
  // The script is minified in the end, see single-file.ts.
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    minify: false,
    cssMinify: true,
    modulePreload: false,
    reportCompressedSize: false,
  },
  plugins: [singleFile()],
});
