// Starts workers. A worker runs the script of the page once more, so that what both need is in the page once.

/** What a worker does: see work.ts. */
export type Work = "read" | "project";

let address: string | undefined;

/** The script is a module: strict, with names of its own. Pages from a disk cannot start it as one. */
function script(page: HTMLScriptElement): string {
  if (page.src === "") return `"use strict"; (() => {${page.textContent}})();`;
  // The development server has many modules.
  return `import { work } from "${new URL("/src/worker/work.ts", location.href)}"; work();`;
}

export function startWorker(work: Work): Worker {
  const page = document.querySelector("script[type=module]") as HTMLScriptElement;
  address ??= URL.createObjectURL(new Blob([script(page)], { type: "text/javascript" }));
  return new Worker(address, { name: work, type: page.src === "" ? "classic" : "module" });
}
