// What the episode says about itself.

import type { JSX } from "preact";
import { quoted } from "../export/flags";
import { shown } from "../ui/escape";
import { bytes, count, duration } from "../ui/format";
import { words as pageWords } from "../words";
import { JsonTree } from "./json";
import type { TabProps } from "./tab";
import { words } from "./words";

export function Metadata({ episode }: TabProps): JSX.Element {
  const { facts } = episode;
  const { metadata: texts } = words;
  const begins = beginning(facts.epochNs);
  const rows: [string, string][] = [
    [texts.id, shown(facts.id)],
    [texts.envId, shown(facts.envId)],
    [texts.steps, count(facts.length)],
    [texts.rate, facts.hasTimestamps ? texts.timestamps : facts.rate === null ? "" : `${facts.rate} Hz`],
    [texts.duration, facts.rate === null || facts.rate <= 0 ? "" : duration(facts.length / facts.rate)],
    [texts.begins, begins],
    [texts.chunks, facts.chunks > 1 ? count(facts.chunks) : ""],
  ];
  return (
    <div class="inspect">
      {facts.isUnfinished && (
        <p class="inspect-warn">
          {texts.unfinished} {facts.recover !== "" && pageWords.table.recover(shown(quoted(facts.recover)))}
        </p>
      )}
      <h3>{texts.facts}</h3>
      <dl class="json json-top">
        {rows
          .filter(([, value]) => value !== "")
          .map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
      </dl>
      <h3>{texts.metadata}</h3>
      {Object.keys(facts.metadata).length === 0 ? (
        <p class="soft">{texts.none}</p>
      ) : (
        <JsonTree value={facts.metadata} />
      )}
      <h3>{texts.files}</h3>
      <ul class="inspect-files">
        {facts.files.map(({ name, size }) => (
          <li key={name}>
            <span>{shown(name)}</span> <span class="soft">{bytes(size)}</span>
          </li>
        ))}
      </ul>
      {facts.problems.length > 0 && (
        <>
          <h3>{texts.leftOut}</h3>
          {facts.problems.map((problem) => (
            <p key={problem} class="inspect-warn">
              {shown(problem)}
            </p>
          ))}
        </>
      )}
    </div>
  );
}

/** The date of the first step. Empty for 0, which writers without a clock store. */
function beginning(epochNs: string): string {
  const milliseconds = Number(BigInt(epochNs) / 1_000_000n);
  if (milliseconds === 0 || Math.abs(milliseconds) > 8.64e15) return "";
  return new Date(milliseconds).toISOString().replace("T", " ").replace(".000Z", " UTC").replace("Z", " UTC");
}
