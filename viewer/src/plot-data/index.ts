// What plots need to know about numbers: pure functions over typed arrays, which run in workers and in tests.

export * from "./alignment.js";
export * from "./clocks.js";
export * from "./colors.js";
export * from "./columns.js";
export * from "./extent.js";
export * from "./metrics.js";
export * from "./pca.js";
export * from "./pyramid.js";
export * from "./samples.js";
export * from "./summary.js";
