// The decoded bytes of the entry behind a channel: what remains where nothing else is known.

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { useAnswer } from "../../model/hooks";
import { shown } from "../../ui/escape";
import { count as countText } from "../../ui/format";
import type { Panel, PanelProps } from "../panel";
import { HexView } from "./view";
import { words } from "./words";
import "../../ui/no-time.css";

export const bytes: Panel = {
  name: "bytes",
  title: words.title,
  fits: ({ channel }) => (channel.layout === "bytes" || channel.layout === "unknown" ? 8 : 0.4),
  height: () => 300,
  // A table needs the whole width, as plots over time do.
  isOverTime: true,
  component: Bytes,
};

function Bytes({ episode, subject, height, settings, change, report }: PanelProps): JSX.Element {
  const { key } = subject.channel;
  const { value: entries, error } = useAnswer(async () => {
    const all = await episode.reads.entries();
    return all.filter((one) => one.name === key);
  }, [episode, key]);
  const entry = entries?.find(({ file }) => file === settings["file"]) ?? entries?.[0];
  const summary = words.summary(countText(entry?.bytes ?? 0));
  useEffect(() => report({ summary, ...(error ? { problem: error.message } : {}) }), [summary, error]);
  return (
    <div class="no-time" data-own-pointer style={{ height: `${height}px` }}>
      {entries && entries.length > 1 && (
        <label class="hex-file">
          {words.file}{" "}
          <select value={entry?.file} onChange={(event) => change({ ...settings, file: event.currentTarget.value })}>
            {entries.map(({ file }) => (
              <option key={file} value={file}>
                {shown(file)}
              </option>
            ))}
          </select>
        </label>
      )}
      {entries && entry === undefined && <p class="soft hex-empty">{words.notFound}</p>}
      {entry && (
        <HexView
          name={`${entry.file} ${entry.name}`}
          size={entry.bytes}
          read={(start, end, options) => episode.reads.bytes(entry.file, entry.name, start, end, options)}
          lines={Math.max(4, Math.floor((height - 60) / 18))}
        />
      )}
    </div>
  );
}
