// The texts of the interface. Each panel has its own in panels/<name>/words.ts, in the same form.

export const words = {
  title: "Shard viewer",
  open: {
    heading: "See an episode",
    drop: "Drop episodes or a folder here",
    or: "or",
    files: "Choose files",
    folder: "Choose a folder",
    url: "Address of a file",
    urlExample: "https://example.org/episode.wshard",
    openUrl: "Open",
    private: "Files stay on this computer. The page loads nothing and sends nothing.",
    kinds:
      "Episodes (.wshard), parts of a long episode with their manifest, recordings in progress (.partial), packs (.shardpack) and other Shard files.",
  },
  panels: {
    series: "Lines",
    wrongGuess: "Show as",
    noPanel: "No panel shows this channel.",
    reduced: (factor: number) => `1 : ${factor.toLocaleString("en")}`,
    reducedHint: (factor: number) =>
      `Each pixel column shows the least and the largest of about ${factor.toLocaleString("en")} samples. Zoom in to see each sample.`,
  },
} as const;
