// Findings as a list. A click shows where.

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import type { EpisodeModel } from "../../model/episode";
import type { View } from "../../state/view";
import { shown } from "../../ui/escape";
import { bytes, count as countText } from "../../ui/format";
import { type Finding, rangeAround, type Severity } from "./checks";
import { findingsOf } from "./found";
import { words } from "./words";
import "./findings.css";

interface Props {
  readonly episode: EpisodeModel;
  readonly view: View;
  /** Only those about these blocks; all without. */
  readonly blocks?: readonly string[];
  /** Puts a channel on the stage. */
  readonly show?: (key: string) => void;
}

const marks: Record<Severity, string> = { error: "✕", warning: "!", note: "i" };
const mostShown = 500;

export function FindingsList({ episode, view, blocks, show }: Props): JSX.Element {
  const found = useMemo(() => findingsOf(episode), [episode]);
  useEffect(() => found.start(), [found]);
  const { findings, checked, planned, waiting, hasDoctor } = found.state.value;
  const [severity, setSeverity] = useState<Severity | null>(null);
  const about =
    blocks === undefined ? findings : findings.filter(({ block }) => block !== null && blocks.includes(block));
  const listed = about.filter((one) => severity === null || one.severity === severity);
  const counts = (name: Severity) => about.filter((one) => one.severity === name).length;

  const select = ({ step, run, block }: Finding) => {
    if (block !== null && episode.channel(block) !== undefined) show?.(block);
    if (step === null) return;
    view.selection.value = { start: step, end: step + run };
    view.show(rangeAround(step, run, view.length.peek()));
    view.seek(step);
  };

  return (
    <div class="findings">
      <fieldset class="findings-filter" aria-label={words.title}>
        <button type="button" aria-pressed={severity === null} onClick={() => setSeverity(null)}>
          {words.all} <b>{about.length}</b>
        </button>
        {(["error", "warning", "note"] as const).map((name) => (
          <button
            key={name}
            type="button"
            aria-pressed={severity === name}
            disabled={counts(name) === 0}
            onClick={() => setSeverity(name)}
          >
            <i class={`findings-mark findings-${name}`} aria-hidden="true">
              {marks[name]}
            </i>
            {words.severities[name]} <b>{counts(name)}</b>
          </button>
        ))}
      </fieldset>
      <ul class="findings-list">
        {listed.slice(0, mostShown).map((one, at) => (
          <li key={`${at} ${one.code} ${one.block}`}>
            <button type="button" onClick={() => select(one)} disabled={one.step === null && one.block === null}>
              <i
                class={`findings-mark findings-${one.severity}`}
                role="img"
                aria-label={words.severities[one.severity]}
              >
                {marks[one.severity]}
              </i>
              <span class="findings-text">
                <span class="findings-head">
                  <code>{shown(one.code)}</code>
                  {one.block !== null && <span class="findings-block">{shown(one.block)}</span>}
                  {one.step !== null && <span class="findings-step">{words.at(countText(Math.round(one.step)))}</span>}
                </span>
                <span>{shown(one.message)}</span>
                {one.advice !== "" && <small>{shown(one.advice)}</small>}
              </span>
            </button>
          </li>
        ))}
      </ul>
      {listed.length === 0 && checked === planned && <p class="soft">{words.none}</p>}
      <p class="findings-about soft">
        {checked < planned ? words.checking(checked, planned) : `${words.checked(checked)}. `}
        {checked === planned && (hasDoctor ? words.doctor : words.noDoctor)}
      </p>
      {waiting.length > 0 && (
        <button type="button" class="findings-more" onClick={() => found.checkAll()}>
          {words.unchecked(waiting.length, bytes(waiting.reduce((sum, one) => sum + one.storedBytes, 0)))}
        </button>
      )}
    </div>
  );
}
