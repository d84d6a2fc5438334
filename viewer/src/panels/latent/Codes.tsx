import type { TypedArray } from "@shard-format/core";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { useAnswer } from "../../model/hooks";
import { codeColour } from "../../plot-data/colours";
import { samplesOf } from "../../plot-data/samples";
import { codeCounts } from "../../plot-data/summary";
import { colour } from "../../ui/colours";
import { count, value as formatted } from "../../ui/format";
import { canvasSize, pixelRatio } from "../../ui/pixels";
import { Menu } from "../controls";
import { useEntriesAt } from "../entry-at";
import { gutter, type PanelProps } from "../panel";
import { effectiveCodes, entriesOfColumns } from "./effective-codes";
import { words } from "./words";

const mostEntries = 1_000_000;
const mostBars = 24;
export const listHeight = 96;

/** Codes as a strip of colours, and how often each of them is in the visible range. */
export function Codes({ episode, subject, view, width, height, settings, change, report }: PanelProps) {
  const { channel } = subject;
  const books = Math.max(1, channel.dimensions);
  const chosen = settings["book"];
  const book = typeof chosen === "number" && Number.isInteger(chosen) && chosen >= 0 && chosen < books ? chosen : 0;
  const isShort = channel.length * books <= mostEntries;
  const answer = useAnswer<TypedArray | null>(
    async (options) => {
      if (!isShort) return null;
      const window = await episode.reads.window(channel.key, 0, channel.length, options);
      return window.kind === "dense" ? window.values : null;
    },
    [episode, channel, isShort],
  );
  const values = answer.value;
  const [entryAt] = useEntriesAt(episode, [channel]);
  const range = view.range.value;
  const inner = Math.max(1, Math.round(width - gutter.left - gutter.right));
  const stripHeight = Math.max(24, height - listHeight);
  const columns = useMemo(
    () => (entryAt ? entriesOfColumns(entryAt, channel.length, range.start, range.end, inner) : []),
    [entryAt, channel, range.start, range.end, inner],
  );
  const [from, to] = useMemo(() => {
    const filled = columns.filter(([start, end]) => start < end);
    return [filled[0]?.[0] ?? 0, filled.at(-1)?.[1] ?? 0] as const;
  }, [columns]);
  const counts = useMemo(
    () => (values ? codeCounts(samplesOf(values, { width: books, dimension: book }), from, to) : []),
    [values, books, book, from, to],
  );
  const most = counts[0]?.count ?? 1;
  const factor = inner > 0 ? (to - from) / inner : 1;

  useEffect(() => {
    if (!isShort) report({ problem: words.tooLong(count(channel.length * books)) });
    else if (answer.error !== undefined) report({ problem: answer.error.message });
    else if (!values) report({ note: words.reading });
    else
      report({
        summary: words.summary(count(counts.length)),
        ...(factor > 1 ? { reducedBy: Math.round(factor) } : {}),
      });
  }, [values, answer.error, counts, factor]);

  const canvas = useRef<HTMLCanvasElement>(null);
  const ground = colour("--sunken");
  const ink = colour("--text-faint");
  const ratio = pixelRatio.value;
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, stripHeight);
    context.fillStyle = ground;
    context.fillRect(gutter.left, 0, inner, stripHeight);
    if (!values) return;
    const row = stripHeight / books;
    const gap = books > 1 && row > 6 ? 1 : 0;
    for (let book = 0; book < books; book++) {
      const samples = samplesOf(values, { width: books, dimension: book });
      for (let column = 0; column < columns.length; column++) {
        const [start, end] = columns[column] as [number, number];
        if (start >= end) continue;
        // Several codes in a column have the part of its height that they have of its entries, in the order of codes.
        const inside =
          end - start === 1
            ? [{ code: Number(values[start * books + book]), count: 1 }]
            : codeCounts(samples, start, end);
        let y = book * row;
        for (const { code, count } of inside.sort((a, b) => a.code - b.code)) {
          const part = ((row - gap) * count) / (end - start);
          context.fillStyle = `rgb(${codeColour(code).join()})`;
          context.fillRect(gutter.left + column, y, 1, part + 0.5);
          y += part;
        }
      }
      if (books > 1 && row >= 12) {
        context.fillStyle = ink;
        context.font = "11px ui-sans-serif, system-ui, sans-serif";
        context.textAlign = "right";
        context.textBaseline = "middle";
        context.fillText(String(book), gutter.left - 8, (book + 0.5) * row);
      }
    }
  }, [values, columns, width, stripHeight, ground, ink, ratio]);

  const entry = entryAt ? entryAt(view.cursor.value) : -1;
  const here =
    values && entry >= 0 ? Array.from({ length: books }, (_, book) => Number(values[entry * books + book])) : [];
  const go = (code: number) => {
    if (!values || !entryAt) return;
    for (let i = 1; i <= channel.length; i++) {
      const next = (entry + i) % channel.length;
      if (Number(values[next * books + book]) !== code) continue;
      if (!channel.hasOwnClock) view.seek(next);
      else void episode.reads.positions(channel.key, next, next + 1).then(([position]) => view.seek(position ?? 0));
      return;
    }
  };
  return (
    <div class="latent-codes">
      <canvas ref={canvas} role="img" aria-label={words.title} {...canvasSize(width, stripHeight)} />
      <div class="code-list" data-own-pointer style={{ height: `${listHeight}px` }}>
        <p>
          <strong>{here.length === 0 ? "–" : words.code(here.map(formatted).join(" "))}</strong>
          {books > 1 && (
            <Menu
              label={words.book}
              value={String(book)}
              options={Array.from({ length: books }, (_, i) => ({ value: String(i), text: String(i) }))}
              choose={(value) => change({ ...settings, book: Number(value) })}
            />
          )}
          <span>{words.used(count(counts.length), count(to - from))}</span>
          {counts.length > 1 && (
            <span title={words.effectiveHint}>
              {words.effective(formatted(Number(effectiveCodes(counts).toPrecision(3))))}
            </span>
          )}
        </p>
        <div class="code-bars">
          {counts.slice(0, mostBars).map(({ code, count: times }) => (
            <button
              type="button"
              key={code}
              title={words.next}
              aria-pressed={here[book] === code}
              onClick={() => go(code)}
            >
              <i
                style={{
                  background: `rgb(${codeColour(code).join()})`,
                  height: `${Math.max(2, (28 * times) / most)}px`,
                }}
              />
              <span>{formatted(code)}</span>
              <small>{count(times)}</small>
            </button>
          ))}
          {counts.length > mostBars && <span class="code-rest">{words.more(count(counts.length - mostBars))}</span>}
        </div>
      </div>
    </div>
  );
}
