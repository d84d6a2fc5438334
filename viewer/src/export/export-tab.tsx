// Takes something home: a picture, a table of values, the list of flagged episodes.

import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import type { TabProps } from "../inspector/tab";
import type { Subject } from "../model/episode";
import { copyText } from "../ui/copy";
import { shown } from "../ui/escape";
import { bytes, count } from "../ui/format";
import { channelCsv } from "./channel-csv";
import { clearFlags, dropCommands, flags, labelCommands, listText, toggleFlag } from "./flags";
import { pictureOf } from "./picture";
import { saveFile } from "./save";
import { dropFolder, flagField, words } from "./words";
import "./export.css";

export function ExportTab(props: TabProps): JSX.Element {
  return (
    <div class="inspect export">
      <Picture {...props} />
      <Table {...props} />
      <Flags {...props} />
    </div>
  );
}

/** The element of a panel, or of everything that stands in the middle of the page. */
export function partOfPage(key: string): HTMLElement | null {
  if (key === "") return document.querySelector<HTMLElement>("[data-picture]");
  return document.querySelector<HTMLElement>(`[data-panel="${CSS.escape(key)}"]`);
}

/** Saves a part of the page as a picture. */
export async function savePicture(key: string, id: string, scale: number): Promise<void> {
  const element = partOfPage(key);
  if (element === null) return;
  const name = [id, key.replaceAll("/", "-"), scale === 1 ? "" : `${scale}x`].filter(Boolean).join("_");
  saveFile(`${name}.png`, [await pictureOf(element, scale)], "image/png");
}

function Picture({ episode }: TabProps): JSX.Element {
  const [part, setPart] = useState("");
  const [scale, setScale] = useState(2);
  const [state, setState] = useState("");
  const panels = Array.from(
    document.querySelectorAll<HTMLElement>("[data-panel]"),
    (one) => one.dataset["panel"] ?? "",
  );
  const { picture } = words;
  const save = async () => {
    setState(picture.working);
    try {
      await savePicture(part, episode.facts.id, scale);
      setState("");
    } catch (error) {
      setState(error instanceof Error ? error.message : String(error));
    }
  };
  return (
    <section>
      <h3>{picture.heading}</h3>
      <div class="export-row">
        <select aria-label={picture.what} value={part} onChange={(event) => setPart(event.currentTarget.value)}>
          <option value="">{picture.stage}</option>
          {panels.map((key) => (
            <option key={key} value={key}>
              {shown(key)}
            </option>
          ))}
        </select>
        <select
          aria-label={picture.scale}
          value={scale}
          onChange={(event) => setScale(Number(event.currentTarget.value))}
        >
          <option value={1}>{picture.once}</option>
          <option value={2}>{picture.twice}</option>
        </select>
        <button type="button" onClick={save}>
          {picture.save}
        </button>
      </div>
      <p role="status" class="soft">
        {state}
      </p>
    </section>
  );
}

/** A browser builds the file in memory. */
const mostBytes = 500e6;
/** Letters of a number, with its comma, as far as they are known before. */
const bytesPerValue = 11;

function Table({ episode, view, app }: TabProps): JSX.Element | null {
  const able = episode.subjects.filter(
    ({ channel }) =>
      channel.problem === null && ["dense", "text"].includes(channel.layout) && channel.dimensions <= 1024,
  );
  const onStage = app.shown.value ?? able.map(({ key }) => key);
  const [key, setKey] = useState("");
  const [k, setK] = useState(1);
  const [share, setShare] = useState<number | null>(null);
  const [problem, setProblem] = useState("");
  const ending = useRef<AbortController | null>(null);
  const { table } = words;
  const subject =
    able.find((one) => one.key === key) ??
    able.find((one) => one.predictions.length > 0 && onStage.includes(one.key)) ??
    able[0];
  if (subject === undefined) return null;
  const range = view.selection.value ?? view.range.value;
  const steps = Math.max(0, Math.ceil(range.end) - Math.ceil(range.start));
  const size = steps * columnsOf(subject) * bytesPerValue;
  const save = async () => {
    const stop = new AbortController();
    ending.current = stop;
    setShare(0);
    setProblem("");
    try {
      const parts = await channelCsv(episode, subject, range, { k, progress: setShare, signal: stop.signal });
      const { start, end } = range;
      saveFile(
        `${episode.facts.id}_${subject.channel.id.replaceAll("/", "-")}_${Math.ceil(start)}-${Math.ceil(end)}.csv`,
        parts,
        "text/csv",
      );
    } catch (error) {
      if (!stop.signal.aborted) setProblem(error instanceof Error ? error.message : String(error));
    } finally {
      setShare(null);
    }
  };
  return (
    <section>
      <h3>{table.heading}</h3>
      <p class="soft">{table.about}</p>
      <div class="export-row">
        <select aria-label={table.channel} value={subject.key} onChange={(event) => setKey(event.currentTarget.value)}>
          {able.map((one) => (
            <option key={one.key} value={one.key}>
              {shown(one.key)}
            </option>
          ))}
        </select>
        {subject.uncertainties.length > 0 && (
          <select aria-label={table.band} value={k} onChange={(event) => setK(Number(event.currentTarget.value))}>
            {[1, 2, 3].map((one) => (
              <option key={one} value={one}>
                {table.bandOf(one)}
              </option>
            ))}
          </select>
        )}
        <button type="button" onClick={save} disabled={share !== null || size > mostBytes}>
          {table.save}
        </button>
        {share !== null && (
          <button type="button" class="plain" onClick={() => ending.current?.abort()}>
            {table.cancel} ({table.working(share)})
          </button>
        )}
      </div>
      <p class="soft">{(view.selection.value === null ? table.visible : table.selection)(count(steps))}</p>
      {size > mostBytes && <p class="inspect-warn">{table.tooLarge(bytes(size))}</p>}
      {problem !== "" && <p class="inspect-bad">{shown(problem)}</p>}
    </section>
  );
}

function columnsOf({ channel, predictions, uncertainties }: Subject): number {
  return 2 + channel.dimensions * (1 + predictions.length + 2 * uncertainties.length);
}

type Form = "list" | "label" | "drop";

function Flags({ app }: TabProps): JSX.Element {
  const names = [...flags.value].sort();
  const name = app.fileName.value;
  const isFlagged = flags.value.has(name);
  const [form, setForm] = useState<Form>("label");
  const [isCopied, setCopied] = useState(false);
  const { flags: texts } = words;
  const text =
    form === "list"
      ? listText(names)
      : form === "label"
        ? labelCommands(names, flagField)
        : dropCommands(names, dropFolder);
  const copy = async () => {
    await copyText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 2000);
  };
  return (
    <section>
      <h3>{texts.heading}</h3>
      <button type="button" aria-pressed={isFlagged} onClick={() => toggleFlag(name)}>
        ⚑ {isFlagged ? texts.unflag : texts.flag}
      </button>
      {names.length === 0 ? (
        <p class="soft">{texts.none}</p>
      ) : (
        <>
          <ul class="export-flags">
            {names.map((one) => (
              <li key={one}>
                <span>{shown(one)}</span>
                <button
                  type="button"
                  class="tool small"
                  aria-label={texts.remove(shown(one))}
                  onClick={() => toggleFlag(one)}
                >
                  ×
                </button>
              </li>
            ))}
          </ul>
          <div class="export-row">
            <select aria-label={texts.as} value={form} onChange={(event) => setForm(event.currentTarget.value as Form)}>
              {(["label", "drop", "list"] as const).map((one) => (
                <option key={one} value={one}>
                  {texts[one]}
                </option>
              ))}
            </select>
          </div>
          <pre class="export-text">{text}</pre>
          <div class="export-row">
            <button type="button" onClick={copy}>
              {isCopied ? texts.copied : texts.copy}
            </button>
            <button
              type="button"
              onClick={() => saveFile(form === "list" ? "flagged.txt" : "flagged.sh", [text], "text/plain")}
            >
              {texts.save}
            </button>
            <button type="button" class="plain" onClick={clearFlags}>
              {texts.clear}
            </button>
          </div>
          {form !== "list" && (
            <p class="soft">{form === "label" ? texts.hint(flagField) : texts.dropHint(dropFolder)}</p>
          )}
        </>
      )}
    </section>
  );
}
