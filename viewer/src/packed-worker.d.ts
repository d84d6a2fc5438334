declare module "packed-worker:*" {
  const source: string;
  // biome-ignore lint/style/noDefaultExport: a module of the build has one value
  export default source;
}
