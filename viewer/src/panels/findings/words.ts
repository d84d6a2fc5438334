export const words = {
  title: "Findings",
  severities: { error: "error", warning: "warning", note: "note" },
  all: "All",
  none: "Nothing was found.",
  checked: (count: number) => `The browser checked ${count} ${count === 1 ? "channel" : "channels"}`,
  checking: (done: number, all: number) => `checking ${done} of ${all} channels …`,
  doctor: "The doctor checked the whole file.",
  noDoctor: "For all checks, run “wshard doctor” on the file.",
  unchecked: (count: number, size: string) => `Check ${count} more ${count === 1 ? "channel" : "channels"} (${size})`,
  at: (step: string) => `step ${step}`,
  summary: (errors: number, warnings: number, notes: number) =>
    `${errors} errors, ${warnings} warnings, ${notes} notes.`,
  // What the browser finds itself, in the words of the doctor.
  notFinite: (nan: number, infinite: number) =>
    [
      ...(nan > 0 ? [`${nan.toLocaleString("en")} values are NaN`] : []),
      ...(infinite > 0 ? [`${infinite.toLocaleString("en")} values are infinite`] : []),
    ].join(", "),
  someNotFinite: "some values are NaN or infinite; the first are near this step",
  constant: (dimensions: readonly number[], value: string, all: number) =>
    all === 1
      ? `all values are ${value}`
      : dimensions.length === 1
        ? `dimension ${dimensions[0]} is always ${value}`
        : `dimensions ${dimensions.slice(0, 6).join(", ")}${dimensions.length > 6 ? ", …" : ""} never change`,
  backwards: (count: number) =>
    `the time runs backwards ${count === 1 ? "once" : `${count.toLocaleString("en")} times`}`,
  constantAdvice: "Check that the sensor or actuator was connected.",
  backwardsAdvice: "Sort the steps by time. If the clock was set while recording, use a monotonic one.",
  notRead: (message: string) => `cannot be read: ${message}`,
} as const;
