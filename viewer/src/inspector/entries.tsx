// The entries of files: where they are, how they are stored, and what they consist of.

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import type { EntryFacts } from "../model/facts";
import type { FileReads } from "../model/files";
import { useAnswer } from "../model/hooks";
import { HexView } from "../panels/bytes/view";
import { shown } from "../ui/escape";
import { bytes, count } from "../ui/format";
import type { TabProps } from "./tab";
import { words } from "./words";

const { entries: texts } = words;
const mostListed = 400;

export function Entries({ episode, show }: TabProps): JSX.Element {
  const isChannel = (name: string) => episode.channel(name) !== undefined;
  return (
    <div class="inspect">
      <EntryList reads={episode.reads} show={show} isShowable={isChannel} />
    </div>
  );
}

interface ListProps {
  readonly reads: FileReads;
  readonly show?: (key: string) => void;
  readonly isShowable?: (name: string) => boolean;
}

/** For episodes, and for files that hold none. */
export function EntryList({ reads, show, isShowable }: ListProps): JSX.Element {
  const { value: all = [], error } = useAnswer(() => reads.entries(), [reads]);
  const [wanted, setWanted] = useState("");
  const [open, setOpen] = useState<string | null>(null);
  const found = useMemo(() => {
    const text = wanted.trim().toLocaleLowerCase();
    return text === "" ? all : all.filter(({ name }) => name.toLocaleLowerCase().includes(text));
  }, [all, wanted]);
  const largest = useMemo(() => all.reduce((most, one) => Math.max(most, one.storedBytes), 1), [all]);
  const hasFiles = useMemo(() => new Set(all.map(({ file }) => file)).size > 1, [all]);
  return (
    <div class="entries">
      {error && <p class="inspect-bad">{shown(error.message)}</p>}
      <p class="entries-search">
        <input
          type="search"
          placeholder={texts.filter}
          aria-label={texts.filter}
          value={wanted}
          onInput={(event) => setWanted(event.currentTarget.value)}
        />
        <span class="soft">{texts.found(found.length, all.length)}</span>
      </p>
      <ul>
        {found.slice(0, mostListed).map((entry) => {
          const key = `${entry.file} ${entry.name}`;
          const isOpen = open === key;
          return (
            <li key={key} class={isOpen ? "entries-open" : ""}>
              <button type="button" aria-expanded={isOpen} onClick={() => setOpen(isOpen ? null : key)}>
                <span class="entries-name">{shown(entry.name)}</span>
                <span class="entries-size">{bytes(entry.storedBytes)}</span>
                <span class="entries-bar" aria-hidden="true">
                  <i style={{ width: `${(100 * entry.storedBytes) / largest}%` }} />
                </span>
                <span class="entries-codec">
                  {codecText(entry)}
                  {hasFiles && ` · ${shown(entry.file.replace(/^.*\//, ""))}`}
                </span>
              </button>
              {isOpen && (
                <EntryDetails
                  entry={entry}
                  reads={reads}
                  show={show !== undefined && isShowable?.(entry.name) ? () => show(entry.name) : null}
                />
              )}
            </li>
          );
        })}
      </ul>
      {found.length > mostListed && <p class="soft">{texts.more(found.length - mostListed)}</p>}
    </div>
  );
}

function codecText({ codec }: EntryFacts): string {
  return codec === "none" ? texts.raw : codec;
}

function EntryDetails({
  entry,
  reads,
  show,
}: {
  entry: EntryFacts;
  reads: FileReads;
  show: (() => void) | null;
}): JSX.Element {
  const { name, file } = entry;
  const frames = useAnswer(() => reads.frames(file, name), [reads, file, name]);
  const [check, setCheck] = useState<{ isGood: boolean; text: string } | null>(null);
  const [isHexOpen, setHexOpen] = useState(false);
  const verify = async () => {
    setCheck({ isGood: true, text: texts.checking });
    try {
      await reads.checkEntry(file, name);
      setCheck({ isGood: true, text: `✓ ${texts.good}` });
    } catch (error) {
      setCheck({ isGood: false, text: `✕ ${shown(error instanceof Error ? error.message : String(error))}` });
    }
  };
  const ratio = entry.bytes > 0 && entry.storedBytes !== entry.bytes ? entry.storedBytes / entry.bytes : null;
  const framesText = () => {
    const { value, error } = frames;
    if (error) return shown(error.message);
    if (value === undefined) return texts.checking;
    if (value === null) return texts.oneFrame;
    const total = (sizes: Float64Array) =>
      bytes(sizes.reduce((sum, size) => sum + size, 0) / Math.max(1, sizes.length));
    const { stored, decoded, checksums } = value;
    return `${texts.frameSummary(count(stored.length), total(stored), total(decoded))}, ${texts.framesChecked(checksums, stored.length)}`;
  };
  const rows: [string, string][] = [
    [texts.file, shown(file)],
    [texts.offset, `${count(entry.offset)} (0x${entry.offset.toString(16)})`],
    [
      texts.stored,
      `${count(entry.storedBytes)} B${ratio === null ? "" : `, ${texts.ratio(`${(100 * ratio).toFixed(ratio < 0.1 ? 1 : 0)} %`)}`}`,
    ],
    [texts.decoded, `${count(entry.bytes)} B`],
    [texts.codec, codecText(entry)],
    [texts.type, String(entry.contentType)],
    [texts.frames, framesText()],
    [texts.checksum, entry.crc32c === null ? texts.noChecksum : `0x${entry.crc32c.toString(16).padStart(8, "0")}`],
  ];
  return (
    <div class="entries-details">
      <dl class="json json-top">
        {rows.map(([label, value]) => (
          <div key={label}>
            <dt>{label}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <p class="entries-actions">
        <button type="button" onClick={verify}>
          {texts.check}
        </button>
        <button type="button" aria-pressed={isHexOpen} onClick={() => setHexOpen(!isHexOpen)}>
          {texts.hex}
        </button>
        {show !== null && (
          <button type="button" onClick={show}>
            {texts.show}
          </button>
        )}
        <span role="status" class={check?.isGood === false ? "inspect-bad" : "inspect-good"}>
          {check?.text}
        </span>
      </p>
      {isHexOpen && (
        <HexView
          name={`${file} ${name}`}
          size={entry.bytes}
          read={(start, end, options) => reads.bytes(file, name, start, end, options)}
        />
      )}
    </div>
  );
}
