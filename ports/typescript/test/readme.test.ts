import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { afterAll, expect, test, vi } from "vitest";

const folder = mkdtempSync(join(tmpdir(), "shard-"));
afterAll(() => rmSync(folder, { recursive: true }));

test("the examples of the README run, one after the other", async () => {
  const server = createServer((request, response) => {
    const file = readFileSync(join(folder, "data.shard"));
    const start = Number(/^bytes=(\d+)-/.exec(request.headers.range ?? "")?.[1]);
    response.writeHead(206, { "content-range": `bytes ${start}-${file.length - 1}/${file.length}` });
    response.end(file.subarray(start));
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const printed: unknown[][] = [];
  const log = vi.spyOn(console, "log").mockImplementation((...texts) => void printed.push(texts));
  const readme = readFileSync(new URL("../README.md", import.meta.url), "utf8");
  try {
    for (const [number, [, code]] of [...readme.matchAll(/^```js\n(.*?)^```/gms)].entries()) {
      const path = join(folder, `example-${number}.mjs`);
      const placed = code
        .replaceAll(/"(\w+\.(?:w?shard|shardpack))"/g, (_, name) => JSON.stringify(join(folder, name)))
        .replaceAll("https://example.org", `http://127.0.0.1:${(server.address() as AddressInfo).port}`);
      writeFileSync(path, placed);
      await import(/* @vite-ignore */ pathToFileURL(path).href);
    }
  } finally {
    log.mockRestore();
    server.close();
  }
  expect(printed.slice(0, 3)).toEqual([
    ["greeting", 5],
    ["angles", 4000],
    ["hello", 1],
  ]);
  expect(printed).toContainEqual(["ep_001", 100, ["instruction", "joint_pos"]]);
  expect(printed).toContainEqual([70, [7], 20_000_000n]);
  expect(existsSync(join(folder, "ep_002.wshard"))).toBe(true);
  expect(printed).toContainEqual([7, ["left.bin", "caption.txt"]]);
  expect(printed).toContainEqual([200]);
  expect(printed.at(-1)).toEqual([true, "bad_magic", "S-HDR-2"]);
});
