// Serves a folder on the loopback, with ranges, in a process of its own. It tells its parent the port, and counts requests.

import { open, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { join } from "node:path";

const folder = process.argv[2];
/** Milliseconds that each request waits, as on a network. */
const latency = Number(process.argv[3] ?? 0);
let requests = 0;
let bytes = 0;

const server = createServer(async (request, response) => {
  const path = join(folder, decodeURIComponent(new URL(request.url, "http://x").pathname));
  requests++;
  if (latency > 0) await new Promise((done) => setTimeout(done, latency));
  let file;
  try {
    const { size } = await stat(path);
    const match = /^bytes=(\d*)-(\d*)$/.exec(request.headers.range ?? "");
    let [first, end] = [0, size];
    if (match)
      [first, end] =
        match[1] === ""
          ? [size - Number(match[2]), size]
          : [Number(match[1]), match[2] === "" ? size : Math.min(Number(match[2]) + 1, size)];
    const headers = { "content-length": end - first, "accept-ranges": "bytes" };
    if (match) headers["content-range"] = `bytes ${first}-${end - 1}/${size}`;
    response.writeHead(match ? 206 : 200, headers);
    if (request.method === "HEAD") return response.end();
    bytes += end - first;
    file = await open(path);
    const part = Buffer.allocUnsafe(end - first);
    await file.read(part, 0, part.length, first);
    response.end(part);
  } catch {
    response.writeHead(404, { "content-length": 0 }).end();
  } finally {
    await file?.close();
  }
});

process.on("message", () => {
  process.send({ requests, bytes });
  requests = bytes = 0;
});
server.listen(0, "127.0.0.1", () => process.send({ port: server.address().port }));
