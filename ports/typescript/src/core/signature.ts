// Detached Ed25519 signatures of an identity.

import { encodeUtf8, fromHex, toHex } from "./bytes.js";
import { broken, invalid, ShardError } from "./errors.js";
import { computeIdentity, type IdentityVersion, isDigest } from "./identity.js";
import { canonicalBytes, isInteger, parseJsonObject } from "./json.js";
import type { ShardReader } from "./reader.js";
import { checkManifestLists, verifyIdentity } from "./verify.js";

/** What a signature file says. */
export interface Signature {
  /** The signed identity: 64 hex digits. */
  identity: string;
  /** The key that made it, in hex. Only a claim: compare it with a key you trust. */
  publicKey: string;
  /** 128 hex digits. */
  signature: string;
  /** The version of the identity. */
  version: IdentityVersion;
}

/** Parses a signature file, by convention `<file>.sig` (S-SIG-2). */
export function parseSignature(text: Uint8Array): Signature {
  const fields = parseJsonObject(text, { what: "the signature", rule: "S-SIG-2" });
  const { algorithm, identity, public_key: publicKey, signature, v: version } = fields;
  if (
    algorithm !== "ed25519" ||
    (version !== 1 && version !== 2) ||
    !isInteger(fields, "v") ||
    !isDigest(identity) ||
    !isDigest(publicKey) ||
    typeof signature !== "string" ||
    !/^[0-9a-f]{128}$/.test(signature)
  ) {
    throw broken("bad_metadata", "S-SIG-2", "this is not a signature");
  }
  return { identity, publicKey, signature, version };
}

/** The content of a signature file. */
export function packSignature({ identity, publicKey, signature, version }: Signature): Uint8Array {
  return canonicalBytes({ algorithm: "ed25519", identity, public_key: publicKey, signature, v: version });
}

/** Has the version, so a genuine signature fits one version only. */
function message(identity: string, version: IdentityVersion): BufferSource {
  return encodeUtf8(`shard-identity-v${version}:${identity}`) as BufferSource;
}

/** Computes the identity of a file and signs it with an Ed25519 key of Web Crypto. */
export async function signShard(reader: ShardReader, keys: CryptoKeyPair): Promise<Signature> {
  const identity = await computeIdentity(reader);
  await checkManifestLists(reader);
  const digest = await identity.digest();
  const signature = await crypto.subtle.sign("Ed25519", keys.privateKey, message(digest, 2));
  const publicKey = await crypto.subtle.exportKey("raw", keys.publicKey);
  return {
    identity: digest,
    publicKey: toHex(new Uint8Array(publicKey)),
    signature: toHex(new Uint8Array(signature)),
    version: 2,
  };
}

/**
 * Checks that a file has the content that the holder of a key signed, and returns the version of the signed identity
 * (S-SIG-1). The key inside the signature is not used: give one that you trust, as 32 bytes or 64 hex digits.
 */
export async function verifySignature(
  reader: ShardReader,
  signature: Signature,
  trustedKey: Uint8Array | string,
): Promise<IdentityVersion> {
  const { identity, version } = signature;
  const key = await importKey(typeof trustedKey === "string" ? fromHex(trustedKey) : trustedKey);
  const bytes = fromHex(signature.signature) ?? new Uint8Array(0);
  if (!(await crypto.subtle.verify("Ed25519", key, bytes as BufferSource, message(identity, version)))) {
    const details = { found: `a signature that claims the key ${signature.publicKey}`, path: reader.path };
    throw broken("bad_signature", "S-SIG-1", "the signature was not made with this key for this identity", details);
  }
  return verifyIdentity(reader, { digest: identity, version });
}

async function importKey(bytes: Uint8Array | undefined): Promise<CryptoKey> {
  if (bytes?.length !== 32) throw invalid("a public key of Ed25519 has 32 bytes", { found: bytes?.length });
  try {
    return await crypto.subtle.importKey("raw", bytes as BufferSource, "Ed25519", false, ["verify"]);
  } catch (cause) {
    throw new ShardError("missing_extra", "Web Crypto has no Ed25519 here", { cause });
  }
}
