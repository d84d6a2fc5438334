// A server of files that understands ranges, and counts what it is asked for.

import { readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";

export interface FileServer {
  /** Such as http://127.0.0.1:1234. */
  readonly origin: string;
  /** How often each path was asked for. */
  readonly requests: Map<string, number>;
  close(): void;
}

/** What a careful page allows: its own scripts, files and workers, and WebAssembly. `data:` addresses are not among them. */
const policy = [
  "default-src 'none'",
  "script-src 'self' 'wasm-unsafe-eval'",
  "worker-src 'self'",
  "connect-src 'self'",
].join("; ");

/** Serves texts by path, and below `/files/` the files of a folder. */
export async function serve(texts: Readonly<Record<string, string>>, folder: URL): Promise<FileServer> {
  const requests = new Map<string, number>();
  const server: Server = createServer((request, response) => {
    const { pathname } = new URL(request.url ?? "/", "http://127.0.0.1");
    requests.set(pathname, (requests.get(pathname) ?? 0) + 1);
    if (Object.hasOwn(texts, pathname)) {
      const type = pathname.endsWith(".js") ? "text/javascript" : "text/html";
      response.writeHead(200, { "content-type": `${type}; charset=utf-8`, "content-security-policy": policy });
      response.end(texts[pathname]);
      return;
    }
    let file: Buffer;
    try {
      file = readFileSync(new URL(pathname.replace(/^\/files\//, ""), folder));
    } catch {
      response.writeHead(404).end();
      return;
    }
    const match = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "");
    if (!match) {
      response.writeHead(200, { "content-length": file.length }).end(file);
      return;
    }
    const first = Number(match[1]);
    const end = Math.min(Number(match[2]) + 1, file.length);
    if (first >= file.length) {
      response.writeHead(416, { "content-range": `bytes */${file.length}` }).end();
      return;
    }
    const part = file.subarray(first, end);
    const range = `bytes ${first}-${end - 1}/${file.length}`;
    response.writeHead(206, { "content-range": range, "content-length": part.length, "cache-control": "no-store" });
    response.end(part);
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  return {
    origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    close() {
      server.closeAllConnections();
      server.close();
    },
  };
}
