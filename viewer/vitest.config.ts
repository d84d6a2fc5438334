import { defineConfig } from "vitest/config";
import { alias } from "./vite.config.ts";

export default defineConfig({
  resolve: { alias },
  test: {
    projects: [
      {
        extends: true,
        test: {
          name: "unit",
          include: ["test/*.test.ts", "test/plot-data/*.test.ts"],
          setupFiles: "test/seed.ts",
          testTimeout: 60_000, // while other tests run
        },
      },
      // One browser at a time: each test measures, or looks at pictures.
      {
        extends: true,
        test: {
          name: "browser",
          include: ["test/browser/*.test.ts"],
          globalSetup: "test/browser/setup.ts",
          testTimeout: 60_000,
          hookTimeout: 60_000,
          fileParallelism: false,
        },
      },
    ],
  },
});
