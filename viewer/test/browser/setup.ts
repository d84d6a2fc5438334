import { fileURLToPath } from "node:url";
import { build } from "vite";

/** Builds the page that the tests open. */
export async function setup(): Promise<void> {
  // The tests' own mode would build a page for developers.
  process.env["NODE_ENV"] = "production";
  await build({ root: fileURLToPath(new URL("../../", import.meta.url)), logLevel: "error" });
}
