// What checking tools find out about a file.

import { decodeUtf8, encodeUtf8 } from "./bytes.js";
import { hasChecksum } from "./content.js";
import { broken, invalid, located } from "./errors.js";
import { storedNameHash } from "./head.js";
import {
  computeIdentity,
  difference,
  type Identity,
  type IdentityVersion,
  isDigest,
  parseIdentity,
} from "./identity.js";
import {
  episodeEntry,
  identityEntry,
  knownEntryFlags,
  knownHeaderFlags,
  manifestEntry,
  reservedBytes,
} from "./layout.js";
import { checkSchemaLists, readManifest } from "./manifest.js";
import type { ShardReader } from "./reader.js";
import { Role, type WarningCode } from "./registry.js";
import { xxh64 } from "./xxh64.js";

/** A gap of this size is larger than alignment needs. */
const largestAlignment = 64;
const pieceSize = 65536;

/** The codes, sorted, of what is unusual about a file that can be read. Reads the bytes between blocks. */
export async function findWarnings(reader: ShardReader): Promise<WarningCode[]> {
  const { header, index } = reader;
  const found = new Set<WarningCode>();
  let before = 0;
  for (let i = 0; i < index.names.length; i++) {
    const entry = index.row(i);
    if (xxh64(encodeUtf8(index.names[i]) as Uint8Array) !== storedNameHash(reader.head, i))
      found.add("name_hash_mismatch");
    const isMisaligned = header.alignment > 0 && entry.dataOffset % header.alignment !== 0;
    if (entry.diskSize > 0 && isMisaligned) found.add("misaligned");
    if (entry.origSize > 0 && !hasChecksum(entry, header)) found.add("no_checksum");
    if (entry.dataOffset < before) found.add("not_ascending");
    if (entry.flags & ~knownEntryFlags) found.add("nonzero_reserved");
    before = entry.dataOffset;
  }
  if (header.flags & ~knownHeaderFlags || !isZero(reservedBytes(reader.head))) found.add("nonzero_reserved");
  try {
    await checkGaps(reader, found);
  } catch (error) {
    throw located(error, reader.path);
  }
  return [...found].sort();
}

function isZero(bytes: Uint8Array): boolean {
  return bytes.every((byte) => byte === 0);
}

/** Looks at the bytes of the data section that belong to no block. */
async function checkGaps(reader: ShardReader, found: Set<WarningCode>): Promise<void> {
  const { schemaOffset, dataSectionOffset, totalFileSize } = reader.header;
  const end = schemaOffset === 0 || schemaOffset > totalFileSize ? totalFileSize : schemaOffset;
  let at = dataSectionOffset;
  for (const block of [...reader.index.inOrder(), { start: end, end }]) {
    if (block.start - at >= largestAlignment) found.add("unreferenced_bytes");
    for (let from = at; from < block.start; from += pieceSize) {
      const piece = await reader.readStored(from, Math.min(pieceSize, block.start - from));
      if (!isZero(piece)) found.add("nonzero_padding");
    }
    at = Math.max(at, block.end);
  }
}

/** Reads and checks every entry, the seek tables, the schema section, and what the role promises. */
export async function verifyShard(reader: ShardReader): Promise<void> {
  for (const name of reader.names) {
    await reader.read(name);
    let start = 0;
    for (const { decompressedSize } of (await reader.seekFrames(name)) ?? []) {
      await reader.readRange(name, start, start + decompressedSize);
      start += decompressedSize;
    }
  }
  await reader.schema();
  const { role } = reader.header;
  try {
    if (role === Role.manifest) await readManifest(reader);
    if (role === Role.wshard) await reader.readJson(episodeEntry);
  } catch (cause) {
    const [rule, what] = role === Role.manifest ? ["S-ROL-2", "a manifest"] : ["S-ROL-3", "an episode"];
    throw broken("bad_profile", rule, `not ${what}, as its role promises`, { cause, path: reader.path });
  }
}

/** An identity from somewhere you trust. */
export interface ExpectedIdentity {
  digest: string;
  /** Undefined compares with both. */
  version?: IdentityVersion;
}

/**
 * Recomputes the identity of a file, compares it with the stored one and, if it is given, with the expected one, and
 * returns the version that fits (S-IDN-1, S-IDN-2, S-IDN-4). Version 1 covers neither the role nor the schema section.
 */
export async function verifyIdentity(reader: ShardReader, expected?: ExpectedIdentity): Promise<IdentityVersion> {
  try {
    const text = expected === undefined || reader.has(identityEntry) ? await reader.read(identityEntry) : undefined;
    const stored = text && parseIdentity(text);
    const found = await computeIdentity(reader);
    if (stored && text && decodeUtf8(text) !== found.text(stored.version)) throw difference(found, stored);
    const version = expected ? await fittingVersion(found, expected) : (stored?.version ?? 2);
    await checkManifestLists(reader);
    return version;
  } catch (error) {
    throw located(error, reader.path);
  }
}

/** The hashed text has its version, so a digest fits one version at most. */
async function fittingVersion(found: Identity, { digest, version }: ExpectedIdentity): Promise<IdentityVersion> {
  if (!isDigest(digest))
    throw invalid("this is not an identity", { expected: "64 lower-case hex digits", found: digest });
  for (const candidate of version ? [version] : ([2, 1] as const)) {
    if ((await found.digest(candidate)) === digest) return candidate;
  }
  const details = { expected: digest, found: await found.digest(version) };
  throw broken("identity_mismatch", "S-SIG-1", "the content does not fit the identity", details);
}

/** In a manifest, a list in the schema section must also be in the entry (S-MAN-7). */
export async function checkManifestLists(reader: ShardReader): Promise<void> {
  if (reader.header.role !== Role.manifest) return;
  const fields = reader.has(manifestEntry) ? await reader.readJson(manifestEntry, "S-MAN-1") : {};
  await checkSchemaLists(reader, fields);
}
