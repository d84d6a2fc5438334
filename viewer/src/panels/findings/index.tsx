// What is wrong or odd about a channel and what belongs to it.

import type { JSX } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import type { Panel, PanelProps } from "../panel";
import { findingsOf } from "./found";
import { FindingsList } from "./list";
import { words } from "./words";
import "../../ui/no-time.css";

export const findings: Panel = {
  name: "findings",
  title: words.title,
  fits: () => 0.5,
  height: () => 200,
  // A table needs the whole width, as plots over time do.
  isOverTime: true,
  component: Findings,
};

function Findings({ episode, subject, view, height, report }: PanelProps): JSX.Element {
  const blocks = useMemo(
    () =>
      [subject.channel, ...subject.predictions, ...subject.uncertainties, ...subject.residuals].map(({ key }) => key),
    [subject],
  );
  const all = findingsOf(episode).state.value.findings.filter(({ block }) => block !== null && blocks.includes(block));
  const count = (severity: string) => all.filter((one) => one.severity === severity).length;
  const summary = words.summary(count("error"), count("warning"), count("note"));
  useEffect(() => report({ summary }), [summary]);
  return (
    <div class="no-time" data-own-pointer style={{ height: `${height}px` }}>
      <FindingsList episode={episode} view={view} blocks={blocks} />
    </div>
  );
}
