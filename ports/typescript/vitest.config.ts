import { defineConfig } from "vitest/config";

export default defineConfig({
  // Tests that read all vectors take seconds where several of them run at once.
  test: { include: ["test/**/*.test.ts"], testTimeout: 60_000 },
});
