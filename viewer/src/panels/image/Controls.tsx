import type { JsonObject } from "@shard-format/core";
import type { ComponentChildren } from "preact";
import { shown } from "../../ui/escape";
import { ColourMenu, Controls, Menu, NumberField, Segments } from "../controls";
import { type Mode, type RangeKind, rangeKinds, type Source, type Style } from "./painter";
import type { Range } from "./pixels";
import { words } from "./words";

interface ImageControlsProps {
  readonly mode: Mode;
  readonly modes: readonly Mode[];
  readonly prediction: Source | undefined;
  readonly predictions: readonly Source[];
  readonly style: Style;
  /** Pictures in an entry. */
  readonly count: number;
  readonly hasRange: boolean;
  readonly hasMap: boolean;
  /** The range of the colours that are seen now. */
  readonly legend: Range;
  readonly set: (changes: JsonObject) => void;
  /** What stands beside the choice of the mode. */
  readonly children?: ComponentChildren;
}

const hints: Partial<Record<Mode, string>> = {
  split: words.splitHint,
  blink: words.blinkHint,
  difference: words.differenceHint,
};

export function ImageControls(props: ImageControlsProps) {
  const { mode, modes, prediction, predictions, style, count, hasRange, hasMap, legend, set, children } = props;
  const { kind, map, fixed, ahead } = style;
  const isDifference = mode === "difference";
  const name = ({ channel }: Source) => shown(channel.model || words.prediction);
  return (
    <Controls>
      {prediction !== undefined && (
        <Segments
          label={words.show}
          value={mode}
          options={modes.map((value) => ({ value, text: words[value], hint: hints[value] ?? words[value] }))}
          choose={(value) => set({ mode: value })}
        />
      )}
      {children}
      {prediction !== undefined && predictions.length > 1 && (
        <Menu
          label={words.model}
          value={prediction.channel.model}
          options={predictions.map((one) => ({ value: one.channel.model, text: name(one) }))}
          choose={(model) => set({ model })}
        />
      )}
      {count > 1 && (
        <NumberField
          label={words.ahead}
          value={ahead}
          min={0}
          max={count - 1}
          step={1}
          choose={(value) => set({ ahead: value })}
        />
      )}
      {hasRange && !isDifference && (
        <Menu
          label={words.range}
          value={kind}
          options={rangeKinds.map((value) => ({ value, text: words.ranges[value] }))}
          choose={(range: RangeKind) =>
            set(range === "fixed" ? { range, least: legend.min, largest: legend.max } : { range })
          }
        />
      )}
      {hasRange && kind === "fixed" && !isDifference && (
        <>
          <NumberField label={words.least} value={fixed.min} choose={(least) => set({ least })} />
          <NumberField label={words.largest} value={fixed.max} choose={(largest) => set({ largest })} />
        </>
      )}
      {hasMap && !isDifference && <ColourMenu label={words.colours} map={map} set={set} />}
    </Controls>
  );
}
