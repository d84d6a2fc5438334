// Loads the built package by its name, as an ES module and with require.
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const hello = new URL("../../../spec/vectors/valid/hello.shard", import.meta.url).pathname;
for (const { openShard } of [await import("@shard-format/core/node"), require("@shard-format/core/node")]) {
  const reader = await openShard(hello);
  if (new TextDecoder().decode(await reader.read("greeting")) !== "hello") throw new Error("the package does not work");
  await reader.close();
}
for (const name of ["", "/zstd", "/wshard", "/shardpack"]) {
  await import(`@shard-format/core${name}`);
  require(`@shard-format/core${name}`);
}
