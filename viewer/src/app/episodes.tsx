import { useSignal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { flags, quoted, toggleFlag } from "../export/flags";
import type { App } from "../state/app";
import { shown } from "../ui/escape";
import { FilterField } from "../ui/filter-field";
import * as format from "../ui/format";
import { listen } from "../ui/listen";
import { words } from "../words";
import type { EpisodeRow } from "../worker/protocol";
import { ProblemBox } from "./problem";

const { table } = words;

/** Rows in the table: more would make the page slow. The filter looks at all rows. */
const mostShown = 2000;

interface Column {
  readonly name: keyof typeof table.columns;
  readonly isNumber?: boolean;
  /** What rows are sorted by; null comes last. */
  sort(row: EpisodeRow): string | number | null;
  show(row: EpisodeRow, app: App): preact.ComponentChildren;
}

const columns: readonly Column[] = [
  {
    name: "poster",
    sort: (row) => (row.hasOverview ? 0 : null),
    show: (row, app) => row.hasOverview && <Thumbnail key={row.number} app={app} row={row.number} />,
  },
  { name: "id", sort: (row) => row.id || row.name, show: (row) => <Name row={row} /> },
  {
    name: "flag",
    sort: ({ name }) => (flags.value.has(name) ? 0 : null),
    show: ({ name }) => flags.value.has(name) && <span class="flag">⚑</span>,
  },
  { name: "envId", sort: (row) => row.envId || null, show: (row) => shown(row.envId) },
  { name: "task", sort: (row) => row.task || null, show: (row) => shown(row.task) },
  numeric("length", (row) => row.length, format.count),
  numeric("duration", (row) => row.duration, format.duration),
  numeric("return", (row) => row.return, format.value),
  { name: "spark", sort: (row) => row.return, show: (row) => row.spark && <Spark values={row.spark} /> },
  {
    name: "success",
    sort: (row) => (row.success === null ? null : Number(row.success)),
    show: (row) => row.success !== null && <Mark isGood={row.success} />,
  },
  numeric("channels", (row) => row.channels, format.count),
  numeric("bytes", (row) => row.bytes, format.bytes),
  numeric("findings", (row) => row.findings, format.count),
];

function numeric(
  name: Column["name"],
  get: (row: EpisodeRow) => number | null,
  show: (value: number) => string,
): Column {
  const text = (row: EpisodeRow) => {
    const value = get(row);
    return value === null ? "" : show(value);
  };
  return { name, isNumber: true, sort: get, show: text };
}

export function Episodes({ app }: { readonly app: App }) {
  const filter = useSignal("");
  const order = useSignal<{ column: Column | null; isDown: boolean }>({ column: null, isDown: false });
  const chosen = useSignal(app.episode.peek()?.row ?? -1);
  const body = useRef<HTMLTableSectionElement>(null);
  const rows = app.library.rows.value;
  const leftOut = app.library.leftOut.value;
  const found = sorted(
    rows.filter((row) => matches(row, filter.value)),
    order.value,
  );
  // Columns that no row fills are left out.
  const filled = columns.filter(({ name, show }) => name === "id" || rows.some((row) => isFilled(show(row, app))));
  // Until somebody chooses, the first row is chosen, whichever comes in first.
  const isChosen = useSignal(chosen.peek() >= 0);
  useEffect(() => {
    const isThere = found.some(({ number }) => number === chosen.value);
    if (!isThere || !isChosen.value) chosen.value = found[0]?.number ?? -1;
    body.current?.querySelector<HTMLElement>("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  });
  const move = (event: KeyboardEvent) => {
    const at = found.findIndex(({ number }) => number === chosen.value);
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -found.length, End: found.length }[
      event.key
    ];
    if (by !== undefined) {
      isChosen.value = true;
      chosen.value = found[Math.min(Math.max(at + by, 0), found.length - 1)]?.number ?? -1;
      body.current?.querySelector<HTMLElement>(`[data-row="${chosen.value}"]`)?.focus();
    } else if (event.key === "Enter" && at >= 0) {
      void app.open(chosen.value);
    } else if (
      event.key === "x" &&
      at >= 0 &&
      !event.ctrlKey &&
      !event.metaKey &&
      !(event.target instanceof HTMLInputElement)
    ) {
      toggleFlag(found[at]?.name ?? "");
    } else return;
    event.preventDefault();
  };
  // The keys work wherever the focus is, in the filter, too.
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const isButton = event.target instanceof Element && event.target.closest("button, dialog") !== null;
      if (!event.defaultPrevented && !(isButton && event.key === "Enter") && !app.isHelpOpen.peek()) move(event);
    };
    return listen(window, { keydown: press });
  });
  const problem = app.problem.value;
  return (
    <main class="episodes">
      <div class="table-head">
        <h2>{table.heading}</h2>
        <span class="soft" role="status">
          {app.library.isListing.value ? table.listing(rows.length) : table.count(found.length, rows.length)}
        </span>
        <FilterField label={table.filterHint} text={table.filter} filter={filter} />
      </div>
      {problem !== null && <ProblemBox error={problem} />}
      <div class="table-scroll">
        <table>
          <thead>
            <tr>
              {filled.map((column) => (
                <th
                  key={column.name}
                  class={column.isNumber ? "number" : ""}
                  aria-sort={order.value.column !== column ? "none" : order.value.isDown ? "descending" : "ascending"}
                >
                  <button
                    type="button"
                    onClick={() => {
                      const isSame = order.value.column === column;
                      order.value = { column, isDown: isSame ? !order.value.isDown : column.isNumber === true };
                    }}
                  >
                    {table.columns[column.name]}
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody ref={body}>
            {found.slice(0, mostShown).map((row) => (
              <tr
                key={row.number}
                data-row={row.number}
                tabIndex={row.number === chosen.value ? 0 : -1}
                aria-selected={row.number === chosen.value}
                class={row.problem === null ? "" : "broken"}
                onClick={() => {
                  chosen.value = row.number;
                  void app.open(row.number);
                }}
              >
                {filled.map((column) => (
                  <td key={column.name} class={column.isNumber ? "number" : ""}>
                    {column.show(row, app)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
        {found.length === 0 && !app.library.isListing.value && (
          <p class="nothing">{rows.length === 0 ? table.empty : table.none}</p>
        )}
      </div>
      {found.length > mostShown && <p class="soft">{table.more(found.length - mostShown)}</p>}
      {leftOut.length > 0 && (
        <details class="left-out" open={rows.length === 0}>
          <summary>{table.leftOut(leftOut.length)}</summary>
          <ul>
            {leftOut.slice(0, mostShown).map(({ name, problem }) => (
              <li key={name}>
                <span>{shown(name)}</span> <span class="sub bad">{shown(problem)}</span>
              </li>
            ))}
          </ul>
        </details>
      )}
      <p class="soft small wide">{table.hint}</p>
    </main>
  );
}

function Name({ row }: { readonly row: EpisodeRow }) {
  const file = row.name.replace(/^.*\//, "");
  const isNamed = row.id !== "" && row.id !== file.replace(/\.wshard$/, "");
  return (
    <span class="episode-name">
      <span>{shown(row.id || file)}</span>
      {row.kind !== "episode" && <span class="badge">{table[row.kind]}</span>}
      {row.problem !== null && <span class="sub bad">{shown(row.problem)}</span>}
      {row.recover !== "" && <span class="sub wrapped">{table.recover(shown(quoted(row.recover)))}</span>}
      {row.problem === null && isNamed && <span class="sub">{shown(row.name)}</span>}
    </span>
  );
}

/** Rows that stay in sight for this long get their image, in milliseconds. */
const dwell = 150;

function Thumbnail({ app, row }: { readonly app: App; readonly row: number }) {
  const place = useRef<HTMLSpanElement>(null);
  const [address, setAddress] = useState("");
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let url = "";
    const show = (image: Blob | null) => {
      if (image === null || place.current === null || url !== "") return;
      url = URL.createObjectURL(image);
      setAddress(url);
    };
    const observer = new IntersectionObserver(([entry]) => {
      clearTimeout(timer);
      if (!entry?.isIntersecting || url !== "") return;
      // Without an image, the place stays empty: the episode itself can be opened.
      timer = setTimeout(() => void app.library.thumbnail(row).then(show, () => {}), dwell);
    });
    if (place.current !== null) observer.observe(place.current);
    return () => {
      observer.disconnect();
      clearTimeout(timer);
      URL.revokeObjectURL(url);
    };
  }, [app.library, row]);
  return (
    <span ref={place} class="thumbnail">
      {address !== "" && <img src={address} alt="" />}
    </span>
  );
}

function Mark({ isGood }: { readonly isGood: boolean }) {
  return <span class={isGood ? "good" : "bad"}>{isGood ? `✓ ${table.yes}` : `✗ ${table.no}`}</span>;
}

function Spark({ values }: { readonly values: readonly number[] }) {
  const points = values.map((value, at) => `${(at / Math.max(1, values.length - 1)) * 96 + 1},${23 - value * 20}`);
  return (
    <svg class="spark" viewBox="0 0 98 24" width="98" height="24" aria-hidden="true">
      <polyline points={points.join(" ")} fill="none" stroke="currentColor" stroke-width="1.5" />
    </svg>
  );
}

function isFilled(cell: preact.ComponentChildren): boolean {
  return cell !== "" && cell !== null && cell !== false && cell !== undefined;
}

function matches(row: EpisodeRow, filter: string): boolean {
  const text = `${row.id}\n${row.envId}\n${row.task}\n${row.name}`.toLowerCase();
  return filter
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

function sorted(
  rows: EpisodeRow[],
  { column, isDown }: { readonly column: Column | null; readonly isDown: boolean },
): EpisodeRow[] {
  if (column === null) return rows;
  return [...rows].sort((first, second) => {
    const [a, b] = [column.sort(first), column.sort(second)];
    if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
    const order = typeof a === "string" ? a.localeCompare(String(b), "en", { numeric: true }) : a - Number(b);
    return isDown ? -order : order;
  });
}
