// Links: everything that is visible is in the fragment of the address. Never contents of files, and never the token.

import type { JsonObject } from "@shard-format/core";
import type { Range } from "../model/reads";

/** What the user chose for one panel. */
export interface PanelChoice {
  /** The name of the panel; empty: the one that fits best. */
  readonly as: string;
  readonly settings: JsonObject;
}

export interface Link {
  /** The address of the file; empty for files of this computer. */
  readonly source: string;
  /** The name of the row of the table; empty for the only one. */
  readonly row: string;
  /** The id of the episode, to say what is missing where the link is opened without the file. */
  readonly id: string;
  readonly cursor: number | null;
  readonly range: Range | null;
  readonly selection: Range | null;
  /** Keys of the subjects on the stage, in their order; null: the usual ones. */
  readonly shown: readonly string[] | null;
  readonly panels: ReadonlyMap<string, PanelChoice>;
  /** The tab of the inspector; empty: closed. */
  readonly tab: string;
  /** What is compared, and how; null: nothing. */
  readonly compare: JsonObject | null;
  /** Names of flagged episodes, as the table shows them. */
  readonly flagged: readonly string[];
}

export const emptyLink: Link = {
  source: "",
  row: "",
  id: "",
  cursor: null,
  range: null,
  selection: null,
  shown: null,
  panels: new Map(),
  tab: "",
  compare: null,
  flagged: [],
};

/** Letters of the names of flagged episodes that a link holds: a browser takes no address of any length. */
const mostFlagged = 1 << 16;

/** A number rounded to a thousandth of a step. */
function short(value: number): string {
  return String(Math.round(value * 1000) / 1000);
}

export function encodeLink(link: Link): string {
  const parts = new URLSearchParams();
  if (link.source !== "") parts.set("src", link.source);
  if (link.row !== "") parts.set("file", link.row);
  if (link.id !== "") parts.set("id", link.id);
  if (link.cursor !== null) parts.set("t", short(link.cursor));
  if (link.range !== null) parts.set("range", `${short(link.range.start)},${short(link.range.end)}`);
  if (link.selection !== null) parts.set("select", `${short(link.selection.start)},${short(link.selection.end)}`);
  if (link.shown !== null) parts.set("show", JSON.stringify(link.shown));
  if (link.panels.size > 0) {
    const panels = Object.fromEntries([...link.panels].map(([key, { as, settings }]) => [key, { as, ...settings }]));
    parts.set("panels", JSON.stringify(panels));
  }
  if (link.tab !== "") parts.set("tab", link.tab);
  if (link.compare !== null) parts.set("compare", JSON.stringify(link.compare));
  const flagged = JSON.stringify(link.flagged);
  if (link.flagged.length > 0 && flagged.length <= mostFlagged) parts.set("flag", flagged);
  // Characters that need no code in a fragment stay readable.
  return parts.toString().replace(/%2F/g, "/").replace(/%3A/g, ":").replace(/%2C/g, ",");
}

/** What a fragment says. Parts that are wrong count as absent: a link may be old, or somebody's joke. */
export function decodeLink(fragment: string): Link {
  const parts = new URLSearchParams(fragment.replace(/^#/, ""));
  const shown = texts(parsed(parts.get("show")));
  const panels = new Map<string, PanelChoice>();
  const choices = parsed(parts.get("panels"));
  const compare = parsed(parts.get("compare"));
  if (isObject(choices)) {
    for (const [key, choice] of Object.entries(choices)) {
      if (!isObject(choice)) continue;
      const { as, ...settings } = choice;
      panels.set(key, { as: typeof as === "string" ? as : "", settings });
    }
  }
  return {
    source: parts.get("src") ?? "",
    row: parts.get("file") ?? "",
    id: parts.get("id") ?? "",
    cursor: numberOf(parts.get("t")),
    range: rangeOf(parts.get("range")),
    selection: rangeOf(parts.get("select")),
    shown,
    panels,
    tab: parts.get("tab") ?? "",
    compare: isObject(compare) ? compare : null,
    flagged: texts(parsed(parts.get("flag"))) ?? [],
  };
}

function numberOf(text: string | null): number | null {
  const value = text === null || text === "" ? Number.NaN : Number(text);
  return Number.isFinite(value) ? value : null;
}

function rangeOf(text: string | null): Range | null {
  const [start, end, ...others] = (text ?? "").split(",").map(numberOf);
  const isRange = start !== null && end !== null && start !== undefined && end !== undefined && others.length === 0;
  return isRange && start < end ? { start, end } : null;
}

function parsed(text: string | null): unknown {
  try {
    return text === null ? null : JSON.parse(text);
  } catch {
    return null;
  }
}

function texts(value: unknown): string[] | null {
  return Array.isArray(value) && value.every((one) => typeof one === "string") ? value : null;
}

function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
