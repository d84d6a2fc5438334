// What a checking tool finds out about an episode: every lane is read, and rules that readers leave alone are checked.

import { sha256 } from "../core/bytes.js";
import { broken, located, ShardError } from "../core/errors.js";
import { computeIdentity } from "../core/identity.js";
import { readManifest } from "../core/manifest.js";
import { Role } from "../core/registry.js";
import type { Channel } from "./channels.js";
import { parseChunkManifest } from "./chunks.js";
import type { Episode } from "./episode.js";
import { checkProvenance } from "./metadata.js";
import { done, metaProvenance, metaSidecar, terminated, truncated } from "./names.js";
import { fingerprint, readBases } from "./sidecars.js";

/** Reads everything of an episode; returns what breaks a rule. */
export async function checkEpisode(episode: Episode): Promise<ShardError[]> {
  const problems = [...episode.problems];
  const attempt = async (work: () => Promise<unknown>) => {
    try {
      await work();
    } catch (error) {
      if (!(error instanceof ShardError)) throw error;
      problems.push(located(error, episode.files[0]?.path) as ShardError);
    }
  };
  for (const channel of channelsOf(episode)) await attempt(() => readChannel(channel));
  for (const residual of episode.residuals.values()) await attempt(() => residual.bytes());
  for (const label of episode.labels.values()) await attempt(() => label.read());
  for (const extra of episode.extras.values()) await attempt(() => extra.source.read());
  await attempt(() => checkProvenanceOf(episode));
  await attempt(() => checkUnion(episode));
  await attempt(() => checkIdentities(episode));
  await attempt(() => checkHashes(episode));
  return problems;
}

/** All channels of an episode. */
export function* channelsOf(episode: Episode): Generator<Channel> {
  yield* episode.observations.values();
  yield* episode.actions.values();
  for (const models of episode.omens.values()) yield* models.values();
  for (const models of episode.uncerts.values()) for (const kinds of models.values()) yield* kinds.values();
  const { rewards, terminations, truncations, clocks } = episode;
  for (const one of [rewards, terminations, truncations, clocks.ticks, clocks.timestamps]) if (one !== null) yield one;
}

/** Reads everything of a channel. */
export async function readChannel(channel: Channel): Promise<void> {
  if (channel.layout === "video") await channel.checkPictures();
  await channel.data();
  await channel.timestampsNs();
}

async function checkProvenanceOf(episode: Episode): Promise<void> {
  for (const file of episode.files) {
    if (file.has(metaProvenance)) checkProvenance(await file.readJson(metaProvenance, "W-PRV-1"));
  }
}

/** W-END-3 */
async function checkUnion(episode: Episode): Promise<void> {
  for (const file of episode.files) {
    const others = [terminated, truncated].filter((name) => file.has(name));
    if (!file.has(done) || others.length === 0) continue;
    const union = await file.read(done);
    const parts = await Promise.all(others.map((name) => file.read(name)));
    for (let step = 0; step < union.length; step++) {
      if (parts.some((part) => part[step]) === union[step] > 0) continue;
      throw broken("bad_value", "W-END-3", "'done' is not the union of the other ends", {
        entry: done,
        found: `step ${step}`,
      });
    }
  }
}

/** W-SID-4 */
async function checkIdentities(episode: Episode): Promise<void> {
  const [base, ...others] = episode.files;
  const sidecars = others.filter((file) => file.has(metaSidecar));
  if (sidecars.length === 0) return;
  const identity = await computeIdentity(base);
  const digests = [await identity.digest(1), await identity.digest(2)];
  const own = await fingerprint(base);
  for (const sidecar of sidecars) {
    const bases = await readBases(sidecar);
    const stated = bases.find((one) => one.fingerprint === own) ?? bases[0];
    if (!("identity" in stated) || digests.includes(stated.identity as string)) continue;
    const details = { path: sidecar.path, entry: metaSidecar, expected: String(stated.identity), found: digests[1] };
    throw broken("identity_mismatch", "W-SID-4", "the sidecar was made for an episode with other content", details);
  }
}

/** W-CHK-7: the hashes of chunks. */
async function checkHashes(episode: Episode): Promise<void> {
  const [manifest, ...chunks] = episode.files;
  if (manifest?.header.role !== Role.manifest) return;
  const { chunks: rows } = parseChunkManifest((await readManifest(manifest)).fields);
  for (const [number, row] of rows.entries()) {
    const chunk = chunks[number];
    if (row.sha256 === null) continue;
    const found = await sha256(await chunk.readStored(0, chunk.header.totalFileSize));
    if (found === row.sha256) continue;
    const problem = "the chunk is not the file that the manifest names";
    throw broken("reference_mismatch", "W-CHK-7", problem, { path: chunk.path, expected: row.sha256, found });
  }
}
