import { openShardSet } from "../src/node/shardpack.js";
import type { PackOptions, ShardSet } from "../src/shardpack/index.js";
import { type Kind, optionsOf, type Told } from "./kind.js";

export const set: Kind = {
  read: (file) =>
    using(file, async (found) => {
      const keys: string[] = [];
      for await (const record of found) keys.push(record.key);
      return { fields: found.fields, keys, shards: found.names };
    }),

  step: (file, given) =>
    using(
      file,
      async (found) => {
        if (given["when"] === "shard") await found.shard(found.names.indexOf(String(given["shard"])));
        return { done: true };
      },
      optionsOf(given),
    ),
};

async function using(file: string, run: (set: ShardSet) => Promise<Told>, options: PackOptions = {}): Promise<Told> {
  const found = await openShardSet(file, options);
  try {
    return await run(found);
  } finally {
    await found.close();
  }
}
