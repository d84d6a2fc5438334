export const words = {
  tab: "Export",
  picture: {
    heading: "Picture",
    what: "Part of the page",
    stage: "Stage",
    scale: "Pixels",
    once: "1×",
    twice: "2×",
    save: "Save PNG",
    working: "drawing …",
  },
  table: {
    heading: "Table of values",
    channel: "Channel",
    band: "Band",
    bandOf: (k: number) => `± ${k} std`,
    selection: (rows: string) => `The selection: ${rows} steps.`,
    visible: (rows: string) => `The visible range: ${rows} steps. Select a range on the ruler to export only that.`,
    save: "Save CSV",
    cancel: "Cancel",
    working: (share: number) => `${Math.floor(share * 100)} %`,
    tooLarge: (size: string) => `About ${size}: select a shorter range.`,
    about: "Every sample, with time, truth, predictions and the edges of their bands.",
  },
  flags: {
    heading: "Flagged episodes",
    flag: "Flag this episode",
    unflag: "Remove the flag",
    none: "No episode is flagged. Flags stay until the page is closed.",
    as: "Copy or save as",
    list: "List of files",
    label: "Commands that label them",
    drop: "Commands that set them aside",
    copy: "Copy",
    copied: "Copied",
    save: "Save",
    clear: "Clear",
    hint: (field: string) =>
      `The viewer changes no file. Run the commands in the folder that you opened. After that, where="not ${field}" leaves these episodes out of training.`,
    dropHint: (folder: string) =>
      `The viewer changes no file. Run the commands in the folder that you opened: they move the episodes to ${folder}.`,
    remove: (name: string) => `Remove ${name}`,
  },
} as const;

/** The field of the metadata that the commands set, and the folder that they move files to. */
export const flagField = "flagged";
export const dropFolder = "dropped";
