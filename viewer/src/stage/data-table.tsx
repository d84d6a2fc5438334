// The table below a panel. It is read when somebody opens it, and again when the view rests somewhere else.

import { useRef } from "preact/hooks";
import { useAnswer, useSlowly } from "../model/hooks";
import type { Panel } from "../panels/panel";
import type { Table, TableQuestion } from "../panels/table";
import { shown } from "../ui/escape";
import { words } from "../words";

interface Props extends TableQuestion {
  readonly id: string;
  readonly name: string;
  readonly panel: Panel;
}

export function DataTable({ id, name, panel, ...question }: Props) {
  const { episode, subject, view, settings } = question;
  const place = panel.isOverTime ? view.range.value : Math.floor(view.cursor.value + 1e-6);
  const settled = useRef(place);
  if (!view.isMoving.value && !view.isPlaying.value) settled.current = place;
  const inputs = [episode, panel, settings, view.dimension.value, JSON.stringify(settled.current)];
  const arrived = useSlowly(episode.reads.arrived(subject.channel.key).value);
  const { value, error } = useAnswer<Table>(
    (options) => panel.table?.(question, options) ?? null,
    [...inputs, arrived],
  );
  if (error !== undefined) return <p class="panel-problem">{shown(error.message)}</p>;
  const [corner, ...others] = value?.columns ?? [];
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what is wider than the page is scrolled with keys
    <section id={id} class="panel-table" tabIndex={0} aria-label={words.stage.tableOf(name)}>
      <table>
        <caption>
          <span>{value?.about ?? words.stage.reading}</span>
        </caption>
        <thead>
          <tr>
            <th scope="col">{corner}</th>
            {others.map((column) => (
              <th key={column} scope="col">
                {column}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {value?.rows.map(({ position, cells: [head, ...cells] }) => (
            <tr key={head}>
              <th scope="row">
                {position === null ? (
                  head
                ) : (
                  <button type="button" class="plain" onClick={() => view.seek(Math.ceil(position))}>
                    {head}
                  </button>
                )}
              </th>
              {cells.map((cell, at) => (
                <td key={at}>{cell}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
