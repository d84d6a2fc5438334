import { useSignal } from "@preact/signals";
import type { EpisodeModel, Subject } from "../model/episode";
import type { ChannelFacts } from "../model/facts";
import { usualSubjects } from "../stage/layout";
import type { App } from "../state/app";
import { Badges } from "../ui/badge";
import { shown } from "../ui/escape";
import { FilterField } from "../ui/filter-field";
import * as format from "../ui/format";
import { Icon } from "../ui/icons";
import { words } from "../words";

const { tree } = words;

/** Lanes, in the order in which people look for them. */
const groups: readonly { readonly lane: keyof typeof tree.lanes; readonly lanes: readonly ChannelFacts["lane"][] }[] = [
  { lane: "signal", lanes: ["signal"] },
  { lane: "reward", lanes: ["reward", "terminated", "truncated"] },
  { lane: "action", lanes: ["action"] },
  { lane: "omen", lanes: ["omen", "uncert", "residual"] },
  { lane: "label", lanes: ["label"] },
  { lane: "extra", lanes: ["extra"] },
];

export function Tree({ app, episode }: { readonly app: App; readonly episode: EpisodeModel }) {
  const filter = useSignal("");
  const usual = usualSubjects(episode);
  const visible = new Set(app.shown.value ?? usual);
  const words = filter.value.toLowerCase().split(/\s+/);
  const found = episode.subjects.filter(({ channel }) =>
    words.every((word) => `${channel.key} ${channel.id}`.toLowerCase().includes(word)),
  );
  const toggle = (key: string) => {
    const keys = app.shown.peek() ?? usual;
    const wanted = new Set(keys.includes(key) ? keys.filter((one) => one !== key) : [...keys, key]);
    // In the usual order, so that switching a channel off and on changes nothing.
    const order = new Set([...usual, ...episode.subjects.map((one) => one.key)]);
    app.shown.value = [...order].filter((one) => wanted.has(one));
  };
  return (
    <aside class={`tree ${app.isTreeOpen.value ? "is-open" : ""}`} aria-label={tree.heading}>
      <div class="tree-head">
        <FilterField label={tree.filter} text={tree.filter} filter={filter} />
        {app.shown.value !== null && (
          <button
            type="button"
            class="plain small"
            onClick={() => {
              app.shown.value = null;
            }}
          >
            {tree.usual}
          </button>
        )}
      </div>
      <div class="tree-list">
        {groups.map(({ lane, lanes }) => {
          const members = found.filter(({ channel }) => lanes.includes(channel.lane));
          if (members.length === 0) return null;
          return (
            <section key={lane}>
              <h2>
                {tree.lanes[lane]} <span class="soft">{members.length}</span>
              </h2>
              <ul>
                {members.map((subject) => (
                  <Row
                    key={subject.key}
                    subject={subject}
                    isVisible={visible.has(subject.key)}
                    toggle={() => toggle(subject.key)}
                  />
                ))}
              </ul>
            </section>
          );
        })}
        {found.length === 0 && <p class="nothing">{tree.none}</p>}
      </div>
    </aside>
  );
}

interface RowProps {
  readonly subject: Subject;
  readonly isVisible: boolean;
  readonly toggle: () => void;
}

function Row({ subject, isVisible, toggle }: RowProps) {
  const isOpen = useSignal(false);
  const { channel, predictions, uncertainties, residuals } = subject;
  const parts = [
    ...predictions.map((one) => [tree.prediction, one] as const),
    ...uncertainties.map((one) => [tree.uncertainty, one] as const),
    ...residuals.map((one) => [tree.residual, one] as const),
  ];
  const name = shown(channel.id);
  return (
    <li>
      <div class="tree-row">
        <button
          type="button"
          class={`twist ${parts.length === 0 ? "is-empty" : ""} ${isOpen.value ? "is-open" : ""}`}
          aria-label={`${name}: ${parts.length}`}
          aria-expanded={isOpen.value}
          tabIndex={parts.length === 0 ? -1 : 0}
          onClick={() => {
            isOpen.value = !isOpen.value;
          }}
        >
          {parts.length > 0 && <Icon name="right" />}
        </button>
        <label title={shown(channel.key)}>
          <input type="checkbox" checked={isVisible} aria-label={tree.show(name)} onChange={toggle} />
          <span class="tree-name">{name}</span>
          <span class="tree-type">{typeOf(channel)}</span>
        </label>
      </div>
      <div class="tree-badges">
        {predictions.length > 0 && (
          <span class="badge accent">
            {[...new Set(predictions.map(({ model }) => shown(model)))].slice(0, 2).join(", ")}
          </span>
        )}
        <Badges channel={channel} />
      </div>
      {isOpen.value && (
        <ul class="tree-parts">
          {parts.map(([kind, part]) => (
            <li key={part.key} title={shown(part.key)}>
              <span class="soft">{kind}</span> {shown([part.model, part.type].filter((one) => one !== "").join(" · "))}
              <span class="tree-type">{typeOf(part)}</span>
              <Badges channel={part} />
            </li>
          ))}
        </ul>
      )}
    </li>
  );
}

/** Type and shape, as short as possible. */
export function typeOf({ layout, dtype, shape, bytes, contentType }: ChannelFacts): string {
  if (layout === "text" || layout === "label") return layout;
  if (layout === "bytes") return format.bytes(bytes);
  if (layout === "video") return `${contentType.replace(/^.*\//, "")} ${shape.slice(0, 2).join("×")}`;
  return shape.length === 0 ? dtype : `${dtype} ${shape.join("×")}`;
}
