// Serves a folder on the loopback, with ranges, in a process of its own. It tells its parent the port, and counts requests.

import { open, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { join } from "node:path";

const folder = process.argv[2];
/** Milliseconds that each request waits, as on a network. */
const latency = Number(process.argv[3] ?? 0);
/** Bits a second of the link that all answers share; 0 for no bound. */
const rate = 1e6 * Number(process.argv[4] ?? 0);
/** Sent at once: 1.3 ms of a link of 100 Mbit/s. */
const pieceBytes = 16384;
/** How many answers are on the link, and when it has sent all that they gave it so far. */
let sending = 0;
let free = 0;
let requests = 0;
let bytes = 0;

/** Sends the body as fast as the link has room, piece by piece, in turn with other answers. */
async function send(response, body) {
  if (rate === 0) return response.end(body);
  // A link that waits saves up nothing. One that is busy catches up with a timer that is late.
  if (sending++ === 0) free = Math.max(free, performance.now());
  for (let at = 0; at < body.length && !response.destroyed; at += pieceBytes) {
    const piece = body.subarray(at, at + pieceBytes);
    free += (8000 * piece.length) / rate;
    const wait = free - performance.now();
    if (wait > 0) await new Promise((done) => setTimeout(done, wait));
    response.write(piece);
  }
  sending--;
  response.end();
}

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
    await send(response, part);
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
