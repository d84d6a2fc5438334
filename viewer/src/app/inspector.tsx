import { tabs } from "../inspector/tabs";
import type { EpisodeModel } from "../model/episode";
import { usualSubjects } from "../stage/layout";
import type { App } from "../state/app";
import type { View } from "../state/view";
import { Guard } from "../ui/guard";
import { Tool } from "../ui/tool";
import { words } from "../words";

interface InspectorProps {
  readonly app: App;
  readonly episode: EpisodeModel;
  readonly view: View;
}

/** A column of buttons, and beside it what the chosen one shows. */
export function Inspector({ app, episode, view }: InspectorProps) {
  const tab = tabs.find(({ name }) => name === app.tab.value);
  const show = (key: string) => {
    const keys = app.shown.peek() ?? usualSubjects(episode);
    if (!keys.includes(key) && episode.subjects.some((one) => one.key === key)) app.shown.value = [...keys, key];
    requestAnimationFrame(() => {
      document.querySelector(`[data-panel="${CSS.escape(key)}"]`)?.scrollIntoView({ block: "nearest" });
    });
  };
  if (tabs.length === 0) return null;
  return (
    <aside class={`inspector ${tab ? "is-open" : ""}`} aria-label={words.inspector.heading}>
      <div class="inspector-tabs" role="tablist" aria-orientation="vertical">
        {tabs.map(({ name, title }) => (
          <button
            key={name}
            type="button"
            role="tab"
            id={`tab-${name}`}
            aria-selected={tab?.name === name}
            onClick={() => {
              app.tab.value = app.tab.value === name ? "" : name;
            }}
          >
            {title}
          </button>
        ))}
      </div>
      {tab !== undefined && (
        <div class="inspector-body" role="tabpanel" aria-labelledby={`tab-${tab.name}`}>
          <div class="inspector-head">
            <h2>{tab.title}</h2>
            <Tool
              icon="close"
              label={words.inspector.close}
              use={() => {
                app.tab.value = "";
              }}
            />
          </div>
          <Guard key={`${tab.name} ${episode.facts.row}`}>
            <tab.component app={app} episode={episode} view={view} show={show} />
          </Guard>
        </div>
      )}
    </aside>
  );
}
