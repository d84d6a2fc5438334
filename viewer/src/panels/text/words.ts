export const words = {
  title: "Text and labels",
  atCursor: "At the cursor",
  nothingHere: "nothing",
  search: "Search",
  searchHint: "Search texts",
  list: "All texts",
  confidence: (share: number) => `confidence ${Math.round(share * 100)} %`,
  source: (source: string) => `from ${source}`,
  steps: (start: number, end: number) => (end - start <= 1 ? `step ${start}` : `steps ${start} to ${end - 1}`),
  found: (count: number, all: number) =>
    count === all
      ? `${all.toLocaleString("en")} spans`
      : `${count.toLocaleString("en")} of ${all.toLocaleString("en")} spans`,
  more: (count: number) => `${count.toLocaleString("en")} more: search to narrow the list.`,
  none: "No span has this text.",
  empty: "(empty)",
  cut: (read: number, all: number) => `the first ${read.toLocaleString("en")} of ${all.toLocaleString("en")} entries`,
  summary: (count: number, first: string) =>
    `${count} spans of text${first === "" ? "" : `; the first is “${first}”`}.`,
} as const;
