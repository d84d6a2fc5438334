// Manifests: files that name other files.

import { encodeUtf8, sha256 } from "./bytes.js";
import { broken, located, type ShardError, shortened } from "./errors.js";
import { isDigest, parseIdentity } from "./identity.js";
import { canonicalJson, isInteger, isObject, type Json, type JsonObject } from "./json.js";
import { identityEntry, manifestEntry } from "./layout.js";
import type { ShardReader } from "./reader.js";
import { Role } from "./registry.js";

const maxPathBytes = 4096;
const maxPathParts = 256;

/** A row of a manifest. Other fields belong to the caller. */
export interface ManifestRow extends JsonObject {
  uri: string;
}

/** What a manifest says. */
export interface Manifest {
  /** The files that it names. */
  files: ManifestRow[];
  /** All fields of the entry, with its list of files; of the schema section's `manifest` if there is no entry. */
  fields: JsonObject;
}

/** Reads the manifest of a file (S-MAN-1, S-MAN-2, S-MAN-7). */
export async function readManifest(reader: ShardReader): Promise<Manifest> {
  try {
    const fields = await manifestFields(reader);
    const list = Object.hasOwn(fields, "files") ? fields["files"] : fields["chunks"];
    if (!Array.isArray(list)) throw broken("bad_metadata", "S-MAN-1", "the manifest has no list of files");
    return { files: checkRows(list), fields };
  } catch (error) {
    throw located(error, reader.path);
  }
}

async function manifestFields(reader: ShardReader): Promise<JsonObject> {
  const isSigned = reader.has(identityEntry);
  if (!reader.has(manifestEntry)) {
    const inSchema = (await reader.schema())?.["manifest"];
    if (!isObject(inSchema)) throw broken("bad_metadata", "S-MAN-1", "the file has no manifest");
    if (isSigned && (inSchema["files"] ?? null) !== null) {
      throw uncovered("the manifest is not an entry, so the identity does not cover it");
    }
    return { files: inSchema["files"] ?? null };
  }
  const fields = await reader.readJson(manifestEntry, "S-MAN-1");
  if (isSigned) await checkCovered(reader, fields);
  return fields;
}

function uncovered(problem: string): ShardError {
  return broken("identity_mismatch", "S-MAN-7", problem);
}

/** Checks that the stored identity covers the manifest (S-MAN-7). */
async function checkCovered(reader: ShardReader, fields: JsonObject): Promise<void> {
  const stored = parseIdentity(await reader.read(identityEntry));
  if (stored.entries[manifestEntry] !== (await sha256(await reader.read(manifestEntry)))) {
    throw uncovered("the stored identity does not cover the manifest");
  }
  if (stored.version === 2 && stored.role !== Role.manifest) throw uncovered("the stored identity is of another role");
  await checkSchemaLists(reader, fields);
}

/** A list in the schema section must also be in the entry. */
export async function checkSchemaLists(reader: ShardReader, fields: JsonObject): Promise<void> {
  const inSchema = (await reader.schema())?.["manifest"];
  if (!isObject(inSchema)) return;
  for (const key of ["files", "chunks"]) {
    const listed = inSchema[key] ?? null;
    if (listed !== null && canonicalJson(listed) !== canonicalJson(fields[key] ?? null)) {
      throw uncovered("the schema section lists other files than the manifest");
    }
  }
}

function checkRows(list: Json[]): ManifestRow[] {
  const seen = new Set<string>();
  for (const row of list) {
    if (!isObject(row)) throw broken("bad_metadata", "S-MAN-1", "a row of the manifest is not an object");
    const { uri, sha256: digest, size } = row;
    if (typeof uri !== "string" || uri === "" || uri.includes("\0")) {
      throw wrong("uri", "a string that is not empty, without NUL");
    }
    if ((digest ?? null) !== null && !isDigest(digest)) throw wrong("sha256", "64 lower-case hex digits");
    if ((size ?? null) !== null && (!isInteger(row, "size") || (size as number | bigint) < 0)) {
      throw wrong("size", "an integer of 0 or more");
    }
    for (const field of ["start_key", "end_key"]) {
      if ((row[field] ?? null) !== null && typeof row[field] !== "string") throw wrong(field, "a string");
    }
    if (seen.has(uri)) {
      throw broken("bad_metadata", "S-MAN-2", "the manifest names a file twice", { found: shortened(uri) });
    }
    seen.add(uri);
  }
  return list as ManifestRow[];
}

function wrong(field: string, expected: string): ShardError {
  return broken("bad_metadata", "S-MAN-2", `'${field}' of a row is wrong`, { expected });
}

/** Checks that a `uri` is a relative path that stays in its folder (S-MAN-4). Links are the business of the source. */
export function checkUri(uri: string): void {
  const parts = uri.split("/");
  const bytes = encodeUtf8(uri)?.length ?? Number.POSITIVE_INFINITY;
  let depth = 0;
  let leaves = false;
  for (const part of parts) {
    if (part === "..") depth--;
    else if (part !== "." && part !== "") depth++;
    leaves ||= depth < 0;
  }
  const isUnsafe =
    leaves ||
    /[\\\0]/.test(uri) ||
    /^\/|^[A-Za-z][A-Za-z0-9+.-]*:/.test(uri) ||
    bytes > maxPathBytes ||
    parts.length > maxPathParts;
  if (!isUnsafe) return;
  const details = { expected: "a relative path with slashes", found: shortened(uri) };
  throw broken("unsafe_path", "S-MAN-4", "a path leaves its folder, or is not a path", details);
}
