export const words = {
  title: "Bars at the cursor",
  step: (entry: number) => `step ${entry}`,
  none: "Nothing is recorded before this step.",
  predicted: (model: string) => (model === "" ? "prediction" : model),
  summary: (count: number, entry: number) => `${count} values at step ${entry}.`,
  more: (count: number) => `${count} more dimensions`,
} as const;
