// Answers the questions of the conformance runner; spec/vectors/README.md describes them.

import { createInterface } from "node:readline";
import { canonicalJson, ShardError } from "../src/node.js";
import { container, verifyFile } from "./container.js";
import { episode, episodeFeatures } from "./episode.js";
import { journal, journalFeatures } from "./journal.js";
import { type Kind, readCase, type Told } from "./kind.js";
import { overview } from "./overview.js";
import { pack } from "./pack.js";
import { recording } from "./recording.js";
import { set } from "./set.js";

const usage =
  "run info | read KIND FILE | step KIND FILE CASE | stream FILE | recover FILE | verify FILE SIGNATURE KEY | write CASE OUT | rewrite KIND IN OUT | --batch";

/** The letters of tests/conformance/ports.py. */
const features = ["RZMSFLJNIGVW", episodeFeatures, "U", journalFeatures, "PTKB"].join("");

/** What the program does with each kind of file. */
const kinds: Record<string, Kind> = { container, episode, journal, overview, pack, recording, set };

type Command = (...texts: string[]) => Promise<Told>;

const commands: Record<string, Command> = {
  info: async () => ({
    name: "typescript",
    version: "0.1.0",
    features: [...features],
    formats: { journal: 1, shard: 2, shardpack: 1, wshard: 1 },
  }),
  read: (kind, file) => can(kinds[kind]?.read)(file),
  step: (kind, file, path) => can(kinds[kind]?.step)(file, readCase(path)),
  stream: (file) => can(kinds["pack"]?.stream)(file),
  recover: (file) => can(kinds["pack"]?.recover)(file),
  verify: verifyFile,
  write: (path, out) => {
    const given = readCase(path);
    return can(kinds[String(given["kind"])]?.write)(given, out);
  },
  rewrite: (kind, file, out) => can(kinds[kind]?.rewrite)(file, out),
};

class Usage extends Error {}

function can<F>(run: F | undefined): F {
  if (run === undefined) throw new Usage();
  return run;
}

/** The exit code and the answer of one call. */
async function answer(texts: unknown): Promise<[number, Told]> {
  const [name, ...given] = Array.isArray(texts) ? texts.map(String) : [];
  const counts: Record<string, number> = {
    info: 0,
    read: 2,
    step: 3,
    stream: 1,
    recover: 1,
    verify: 3,
    write: 2,
    rewrite: 3,
  };
  if (name === undefined || counts[name] !== given.length) return [2, { usage }];
  try {
    return [0, await commands[name](...given)];
  } catch (error) {
    if (error instanceof Usage) return [2, { usage }];
    if (error instanceof ShardError) return [1, { error: error.code, rule: error.rule ?? null }];
    console.error(error);
    return [1, { error: "crash", rule: String(error) }];
  }
}

/** An answer may be deeper than what it tells about. */
function line(told: Told): string {
  return canonicalJson(told, 1000);
}

if (process.argv[2] === "--batch") {
  for await (const text of createInterface({ input: process.stdin })) {
    const [, told] = await answer(JSON.parse(text));
    process.stdout.write(`${line(told)}\n`);
  }
} else {
  const [code, told] = await answer(process.argv.slice(2));
  process.stdout.write(`${line(told)}\n`);
  process.exitCode = code;
}
