// A hex view of an entry: a page at a time, read when it is shown.

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { useAnswer } from "../../model/hooks";
import type { ReadOptions } from "../../model/reads";
import { shown } from "../../ui/escape";
import { count as countText } from "../../ui/format";
import { hexLines, lineLength, parseOffset } from "./hex";
import { words } from "./words";
import "./bytes.css";

interface Props {
  /** Changes when other bytes are to be shown. */
  readonly name: string;
  readonly size: number;
  readonly read: (start: number, end: number, options: ReadOptions) => Promise<Uint8Array>;
  readonly lines?: number;
}

export function HexView({ name, size, read, lines = 16 }: Props): JSX.Element {
  const [start, setStart] = useState(0);
  const [typed, setTyped] = useState("");
  const page = lines * lineLength;
  useEffect(() => setStart(0), [name]);
  const end = Math.min(size, start + page);
  const { value, error } = useAnswer(
    async (options) => ({ start, bytes: await read(start, end, options) }),
    [name, start, end],
  );
  const shownLines = useMemo(() => (value ? hexLines(value.bytes, value.start, size) : []), [value, size]);
  const last = Math.max(0, Math.floor(Math.max(0, size - 1) / lineLength) * lineLength);
  const go = (to: number) => setStart(Math.max(0, Math.min(last, Math.floor(to / lineLength) * lineLength)));

  if (size === 0) return <p class="soft hex-empty">{words.empty}</p>;
  return (
    <div class="hex">
      <form
        class="hex-controls"
        onSubmit={(event) => {
          event.preventDefault();
          const offset = parseOffset(typed);
          if (offset !== null) go(offset);
        }}
      >
        <button type="button" disabled={start === 0} onClick={() => go(start - page)}>
          {words.previous}
        </button>
        <button type="button" disabled={end >= size} onClick={() => go(start + page)}>
          {words.next}
        </button>
        <input
          type="text"
          size={12}
          inputMode="text"
          aria-label={words.goTo}
          placeholder={words.goToHint}
          aria-invalid={typed !== "" && parseOffset(typed) === null}
          value={typed}
          onInput={(event) => setTyped(event.currentTarget.value)}
        />
        <button type="submit">{words.goTo}</button>
        <span class="soft" role="status">
          {words.decoded(countText(start), countText(end - 1), countText(size))}
        </span>
      </form>
      {error && <p class="hex-problem">{shown(error.message)}</p>}
      {/* A block that may be wider than its panel is scrolled with the keyboard, too. */}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: see above */}
      <pre tabIndex={0}>
        {shownLines.map((line) => (
          <span key={line.offset} class="hex-line">
            <span class="hex-offset">{line.offset}</span> <span class="hex-digits">{line.hex.padEnd(48)}</span>{" "}
            <span class="hex-text">{line.text}</span>
            {"\n"}
          </span>
        ))}
        {value === undefined && words.reading}
      </pre>
    </div>
  );
}
