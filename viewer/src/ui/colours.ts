// Colours for canvases, which cannot use CSS variables by name. Read again when the theme changes.

import { type ReadonlySignal, signal } from "@preact/signals";

export type Theme = "light" | "dark";

const current = signal<Theme>("light");

/** The theme that is shown. Reading `.value` draws a canvas again when it changes. */
export const theme: ReadonlySignal<Theme> = current;

export function showTheme(wanted: Theme): void {
  document.documentElement.dataset["theme"] = wanted;
  known.clear();
  current.value = wanted;
}

/** What was looked up in the theme that is shown: drawings ask hundreds of times. */
const known = new Map<string, string>();

/** The value of a variable of theme.css, such as `--grid`, in the theme that is shown. */
export function colour(name: string): string {
  theme.value;
  let found = known.get(name);
  if (found === undefined) {
    found = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    known.set(name, found);
  }
  return found;
}

/** The colour of a dimension: the same in every panel. */
export function seriesColour(dimension: number): string {
  return colour(`--series-${dimension % 8}`);
}
