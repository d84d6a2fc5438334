export const words = {
  title: "Heat map",
  colours: "Colours",
  range: "Range",
  ranges: { all: "All values", visible: "Visible", rows: "Each dimension" },
  cells: "Cells",
  kinds: { both: "Extremes", largest: "Maximum", least: "Minimum" },
  reading: (percent: string) => `reading, ${percent}`,
  shared: (count: number) => `${count} dimensions in a row`,
  dimension: (dimension: number) => `dimension ${dimension}`,
  summary: (dimensions: string, min: string, max: string) =>
    `${dimensions} dimensions over time, from ${min} to ${max}`,
  tooMany: (dimensions: string) => `A heat map shows at most 1,024 dimensions; this channel has ${dimensions}.`,
  between: (min: string, max: string) => `${min} to ${max}`,
  noValue: "no value",
} as const;
