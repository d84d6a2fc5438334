// Builds the conformance program, conformance/run; see spec/vectors/README.md.
import { chmodSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

process.chdir(fileURLToPath(new URL("..", import.meta.url)));
await build({
  entryPoints: ["conformance/main.ts"],
  outfile: "conformance/run",
  bundle: true,
  format: "esm",
  platform: "node",
  target: "node20",
  packages: "external",
  banner: { js: "#!/usr/bin/env node" },
});
chmodSync("conformance/run", 0o755);
