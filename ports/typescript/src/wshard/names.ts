/** Names of blocks, and the lanes and keys that follow from them (spec/wshard.md, section 2). */

import { ShardError } from "../core/errors.js";

export const metaWshard = "meta/wshard";
export const metaEpisode = "meta/episode";
export const metaChannels = "meta/channels";
export const metaProvenance = "meta/provenance";
export const metaIdentity = "meta/identity";
export const metaSidecar = "meta/sidecar";
export const metaEdit = "meta/edit";
export const metaManifest = "meta/manifest";
export const reward = "reward";
export const rewardExact = "reward/exact";
export const done = "done";
export const terminated = "terminated";
export const truncated = "truncated";
export const timeTicks = "time/ticks";
export const timeStamps = "time/timestamps_ns";
export const signs = "sign2nddiff";
export const differences = "delta_q";
export const scalesSuffix = "/scales";
export const latentAction = "latent_action";
export const latentCodebook = "latent_action_codebook";

/** A name, taken apart. `kind` is the type of an uncertainty or a residual. */
export interface BlockKeys {
  readonly lane: string;
  readonly channel: string;
  readonly model: string;
  readonly kind: string;
}

/** The text before and after the first `/`. */
export function splitFirst(text: string): [string, string] {
  const at = text.indexOf("/");
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}

/** The text before and after the last `/`. */
export function splitLast(text: string): [string, string] {
  const at = text.lastIndexOf("/");
  return at < 0 ? ["", text] : [text.slice(0, at), text.slice(at + 1)];
}

/** Takes a name apart by its form alone, as readers do where no row says more. */
export function parseBlock(name: string): BlockKeys {
  const [lane, rest] = splitFirst(name);
  if (lane === "omen") {
    const [channel, model] = splitFirst(rest);
    return { lane, channel, model, kind: "" };
  }
  if (lane === "uncert") {
    const [channel, more] = splitFirst(rest);
    const [model, kind] = splitLast(more);
    return { lane, channel, model, kind };
  }
  if (lane === "residual") {
    const [channel, kind] = splitLast(rest);
    return { lane, channel, model: "", kind };
  }
  return { lane, channel: rest, model: "", kind: "" };
}

/** The name of keys; an empty model is left out. */
export function joinKeys(...keys: string[]): string {
  return keys.filter((key) => key !== "").join("/");
}

/** Under which key an episode has a residual block. */
export function residualKey(block: string): string {
  const rest = block.slice("residual/".length);
  return rest.endsWith(`/${signs}`) ? rest.slice(0, -signs.length - 1) : rest;
}

/** Whether a block may hold the entry after the last step (W-BLK-2). */
export function mayHaveOneMore(block: string): boolean {
  return block.startsWith("signal/") || block.startsWith("omen/") || block.startsWith("uncert/");
}

/** W-NAM-1: what a caller names must make a plain name. */
export function checkId(id: string, what: string): void {
  const isPlain = id.split("/").every((part) => part !== "" && part !== "." && part !== "..") && !id.includes("\0");
  if (isPlain) return;
  throw new ShardError("invalid_argument", `the name of ${what} has an empty part, or a part '.' or '..'`, {
    rule: "W-NAM-1",
    expected: "parts between slashes that are names, such as 'wrist/rgb'",
    found: JSON.stringify(id),
  });
}

const fileOrder: readonly string[] = [
  metaWshard,
  metaEpisode,
  metaChannels,
  "signal/",
  "action/",
  reward,
  rewardExact,
  done,
  terminated,
  truncated,
  timeTicks,
  timeStamps,
  "time/",
  "offsets/",
  "frames/",
  "omen/",
  "uncert/",
  "residual/",
  "label/",
  "",
  "meta/",
  metaProvenance,
  metaIdentity,
];
const rowOrder: readonly string[] = ["signal", "action", "reward", "omen", "uncert", "residual"];

/** The group of an entry in a canonical file (section 15). */
export function fileGroup(name: string): number {
  const whole = fileOrder.indexOf(name);
  if (whole >= 0 && name !== "") return whole;
  const lane = fileOrder.indexOf(`${splitFirst(name)[0]}/`);
  return lane >= 0 ? lane : fileOrder.indexOf("");
}

/** The group of a row in `meta/channels` (section 15). */
export function rowGroup(block: string): number {
  const group = rowOrder.indexOf(splitFirst(block)[0]);
  return group < 0 ? rowOrder.length : group;
}
