// What plots need to know about numbers: pure functions over typed arrays, which run in workers and in tests.

export * from "./alignment";
export * from "./clocks";
export * from "./colours";
export * from "./columns";
export * from "./extent";
export * from "./metrics";
export * from "./pca";
export * from "./pyramid";
export * from "./samples";
export * from "./summary";
