export const words = {
  title: "Residual",
  choose: "Residual",
  bends: "sign of the second difference",
  differences: "quantised differences",
  of: (type: string, model: string) => (model === "" ? type : `${type} · ${model}`),
  peak: "peak (+1)",
  dip: "dip or line (−1)",
  agreement: (share: string, count: number) => `${share} of ${count.toLocaleString("en")} agree with the signal`,
  within: (share: string, count: number) => `${share} of ${count.toLocaleString("en")} within half a scale`,
  noSignal: "The signal is not in this episode: nothing to compare with.",
  windows: (far: string) => `The largest difference in each window, up to ±${far}. Zoom in to see each one.`,
  zoomIn: "Zoom in to compare with the signal.",
  atCursor: (code: string, scale: string, difference: string, unit: string) =>
    `${code} × ${scale} = ${difference}${unit === "" ? "" : ` ${unit}`}`,
  dimension: (dimension: number) => `[${dimension}]`,
  notShown: (shown: number, all: number) => `${shown} of ${all} dimensions: make the panel higher to see more`,
  summary: (type: string, dimensions: number, comparison: string) =>
    `${type} of ${dimensions} dimensions. ${comparison}`,
} as const;
