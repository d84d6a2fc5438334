// The exact values at the cursor: of the stored samples, never of what is drawn.

import type { EpisodeModel, Subject } from "../../model/episode";
import { useAnswer } from "../../model/hooks";
import type { ReadOptions } from "../../model/reads";
import type { View } from "../../state/view";
import { seriesColour, theme } from "../../ui/colours";
import { shown } from "../../ui/escape";
import * as format from "../../ui/format";
import { dimensionNames, type Parts } from "./parts";
import { words } from "./words";

interface ValuesProps {
  readonly episode: EpisodeModel;
  readonly subject: Subject;
  readonly parts: Parts;
  readonly view: View;
  readonly dims: readonly number[];
}

type Numbers = ArrayLike<number | bigint>;

/** So many dimensions are written out; the others are in the plot only. */
const mostShown = 8;

export function Values({ episode, subject, parts, view, dims }: ValuesProps) {
  const { channel } = subject;
  const cursor = Math.floor(view.cursor.value + 1e-6);
  const { value } = useAnswer(
    async (options) => {
      const [truth, prediction] = await Promise.all([
        valuesAt(episode, channel.key, channel.hasOwnClock, channel.length, cursor, options),
        parts.prediction === null
          ? null
          : valuesAt(
              episode,
              parts.prediction.key,
              parts.prediction.hasOwnClock,
              parts.prediction.length,
              cursor,
              options,
            ),
      ]);
      return { truth, prediction };
    },
    [episode, channel.key, parts.prediction?.key, cursor],
  );
  theme.value;
  const names = dimensionNames(channel);
  return (
    <ul class="values">
      {dims.slice(0, mostShown).map((dim) => (
        <li key={dim}>
          <span class="swatch" style={{ background: seriesColour(dim) }} />
          {channel.dimensions > 1 && <span class="value-name">{shown(names[dim] ?? String(dim))}</span>}
          <span class="value">{text(value?.truth, dim)}</span>
          {parts.prediction !== null && (
            <span class="value predicted" title={shown(parts.prediction.model)}>
              {text(value?.prediction, dim)}
            </span>
          )}
        </li>
      ))}
      {channel.unit !== "" && <li class="value-unit">{shown(channel.unit)}</li>}
      {parts.uncertainty?.kind === "band" && <li class="value-unit">{shown(words.edges(parts.uncertainty.name))}</li>}
    </ul>
  );
}

function text(values: Numbers | null | undefined, dim: number): string {
  const value = values?.[dim];
  return value === undefined ? "–" : format.exact(value);
}

async function valuesAt(
  { reads }: EpisodeModel,
  key: string,
  hasOwnClock: boolean,
  length: number,
  cursor: number,
  options: ReadOptions,
): Promise<Numbers | null> {
  const entry = hasOwnClock ? await reads.entryAt(key, cursor, options) : cursor;
  if (entry < 0 || entry >= length) return null;
  const window = await reads.window(key, entry, entry + 1, options);
  return window.kind === "dense" ? window.values : null;
}
