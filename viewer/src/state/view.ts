// What all panels of an episode share: the cursor, the visible range and playing.

import { type ReadonlySignal, type Signal, signal } from "@preact/signals";
import type { Range } from "../model/reads";

export class View {
  /** The position on the axis that everything refers to: a step, or between two steps. */
  readonly cursor: Signal<number>;
  readonly range: Signal<Range>;
  /** A range that the user has selected: loops, exports and statistics are about it; null for none. */
  readonly selection = signal<Range | null>(null);
  readonly isPlaying = signal(false);
  readonly speed: Signal<number> = signal(1);
  readonly isLooping = signal(false);
  /** Whether the user is dragging or zooming: panels may draw less then. */
  readonly isMoving = signal(false);
  /** Where the pointer is on the axis; null if it is not over a plot. */
  readonly hover = signal<number | null>(null);
  /** Steps per second, if the labels of the axis are seconds; null: they are steps. */
  readonly axisRate = signal<number | null>(null);
  /** Dimension that has the focus (keys 1–9); null for all. */
  readonly dimension = signal<number | null>(null);
  /** Switches of the keyboard: band (B), error (E), difference (D). */
  readonly band = signal(true);
  readonly error = signal(true);
  readonly difference = signal(false);

  /** `length` positions are shown: T, or T + 1 if there is an observation after the last action. */
  constructor(readonly length: ReadonlySignal<number>) {
    this.cursor = signal(0);
    this.range = signal({ start: 0, end: Math.max(1, length.peek()) });
  }

  /** Moves the cursor, and the visible range with it if the cursor leaves it. */
  seek(position: number): void {
    const last = Math.max(0, this.length.peek() - 1);
    const to = Math.min(Math.max(position, 0), last);
    this.cursor.value = to;
    const { start, end } = this.range.peek();
    if (to >= start && to <= end) return;
    const width = end - start;
    this.show({ start: to - width / 2, end: to + width / 2 });
  }

  /** Shows a range, moved inside the episode and not shorter than four steps. */
  show({ start, end }: Range): void {
    const length = Math.max(1, this.length.peek());
    const width = Math.min(Math.max(end - start, Math.min(4, length)), length);
    const middle = (start + end) / 2;
    const from = Math.min(Math.max(0, middle - width / 2), length - width);
    this.range.value = { start: from, end: from + width };
  }

  /** Zooms by a factor (below 1: closer) so that `at` stays where it is. */
  zoom(factor: number, at = this.cursor.peek()): void {
    const { start, end } = this.range.peek();
    const anchor = Math.min(Math.max(at, start), end);
    this.show({ start: anchor - (anchor - start) * factor, end: anchor + (end - anchor) * factor });
  }

  fit(): void {
    this.show(this.selection.peek() ?? { start: 0, end: this.length.peek() });
  }
}
