// A server of the sources of the viewer, for a page with one panel.

import { fileURLToPath } from "node:url";
import { PNG } from "pngjs";
import { createServer, type ViteDevServer } from "vite";

/** Serves the sources on a free port of this computer. */
export async function serveSources(): Promise<ViteDevServer> {
  const root = fileURLToPath(new URL("../../../", import.meta.url));
  const server = await createServer({
    root,
    configFile: `${root}vite.config.ts`,
    server: { port: 0, host: "127.0.0.1", hmr: false, watch: null, fs: { strict: false } },
    // Named, because a dependency that is found later makes the server build all of them again, and a page then has two
    // of each.
    optimizeDeps: { include: ["preact", "preact/hooks", "@preact/signals"] },
    logLevel: "error",
  });
  return server.listen();
}

/** Red, green and blue of a pixel. */
export function pixel(png: PNG, x: number, y: number): number[] {
  const at = 4 * (y * png.width + x);
  return Array.from(png.data.subarray(at, at + 3));
}

export function decoded(png: Buffer): PNG {
  return PNG.sync.read(png);
}

/** A folder for pictures that people look at; without it, none are made. */
export const pictures = process.env["SHARD_VIEWER_PICTURES"];
