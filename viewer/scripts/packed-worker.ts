import { deflateRawSync } from "node:zlib";
import { build, type Plugin, type UserConfig } from "vite";

const prefix = "packed-worker:";

/**
 * `import source from "packed-worker:./worker"` gives a worker's script, compressed and in Base64: a third of the size
 * that it would have as a text in the page.
 */
export function packedWorker(config: () => UserConfig): Plugin {
  return {
    name: "packed-worker",
    enforce: "pre",
    async resolveId(id, importer) {
      if (!id.startsWith(prefix)) return undefined;
      const found = await this.resolve(id.slice(prefix.length), importer);
      return found === null ? undefined : `\0${prefix}${found.id}`;
    },
    async load(id) {
      if (!id.startsWith(`\0${prefix}`)) return undefined;
      const entry = id.slice(prefix.length + 1);
      const built = await build({
        ...config(),
        plugins: [denseBase64],
        configFile: false,
        logLevel: "error",
        build: {
          target: "es2022",
          modulePreload: false,
          write: false,
          minify: true,
          rolldownOptions: { input: entry, output: { format: "iife", codeSplitting: false } },
        },
      });
      const [output] = [built].flat();
      if (output === undefined || !("output" in output)) return this.error("the worker was not built");
      const [chunk] = output.output;
      for (const path of Object.keys(chunk.modules)) if (path.startsWith("/")) this.addWatchFile(path);
      return `export default ${JSON.stringify(deflateRawSync(chunk.code, { level: 9 }).toString("base64"))};`;
    },
  };
}

/**
 * Writes bytes that stand in Base64 in a script as a text of the same bytes, which compresses better: the WebAssembly of
 * the zstd decoder is a third of the worker.
 */
const denseBase64: Plugin = {
  name: "dense-base64",
  transform(code) {
    const literal = /"([A-Za-z0-9+/]{10000,}={0,2})"/.exec(code);
    if (literal === null) return undefined;
    const bytes = Buffer.from(literal[1] as string, "base64").toString("latin1");
    return { code: code.replace(literal[0], () => `btoa(${JSON.stringify(bytes)})`), map: null };
  },
};
