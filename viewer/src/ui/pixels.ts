// How many pixels a canvas has for each CSS pixel. A picture that is exported at 2× draws everything again with more.

import { type ReadonlySignal, signal } from "@preact/signals";

const current = signal(typeof devicePixelRatio === "number" ? devicePixelRatio : 1);

/** Reading `.value` draws a canvas again when it changes. */
export const pixelRatio: ReadonlySignal<number> = current;

export function drawWith(ratio: number): void {
  current.value = ratio;
}
