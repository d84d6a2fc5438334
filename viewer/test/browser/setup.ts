import { fileURLToPath } from "node:url";
import { build } from "vite";

/** Builds the page that the tests open, as users get it: the tests' own mode would be that of developers. */
export async function setup(): Promise<void> {
  const mode = process.env["NODE_ENV"];
  process.env["NODE_ENV"] = "production";
  await build({ root: fileURLToPath(new URL("../../", import.meta.url)), logLevel: "error" });
  process.env["NODE_ENV"] = mode;
}
