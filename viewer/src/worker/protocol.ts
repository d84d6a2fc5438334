// What the page and its worker say to each other.

import type { EpisodeFacts } from "../model/facts";

/** Where files come from. */
export type Given =
  /** Files that were dropped or chosen, by their paths with slashes. */
  | { readonly kind: "files"; readonly files: readonly { readonly path: string; readonly file: Blob }[] }
  | { readonly kind: "url"; readonly url: string }
  /** `wshard view`: the address of the page's folder, and the token that every request carries. */
  | { readonly kind: "server"; readonly base: string; readonly token: string }
  | { readonly kind: "embedded"; readonly files: readonly { readonly name: string; readonly base64: string }[] }
  /** A notebook: the page gives ranges of these files when the worker asks. */
  | { readonly kind: "widget"; readonly files: readonly { readonly name: string; readonly size: number }[] };

/** One line of the table of episodes. What is not known is null. */
export interface EpisodeRow {
  readonly number: number;
  /** Its path in the folder, its address, or the pack and the key in it. */
  readonly name: string;
  readonly kind: "episode" | "recording" | "unfinished" | "container";
  /** A journal that `wshard recover` makes an episode of, because its recorder is gone; empty for others. */
  readonly recover: string;
  readonly id: string;
  readonly envId: string;
  readonly task: string;
  readonly length: number | null;
  readonly duration: number | null;
  readonly return: number | null;
  readonly success: boolean | null;
  readonly channels: number | null;
  readonly bytes: number;
  readonly findings: number | null;
  /** Rewards in at most 60 columns, from the least to the largest: 0 to 1. */
  readonly spark: readonly number[] | null;
  /** Whether a file beside it may have small images. */
  readonly hasOverview: boolean;
  /** Why it cannot be opened. */
  readonly problem: string | null;
}

/** A file that is there and is not shown. */
export interface LeftOut {
  readonly name: string;
  readonly problem: string;
}

/** What a list begins with. */
export interface Listed {
  /** The row to open first; null if the user must choose. */
  readonly first: number | null;
  /** What `wshard view` shows, in its words. */
  readonly title: string | null;
}

export interface OpenedEpisode {
  readonly handle: number;
  readonly facts: EpisodeFacts;
}

/** A file that holds no episode. */
export interface OpenedContainer {
  readonly handle: number;
  readonly name: string;
  readonly role: number;
  readonly size: number;
}

/** What the page asks for: the name of a method, its arguments, and a number for the answer. */
export interface Question {
  readonly id: number;
  readonly method: string;
  readonly args: readonly unknown[];
}

export type ToWorker =
  | Question
  | { readonly cancel: number }
  /** A range that the worker asked for (`want`). */
  | { readonly given: number; readonly bytes: Uint8Array }
  | { readonly given: number; readonly refused: string };

export interface Problem {
  readonly name: string;
  readonly message: string;
  /** The code of a ShardError. */
  readonly code: string;
}

export type FromWorker =
  | { readonly id: number; readonly value: unknown }
  | { readonly id: number; readonly problem: Problem }
  /** More of a channel was read. */
  | { readonly arrived: string; readonly handle: number }
  /** Lines of the table that are new or have changed. */
  | { readonly rows: readonly EpisodeRow[]; readonly isComplete: boolean }
  | { readonly leftOut: readonly LeftOut[] }
  /** A recording has grown. */
  | { readonly grown: number; readonly facts: EpisodeFacts }
  | { readonly want: number; readonly file: string; readonly offset: number; readonly length: number };
