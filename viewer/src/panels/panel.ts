// What a panel is. Each panel has a folder and registers one `Panel` in panels/index.ts.

import type { JsonObject } from "@shard-format/core";
import type { ComponentType } from "preact";
import type { EpisodeModel, Subject } from "../model/episode";
import type { View } from "../state/view";
import type { MakeTable } from "./table";

export interface PanelProps {
  readonly episode: EpisodeModel;
  readonly subject: Subject;
  /** The cursor, the visible range and playing: signals that all panels share. Reading `.value` redraws on a change. */
  readonly view: View;
  /** The place for the drawing, in CSS pixels. Plots over time draw from `gutter.left` to `width - gutter.right`. */
  readonly width: number;
  readonly height: number;
  /** What the user chose for this panel. It is part of the link, so it is small and plain. */
  readonly settings: JsonObject;
  readonly change: (settings: JsonObject) => void;
  /** Tells the frame of the panel what it shows beside the title. Call it when something changes. */
  readonly report: (status: PanelStatus) => void;
}

export interface PanelStatus {
  /** How many samples one drawn column stands for; 1 or nothing: everything is drawn. */
  readonly reducedBy?: number;
  /** What is missing, such as "reading, 40 %". */
  readonly note?: string;
  /** Why nothing can be shown. */
  readonly problem?: string;
  /** What the panel shows in words, for people who do not see it: range, least, largest, extremes of the error. */
  readonly summary?: string;
}

export interface Panel {
  /** Short and lasting: it is in links. */
  readonly name: string;
  /** What the menu calls it. */
  readonly title: string;
  /** How well the panel shows a subject: 0 not at all, 1 possible, 10 made for it. The best one is the default. */
  fits(subject: Subject, episode: EpisodeModel): number;
  /** The height that it starts with, in CSS pixels. */
  height(subject: Subject, settings: JsonObject): number;
  /** Whether the panel has the time axis from left to right, or shows one moment. Moments stand side by side. */
  readonly isOverTime: boolean;
  readonly component: ComponentType<PanelProps>;
  /** What the drawing shows as numbers. Panels that write all of it as text have none. */
  readonly table?: MakeTable;
}

/** Every plot over time leaves these margins, so that stacked plots share their left and right edges. */
export const gutter = { left: 64, right: 12 } as const;
