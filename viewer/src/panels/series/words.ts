export const words = {
  title: "Lines",
  error: "prediction − recorded",
  band: "Uncertainty",
  bandOf: (k: number) => `± ${k} std`,
  edges: (name: string) => `band ${name}`,
  /** An uncertainty without a band. */
  other: (name: string) => `${name} as a line`,
  noBand: "no band",
  yAxis: "Vertical axis",
  auto: "y fits",
  fixed: "y fixed",
  linked: "y linked",
  model: "Model",
  summary: (name: string, from: string, to: string) => `${name}, steps ${from} to ${to}.`,
  extremes: (name: string, low: string, lowAt: string, high: string, highAt: string) =>
    `${name} from ${low} (step ${lowAt}) to ${high} (step ${highAt}).`,
  timesOff: (steps: string) => `times estimated, ± ${steps} steps`,
  forecast: (steps: number, from: number) => `Forecast of ${steps} steps from step ${from}.`,
  nothing: "No finite value in this range.",
} as const;
