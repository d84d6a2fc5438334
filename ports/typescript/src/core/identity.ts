// The identity of a file: what it holds, whatever its compression, alignment and order.

import { compareUtf8, encodeUtf8, sha256 } from "./bytes.js";
import { broken, type ShardError } from "./errors.js";
import { canonicalBytes, canonicalJson, isInteger, isObject, type JsonObject, parseJsonObject } from "./json.js";
import { identityEntry } from "./layout.js";
import type { ShardReader } from "./reader.js";

/** The version of an identity. Version 1 covers neither the role nor the schema section. */
export type IdentityVersion = 1 | 2;

/** What an identity is made of. */
export class Identity {
  /** SHA-256 of the content of each entry but `meta/identity`, in hex. */
  readonly entries: ReadonlyMap<string, string>;
  readonly role: number;
  /** SHA-256 of the canonical schema section. */
  readonly schema: string;

  constructor(entries: ReadonlyMap<string, string>, role: number, schema: string) {
    this.entries = entries;
    this.role = role;
    this.schema = schema;
  }

  /** The canonical text that is hashed, and that a file may carry as `meta/identity`. */
  text(version: IdentityVersion = 2): string {
    const entries = Object.create(null);
    for (const [name, digest] of this.entries) entries[name] = digest;
    const text = { entries, leaf: "sha256", v: version };
    return canonicalJson(version === 1 ? text : { ...text, role: this.role, schema: this.schema });
  }

  /** The identity: 64 hex digits. */
  async digest(version: IdentityVersion = 2): Promise<string> {
    return sha256(encodeUtf8(this.text(version)) as Uint8Array); // names are well-formed
  }
}

/** Computes the identity of a file. It reads every entry. */
export async function computeIdentity(reader: ShardReader): Promise<Identity> {
  const entries = new Map<string, string>();
  for (const name of reader.names) {
    if (name !== identityEntry) entries.set(name, await sha256(await reader.read(name)));
  }
  return new Identity(entries, reader.header.role, await schemaDigest(await reader.schema()));
}

export async function schemaDigest(schema: JsonObject | undefined): Promise<string> {
  return sha256(canonicalBytes(schema ?? {}));
}

/** A stored identity. */
export interface StoredIdentity {
  version: IdentityVersion;
  entries: Record<string, string>;
  role: number | undefined;
  schema: string | undefined;
}

function wrong(problem: string): ShardError {
  return broken("identity_mismatch", "S-IDN-1", problem);
}

/** Reads the text of `meta/identity`, which may be as long as the file has entries. */
export function parseIdentity(text: Uint8Array): StoredIdentity {
  const limits = { maxJsonBytes: text.length, maxJsonNodes: text.length };
  const options = { what: identityEntry, code: "identity_mismatch", rule: "S-IDN-1", ...limits } as const;
  const stored = parseJsonObject(text, options);
  const version = stored["v"];
  if (!isInteger(stored, "v")) throw wrong("meta/identity has no version");
  if (version !== 1 && version !== 2) {
    const details = { expected: "1 or 2", found: String(version) };
    throw broken("unsupported_version", "S-IDN-4", "unknown version of the identity", details);
  }
  const { entries, role, schema } = stored;
  const isRight =
    isObject(entries) &&
    !Object.hasOwn(entries, identityEntry) &&
    Object.values(entries).every(isDigest) &&
    stored["leaf"] === "sha256" &&
    Object.keys(stored).length === (version === 1 ? 3 : 5) &&
    (version === 1 || (isInteger(stored, "role") && isDigest(schema)));
  if (!isRight) throw wrong("meta/identity is not the text of an identity");
  if (canonicalJson(stored) !== new TextDecoder().decode(text)) throw wrong("meta/identity is not the canonical text");
  return {
    version,
    entries: entries as Record<string, string>,
    role: version === 2 ? Number(role) : undefined,
    schema: version === 2 ? (schema as string) : undefined,
  };
}

/** Whether a value is a SHA-256 as 64 lower-case hex digits. */
export function isDigest(value: unknown): value is string {
  return typeof value === "string" && /^[0-9a-f]{64}$/.test(value);
}

/** Names the first difference between a file and a stored identity (S-IDN-2). */
export function difference(found: Identity, stored: StoredIdentity): ShardError {
  const differs = (problem: string, entry?: string) => broken("identity_mismatch", "S-IDN-2", problem, { entry });
  if (stored.version === 2 && stored.role !== found.role) return differs("the role is not that of the identity");
  if (stored.version === 2 && stored.schema !== found.schema) {
    return differs("the schema section is not that of the identity");
  }
  const names = new Set([...found.entries.keys(), ...Object.keys(stored.entries)]);
  for (const name of [...names].sort(compareUtf8)) {
    if (!found.entries.has(name)) return differs("an entry of the identity is missing", name);
    if (!Object.hasOwn(stored.entries, name)) return differs("the identity does not have this entry", name);
    if (found.entries.get(name) !== stored.entries[name]) return differs("the entry is not that of the identity", name);
  }
  return wrong("meta/identity is not the canonical text");
}
