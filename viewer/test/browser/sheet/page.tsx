// A page with nothing but panels, and tabs of the inspector: what they show is tested without the stage around them.

import { signal } from "@preact/signals";
import { render } from "preact";
import { useRef, useState } from "preact/hooks";
import { tabs } from "../../../src/inspector/tabs";
import type { EpisodeModel, Subject } from "../../../src/model/episode";
import { Library } from "../../../src/model/library";
import { panels } from "../../../src/panels";
import type { Panel, PanelStatus } from "../../../src/panels/panel";
import type { App } from "../../../src/state/app";
import { View } from "../../../src/state/view";
import { showTheme } from "../../../src/ui/colours";
import { episodeBytes } from "./episode";
import "../../../src/ui/theme.css";
import "../../../src/ui/page.css";
import "./page.css";

const wanted = new URLSearchParams(location.search);
showTheme(wanted.get("theme") === "dark" ? "dark" : "light");

const library = new Library();
const bytes = await episodeBytes();
const other = await episodeBytes("ep_0043", 7);
const file = (name: string, content: Uint8Array) => ({ path: name, file: new Blob([content as BlobPart]) });
await library.list({ kind: "files", files: [file("runs/ep_0042.wshard", bytes), file("runs/ep_0043.wshard", other)] });
const app = { rowName: signal("runs/ep_0042.wshard"), shown: signal(null) } as unknown as App;
const { episode } = await library.open(0);
const view = new View(signal(episode.facts.length + 1));
Object.assign(globalThis, { view, episode, library });

function Frame({ panel, subject, model }: { panel: Panel; subject: Subject; model: EpisodeModel }) {
  const [settings, change] = useState({});
  const [status, setStatus] = useState<PanelStatus>({});
  const width = useRef(document.documentElement.clientWidth - 26);
  const height = panel.height(subject, settings);
  const Shown = panel.component;
  return (
    <section class="frame" data-panel={panel.name} data-subject={subject.key}>
      <h3>
        {subject.key} · {panel.title} <small>{status.problem ?? status.note}</small>
      </h3>
      <Shown
        episode={model}
        subject={subject}
        view={view}
        width={width.current}
        height={height}
        settings={settings}
        change={change}
        report={setStatus}
      />
    </section>
  );
}

const subject = (key: string) => episode.subjects.find((one) => one.key === key) as Subject;
const chosen: [string, string][] = [
  ["ends", "reward"],
  ["text", "label/phase"],
  ["text", "signal/instruction"],
  ["residual", "signal/joint_pos"],
  ["actions", "action/ctrl"],
  ["actions", "signal/joint_pos"],
  ["statistics", "signal/joint_pos"],
  ["statistics", "signal/gripper_force"],
  ["findings", "signal/gripper_force"],
  ["bytes", "notes/calibration.bin"],
];

function Page() {
  return (
    <>
      {chosen.map(([name, key]) => {
        const panel = panels.find((one) => one.name === name) as Panel;
        return <Frame key={name + key} panel={panel} subject={subject(key)} model={episode} />;
      })}
      {tabs.map(({ name, title, component: Tab }) => (
        <section class="frame tab" key={name} data-tab={name}>
          <h3>{title}</h3>
          <Tab app={app} episode={episode} view={view} show={(key) => Object.assign(globalThis, { shownKey: key })} />
        </section>
      ))}
    </>
  );
}

render(<Page />, document.getElementById("app") as HTMLElement);
document.documentElement.dataset["ready"] = "true";
