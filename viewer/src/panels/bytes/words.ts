export const words = {
  title: "Bytes",
  goTo: "Go to",
  goToHint: "offset, such as 4096 or 0x1000",
  previous: "Earlier",
  next: "Later",
  empty: "This entry is empty.",
  notFound: "No file of this episode holds these bytes.",
  decoded: (start: string, end: string, all: string) => `bytes ${start} to ${end} of ${all}, decoded`,
  summary: (size: string) => `Hex view of ${size} bytes.`,
  reading: "reading …",
  file: "File",
} as const;
