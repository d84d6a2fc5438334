import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

const src = fileURLToPath(new URL("src/", import.meta.url));

export default defineConfig({
  // The examples of the README import the package by its name.
  resolve: {
    alias: [
      { find: /^@shard-format\/core$/, replacement: `${src}index.ts` },
      { find: /^@shard-format\/core\/(node|zstd)$/, replacement: `${src}$1.ts` },
      { find: /^@shard-format\/core\/(wshard|shardpack)\/(node|compat)$/, replacement: `${src}$1/$2.ts` },
      { find: /^@shard-format\/core\/(wshard|shardpack)$/, replacement: `${src}$1/index.ts` },
    ],
  },
  // Tests that read all vectors take seconds where several of them run at once.
  test: { include: ["test/**/*.test.ts"], setupFiles: "test/seed.ts", testTimeout: 60_000 },
});
