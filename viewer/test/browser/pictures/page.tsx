// One panel with made-up channels: `show` of the window draws a scene.

import { signal } from "@preact/signals";
import type { JsonObject } from "@shard-format/core";
import { render } from "preact";
import { EpisodeModel } from "../../../src/model/episode";
import type { EpisodeFacts } from "../../../src/model/facts";
import { panels } from "../../../src/panels";
import type { PanelStatus } from "../../../src/panels/panel";
import { View } from "../../../src/state/view";
import { showTheme } from "../../../src/ui/colours";
import { MadeUpReads } from "./reads";
import { scenes } from "./scenes";
import "../../../src/ui/theme.css";

export interface Wanted {
  readonly scene: string;
  readonly panel: string;
  readonly width: number;
  readonly height: number;
  readonly theme?: "light" | "dark";
  readonly settings?: JsonObject;
}

export interface Shown {
  readonly view: View;
  status: PanelStatus;
  settings: JsonObject;
  readonly reads: MadeUpReads;
  /** The panel that the subject gets by default. */
  readonly best: string;
}

declare global {
  interface Window {
    /** false: this browser cannot make the scene. */
    show: (wanted: Wanted) => Promise<boolean>;
    shown: Shown;
  }
}

window.show = async ({ scene: name, panel: wanted, width, height, theme = "light", settings = {} }) => {
  const place = document.getElementById("panel") as HTMLElement;
  render(null, place);
  showTheme(theme);
  place.style.width = `${width}px`;
  place.style.height = `${height}px`;
  const scene = await scenes[name]?.();
  const panel = panels.find((one) => one.name === wanted);
  if (scene === undefined || panel === undefined) throw new Error(`no scene ${name} or no panel ${wanted}`);
  if (scene.channels.length === 0) return false;
  const reads = new MadeUpReads(scene);
  const facts: EpisodeFacts = {
    row: 0,
    id: name,
    envId: "",
    length: scene.length,
    rate: 30,
    epochNs: "0",
    hasTimestamps: false,
    metadata: {},
    task: "",
    files: [],
    chunks: 1,
    isUnfinished: false,
    recover: "",
    channels: scene.channels.map(({ facts }) => facts),
    problems: [],
  };
  const episode = new EpisodeModel(facts, reads);
  const subject = episode.subjects[0];
  if (subject === undefined) throw new Error("the scene has no channel");
  const view = new View(signal(scene.length));
  const [best] = [...panels].sort((a, b) => b.fits(subject, episode) - a.fits(subject, episode));
  window.shown = { view, status: {}, settings, reads, best: best?.name ?? "" };
  const draw = () => {
    const Component = panel.component;
    render(
      <Component
        episode={episode}
        subject={subject}
        view={view}
        width={width}
        height={height}
        settings={window.shown.settings}
        change={(changed) => {
          window.shown.settings = changed;
          draw();
        }}
        report={(status) => {
          window.shown.status = status;
        }}
      />,
      place,
    );
  };
  draw();
  return true;
};
