// Lanes and edits that were added to an episode later, in files beside it (spec/wshard.md, section 12).

import { sha256 } from "../core/bytes.js";
import { broken, located, ShardError } from "../core/errors.js";
import { canonicalBytes, isInteger, isObject, type Json, type JsonObject } from "../core/json.js";
import { type OpenOptions, openShard, type ShardReader } from "../core/reader.js";
import { Role } from "../core/registry.js";
import type { SourceLike } from "../core/source.js";
import { type Episode, episodeOf, type Opened, readDescriptions } from "./episode.js";
import type { LabelLane } from "./lanes.js";
import { isCount, isHash, parseLabel, told } from "./metadata.js";
import { metaEdit, metaIdentity, metaSidecar } from "./names.js";

/** The SHA-256 of what the index says about the content: names, sizes and checksums. */
export async function fingerprint(reader: ShardReader): Promise<string> {
  const facts: Record<string, Json> = Object.create(null);
  for (const [number, name] of reader.names.entries()) {
    const { origSize, crc32c } = reader.index.row(number);
    if (name !== metaIdentity) facts[name] = [origSize, crc32c];
  }
  return sha256(canonicalBytes(facts));
}

/** What an edit replaces; null removes. */
interface Edit {
  readonly metadata: JsonObject;
  readonly labels: ReadonlyMap<string, LabelLane | null>;
}

/** The episode of a file together with its sidecars; one that breaks a rule is left out. */
export async function attachSidecars(
  base: Opened,
  sources: readonly SourceLike[],
  options: OpenOptions,
): Promise<Episode> {
  const parts = [base];
  const files = [base.reader];
  const problems: ShardError[] = [];
  const edits: Edit[] = [];
  const own = await fingerprint(base.reader);
  const held = new Set(base.reader.names);
  for (const source of sources) {
    let sidecar: ShardReader | null = null;
    try {
      sidecar = await openShard(source, options);
      const added = await readSidecar(sidecar, base, own, held);
      if (added === null) {
        await sidecar.close();
        continue;
      }
      files.push(sidecar);
      if ("labels" in added) edits.push(added);
      else parts.push(added);
    } catch (error) {
      await sidecar?.close();
      const problem = located(error, sidecar?.path);
      if (!(problem instanceof ShardError)) throw problem;
      problems.push(problem);
    }
  }
  const metadata: JsonObject = Object.assign(Object.create(null), base.facts.metadata);
  for (const edit of edits) Object.assign(metadata, edit.metadata);
  for (const key of Object.keys(metadata)) if (edits.length > 0 && metadata[key] === null) delete metadata[key];
  const episode = episodeOf(parts, { metadata, problems, files });
  for (const edit of edits) for (const [name, label] of edit.labels) replaceLabel(episode, name, label);
  return episode;
}

function replaceLabel(episode: Episode, name: string, label: LabelLane | null): void {
  const labels = episode.labels as Map<string, LabelLane>;
  labels.delete(name);
  if (label !== null) labels.set(name, label);
}

/** What a sidecar adds; null if the episode holds it already (W-SID-6). */
async function readSidecar(
  sidecar: ShardReader,
  base: Opened,
  own: string,
  held: Set<string>,
): Promise<Opened | Edit | null> {
  const { role } = sidecar.header;
  if (role !== Role.wshard)
    throw broken("bad_profile", "W-ROL-1", "not an episode", { expected: "role 5", found: role });
  const isEdit = sidecar.has(metaEdit);
  const added = sidecar.names.filter((name) => !name.startsWith("meta/"));
  if (!isEdit && added.length > 0 && added.every((name) => isSame(sidecar, base.reader, name))) return null;
  const opened = isEdit ? null : await readDescriptions(sidecar, true);
  checkFit(await readBases(sidecar), base, own);
  for (const name of added) {
    if (held.has(name))
      throw broken("duplicate_name", "W-SID-3", "the episode or another sidecar has this block", { entry: name });
  }
  for (const name of added) held.add(name);
  return opened ?? readEdit(await sidecar.readJson(metaEdit, "W-SID-5"));
}

function isSame(one: ShardReader, other: ShardReader, name: string): boolean {
  const at = other.index.find(name);
  if (at === undefined) return false;
  const [a, b] = [one.index.row(one.index.find(name) as number), other.index.row(at)];
  return a.origSize === b.origSize && a.crc32c === b.crc32c;
}

/** `base` and, while the episode is being replaced, `before` (W-SID-1). */
export async function readBases(sidecar: ShardReader): Promise<JsonObject[]> {
  const wrong = (what: string, found?: Json) =>
    broken("bad_metadata", "W-SID-1", `${what} of the sidecar is missing or wrong`, {
      entry: metaSidecar,
      found: told(found),
    });
  if (!sidecar.has(metaSidecar)) throw wrong(metaSidecar);
  const fields = await sidecar.readJson(metaSidecar, "W-SID-1");
  if (!isInteger(fields, "v") || fields.v !== 1) throw wrong("'v'", fields.v);
  const bases = "before" in fields ? [fields.base, fields.before] : [fields.base];
  return bases.map((base) => {
    if (!isObject(base)) throw wrong("'base' or 'before'", base);
    if (typeof base.episode_id !== "string") throw wrong("'episode_id'", base.episode_id);
    const mayLackIdentity = sidecar.has(metaEdit) && !("identity" in base);
    if (!mayLackIdentity && !isHash(base.identity)) throw wrong("'identity'", base.identity);
    if (!isHash(base.fingerprint)) throw wrong("'fingerprint'", base.fingerprint);
    if (!isCount(base, "length_T")) throw wrong("'length_T'", base.length_T);
    return base;
  });
}

/** W-SID-2 */
function checkFit(bases: readonly JsonObject[], { facts }: Opened, own: string): void {
  const isFitting = (base: JsonObject) =>
    base.fingerprint === own && base.episode_id === facts.id && BigInt(base.length_T as number) === facts.length;
  if (bases.some(isFitting)) return;
  throw broken("reference_mismatch", "W-SID-2", "the sidecar belongs to an episode with other content", {
    entry: metaSidecar,
    expected: String(bases[0].fingerprint),
    found: own,
  });
}

/** W-SID-5 */
function readEdit(fields: JsonObject): Edit {
  const wrong = (what: string, found: Json) =>
    broken("bad_metadata", "W-SID-5", `${what} of an edit is wrong`, { entry: metaEdit, found: told(found) });
  if (!isInteger(fields, "v") || fields.v !== 1) throw wrong("'v'", fields.v);
  const { metadata = {}, labels = {} } = fields;
  if (!isObject(metadata)) throw wrong("'metadata'", metadata);
  if (!isObject(labels)) throw wrong("'labels'", labels);
  const lanes = Object.entries(labels).map(([name, label]): [string, LabelLane | null] => {
    if (label === null) return [name, null];
    if (!isObject(label)) throw wrong(`the label '${name}'`, label);
    const parsed = parseLabel(label, metaEdit);
    return [name, { block: `label/${name}`, read: async () => parsed }];
  });
  return { metadata, labels: new Map(lanes) };
}
