// How many pixels a canvas has for each CSS pixel. A picture that is exported at 2× draws everything again with more.

import { effect, type ReadonlySignal, signal } from "@preact/signals";

const current = signal(typeof devicePixelRatio === "number" ? devicePixelRatio : 1);

/** Reading `.value` draws a canvas again when it changes. */
export const pixelRatio: ReadonlySignal<number> = current;

export function drawWith(ratio: number): void {
  current.value = ratio;
}

/** The size of a canvas element, in pixels and on the page. */
export function canvasSize(width: number, height: number) {
  return {
    width: Math.round(width * current.value),
    height: Math.round(height * current.value),
    style: { width: `${width}px`, height: `${height}px` },
  };
}

/** Draws once a frame at most, when a signal changes that `read` reads. Returns the function that ends it. */
export function drawInFrames<T>(read: () => T, draw: (value: T) => void): () => void {
  let frame = 0;
  const stop = effect(() => {
    const value = read();
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => draw(value));
  });
  return () => {
    stop();
    cancelAnimationFrame(frame);
  };
}
