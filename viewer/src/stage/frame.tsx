// The frame of a panel: its title, what it is asked to show, and its place on the stage.

import { useSignal } from "@preact/signals";
import type { JsonObject } from "@shard-format/core";
import { useCallback, useEffect, useMemo, useRef } from "preact/hooks";
import { typeOf } from "../app/tree";
import type { EpisodeModel, Subject } from "../model/episode";
import { gutter, type PanelStatus } from "../panels/panel";
import type { App } from "../state/app";
import type { View } from "../state/view";
import { Badges } from "../ui/badge";
import { shown } from "../ui/escape";
import * as format from "../ui/format";
import { Guard } from "../ui/guard";
import { Tool } from "../ui/tool";
import { words } from "../words";
import { DataTable } from "./data-table";
import { useGestures } from "./gestures";
import { fittingPanels, panelOf } from "./layout";

interface FrameProps {
  readonly app: App;
  readonly episode: EpisodeModel;
  readonly subject: Subject;
  readonly view: View;
  readonly width: number;
  /** How many panels of moments share the row. */
  readonly moments: number;
  readonly hide: () => void;
  readonly box: (from: number, to: number) => void;
}

const noSettings: JsonObject = {};

export function Frame({ app, episode, subject, view, width, moments, hide, box }: FrameProps) {
  const { stage } = words;
  const choice = app.choices.value.get(subject.key);
  const panel = panelOf(subject, episode, choice);
  const fitting = useMemo(() => fittingPanels(subject, episode), [subject, episode]);
  const status = useSignal<PanelStatus>({});
  const isNear = useSignal(false);
  const frame = useRef<HTMLElement>(null);
  const body = useRef<HTMLDivElement>(null);
  const { channel } = subject;
  const settings = choice?.settings ?? noSettings;
  const change = useCallback((next: JsonObject) => app.choose(subject.key, { settings: next }), [app, subject.key]);
  const report = useCallback((next: PanelStatus) => {
    status.value = next;
  }, []);
  // A panel out of sight reads nothing.
  useEffect(() => {
    if (frame.current === null) return;
    const observer = new IntersectionObserver(
      ([entry]) => {
        isNear.value = entry?.isIntersecting ?? false;
      },
      { rootMargin: "120px" },
    );
    observer.observe(frame.current);
    return () => observer.disconnect();
  }, []);
  const none = useRef<HTMLElement>(null);
  useGestures(panel?.isOverTime ? body : none, view, { box });
  const height = panel?.height(subject, settings) ?? 60;
  const { reducedBy = 1, note, problem, summary } = status.value;
  const name = shown(channel.id);
  const about = `about-${subject.key}`;
  const tableId = `table-${subject.key}`;
  const showsTable = panel?.table !== undefined && settings["table"] === true;
  return (
    <section
      ref={frame}
      class={`panel ${panel?.isOverTime ? "over-time" : "moment"}`}
      data-panel={subject.key}
      aria-label={name}
      aria-describedby={about}
    >
      <header class="panel-head">
        <h3 title={shown(channel.key)}>{name}</h3>
        <span class="panel-facts">
          {channel.unit !== "" && <span class="unit">{shown(channel.unit)}</span>}
          <span>{typeOf(channel)}</span>
        </span>
        <Badges channel={channel} />
        <span class="panel-tools">
          {note !== undefined && <span class="note">{shown(note)}</span>}
          {reducedBy > 1 && (
            <span class="note" title={stage.reducedHint(format.count(reducedBy))}>
              {stage.reduced(format.count(reducedBy))}
            </span>
          )}
          {fitting.length > 1 && (
            <select
              class="show-as"
              aria-label={`${stage.showAs}: ${name}`}
              value={panel?.name}
              onChange={(event) => app.choose(subject.key, { as: event.currentTarget.value, settings: {} })}
            >
              {fitting.map((one) => (
                <option key={one.name} value={one.name}>
                  {one.title}
                </option>
              ))}
            </select>
          )}
          {panel?.table !== undefined && (
            <Tool
              kind="small"
              icon="table"
              label={stage.tableOf(name)}
              hint={stage.table}
              expanded={showsTable}
              controls={showsTable ? tableId : undefined}
              use={() => change({ ...settings, table: !showsTable })}
            />
          )}
          <Tool kind="small" icon="close" label={`${stage.hide} ${name}`} hint={stage.hide} use={hide} />
        </span>
      </header>
      <div ref={body} class="panel-body" style={{ height: `${height}px` }}>
        {problem !== undefined && <p class="panel-problem">{shown(problem)}</p>}
        {channel.problem !== null && <p class="panel-problem">{shown(channel.problem)}</p>}
        {panel === undefined && channel.problem === null && <p class="nothing">{stage.noPanel}</p>}
        {panel !== undefined && channel.problem === null && isNear.value && width > 0 && (
          <Guard key={`${panel.name} ${episode.facts.row}`}>
            <panel.component
              episode={episode}
              subject={subject}
              view={view}
              width={panel.isOverTime ? width : momentWidth(width, moments)}
              height={height}
              settings={settings}
              change={change}
              report={report}
            />
          </Guard>
        )}
      </div>
      {panel !== undefined && showsTable && isNear.value && (
        <DataTable
          id={tableId}
          name={name}
          panel={panel}
          episode={episode}
          subject={subject}
          view={view}
          settings={settings}
        />
      )}
      <p id={about} class="hidden">
        {summary ?? ""}
      </p>
    </section>
  );
}

/** The width of a panel that shows one moment: such panels stand side by side where there is room. */
export function momentWidth(width: number, count: number): number {
  const room = width - 2 * gutter.right;
  const most = Math.max(1, Math.min(4, Math.floor(room / 300)));
  const places = Math.max(2, count);
  // As many in each row: four stand two by two where there is no room for all.
  const columns = Math.ceil(places / Math.ceil(places / most));
  return Math.floor((room - (columns - 1) * gutter.right) / columns);
}
