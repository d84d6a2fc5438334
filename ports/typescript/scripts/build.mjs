// Builds dist: ES modules and types with tsc, CommonJS of the same modules with esbuild.
import { execFileSync } from "node:child_process";
import { cpSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = fileURLToPath(new URL("..", import.meta.url));
process.chdir(root);
rmSync("dist", { recursive: true, force: true });
execFileSync(process.execPath, ["node_modules/typescript/bin/tsc", "-p", "tsconfig.build.json"], { stdio: "inherit" });

const sources = readdirSync("src", { recursive: true }).filter((name) => name.endsWith(".ts"));
await build({
  entryPoints: sources.map((name) => `src/${name}`),
  outdir: "dist/cjs",
  outbase: "src",
  format: "cjs",
  platform: "node",
  target: "node20", // keeps import(): zstddec is an ES module only
});
// The types of both forms are the same, because no module has a default export.
cpSync("dist/esm", "dist/cjs", {
  recursive: true,
  filter: (path) => !path.endsWith(".js"),
});
writeFileSync("dist/cjs/package.json", '{ "type": "commonjs" }\n');
cpSync("../../LICENSE", "dist/LICENSE");
