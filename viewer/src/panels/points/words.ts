import type { Up } from "./cloud";

export const words = {
  title: "Points",
  colour: "Colour",
  by: { height: "Height", distance: "Distance", own: "Own colours" },
  column: (number: number) => `Column ${number + 1}`,
  colours: "Map",
  trail: "Trail",
  size: "Size",
  up: "Up",
  ups: { z: "z", y: "y", "-y": "−y" } satisfies Record<Up, string>,
  fit: "Fit",
  fitHint: "Show all points of this step",
  grid: (step: string) => `Grid ${step}`,
  canvas: "Points in space. Drag to turn, drag with Shift to move, wheel to zoom; arrows turn, + and − zoom.",
  noGraphics:
    "This browser has no WebGL2, which points need. Turn on hardware acceleration, or use a newer browser. Other panels show the numbers.",
  reading: "reading",
  notYet: "No points yet at this time.",
  nothing: "No points at this step.",
  thinned: (every: number) => `1 of ${every} points`,
  summary: (points: string, entry: number) => `${points} points, entry ${entry}`,
} as const;
