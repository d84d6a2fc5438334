// The keys of the page. Controls keep those that they need themselves.

import { savePicture } from "../export/export-tab";
import { toggleFlag } from "../export/flags";
import { speeds } from "../stage/play";
import type { App } from "../state/app";
import { listen } from "../ui/listen";

export function startKeyboard(app: App): () => void {
  const press = (event: KeyboardEvent) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey) return;
    const target = event.target instanceof HTMLElement ? event.target : null;
    const isTyping = target?.matches("input:not([type=checkbox]), textarea, select") ?? false;
    if (event.key === "Escape") {
      if (isTyping) target?.blur();
      else escapeFrom(app);
      return;
    }
    if (isTyping || app.isHelpOpen.peek()) return;
    if (event.key === " " && target?.matches("button, input, summary, [role=tab]")) return;
    if (handle(app, event)) event.preventDefault();
  };
  return listen(window, { keydown: press });
}

function escapeFrom(app: App): void {
  const view = app.episode.peek()?.view;
  if (app.isTreeOpen.peek()) app.isTreeOpen.value = false;
  else if (view?.selection.peek()) view.selection.value = null;
  else if (app.tab.peek() !== "") app.tab.value = "";
  else app.compare.value = null;
}

/** Whether the key had a meaning. */
function handle(app: App, event: KeyboardEvent): boolean {
  const { key } = event;
  if (key === "?") {
    app.isHelpOpen.value = true;
    return true;
  }
  if (key === "/") {
    const filters = [...document.querySelectorAll<HTMLInputElement>("[data-filter]")];
    if (app.screen.peek() === "episode") app.isTreeOpen.value = true;
    filters.at(0)?.focus();
    return filters.length > 0;
  }
  if (app.screen.peek() !== "episode") return false;
  const open = app.episode.peek();
  if (open === null) return false;
  const { view } = open;
  const cursor = Math.round(view.cursor.peek());
  const seek = (to: number) => {
    view.isPlaying.value = false;
    view.seek(to);
  };
  const toggle = (which: "band" | "error" | "difference" | "isPlaying" | "isLooping") => {
    view[which].value = !view[which].peek();
  };
  switch (key) {
    case " ":
      toggle("isPlaying");
      return true;
    case "ArrowLeft":
    case "ArrowRight": {
      const by = key === "ArrowLeft" ? -1 : 1;
      if (event.altKey) void seekLabel(app, by);
      else seek(cursor + by * (event.shiftKey ? 10 : 1));
      return true;
    }
    case "Home":
      seek(0);
      return true;
    case "End":
      seek(view.length.peek() - 1);
      return true;
    case "+":
    case "=":
      view.zoom(1 / 1.5);
      return true;
    case "-":
    case "−":
    case "_":
      view.zoom(1.5);
      return true;
    case "<":
    case ">": {
      const at = speeds.indexOf(view.speed.peek()) + (key === "<" ? -1 : 1);
      view.speed.value = speeds[Math.min(Math.max(at, 0), speeds.length - 1)] ?? 1;
      return true;
    }
  }
  if (/^[1-9]$/.test(key)) {
    const dimension = Number(key) - 1;
    view.dimension.value = view.dimension.peek() === dimension ? null : dimension;
    return true;
  }
  switch (key.toLowerCase()) {
    case "f":
      view.fit();
      return true;
    case "b":
      toggle("band");
      return true;
    case "e":
      toggle("error");
      return true;
    case "d":
      toggle("difference");
      return true;
    case "l":
      toggle("isLooping");
      return true;
    case "c":
      app.compare.value = app.compare.peek() === null ? {} : null;
      return true;
    case "s":
      savePicture("", open.model.peek().facts.id, 2).catch((error: Error) => {
        app.problem.value = error;
      });
      return true;
    case "x":
      toggleFlag(app.fileName.peek());
      return true;
    case "j":
      void app.step(1);
      return true;
    case "k":
      void app.step(-1);
      return true;
  }
  return false;
}

/** The next or the previous place where a label starts. */
async function seekLabel(app: App, by: number): Promise<void> {
  const open = app.episode.peek();
  if (open === null) return;
  const { model, view } = open;
  const { reads } = model.peek();
  const lanes = model.peek().lane("label");
  const found = await Promise.all(lanes.map(({ key }) => reads.intervals(key).catch(() => [])));
  const starts = [...new Set(found.flat().map(({ start }) => Math.round(start)))].sort((a, b) => a - b);
  const cursor = Math.round(view.cursor.peek());
  const next = by > 0 ? starts.find((one) => one > cursor) : starts.findLast((one) => one < cursor);
  if (next !== undefined) view.seek(next);
}
