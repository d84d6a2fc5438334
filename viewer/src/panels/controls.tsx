// The small controls below a panel's drawing.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { type ColourMap, colourMaps, colourTable } from "../plot-data/colours";
import "./controls.css";

/** The height of a row of controls, in CSS pixels. */
export const controlsHeight = 34;

export function Controls({ children }: { children: ComponentChildren }) {
  return <div class="panel-controls">{children}</div>;
}

export interface Option<T extends string> {
  readonly value: T;
  readonly text: string;
  readonly hint?: string;
}

interface ChoiceProps<T extends string> {
  readonly label: string;
  readonly options: readonly Option<T>[];
  readonly value: T;
  readonly choose: (value: T) => void;
}

/** A few choices side by side. */
export function Segments<T extends string>({ label, options, value, choose }: ChoiceProps<T>) {
  return (
    // biome-ignore lint/a11y/useSemanticElements: a fieldset cannot be laid out as a row in all browsers
    <div class="panel-segments" role="group" aria-label={label}>
      {options.map((option) => (
        <button
          type="button"
          key={option.value}
          aria-pressed={option.value === value}
          title={option.hint}
          onClick={() => choose(option.value)}
        >
          {option.text}
        </button>
      ))}
    </div>
  );
}

/** One of several choices in a menu. */
export function Menu<T extends string>({ label, options, value, choose }: ChoiceProps<T>) {
  return (
    <label class="panel-menu">
      <span>{label}</span>
      <select value={value} onChange={(event) => choose(event.currentTarget.value as T)}>
        {options.map((option) => (
          <option key={option.value} value={option.value} selected={option.value === value}>
            {option.text}
          </option>
        ))}
      </select>
    </label>
  );
}

interface ColourProps {
  readonly label: string;
  readonly map: ColourMap;
  readonly set: (change: { map: ColourMap }) => void;
}

/** The choice of a colour map. */
export function ColourMenu({ label, map, set }: ColourProps) {
  const options = colourMaps.map((value) => ({ value, text: value }));
  return <Menu label={label} value={map} options={options} choose={(value) => set({ map: value })} />;
}

interface NumberProps {
  readonly label: string;
  readonly value: number;
  readonly choose: (value: number) => void;
  readonly min?: number;
  readonly max?: number;
  readonly step?: number | "any";
}

export function NumberField({ label, value, choose, min, max, step = "any" }: NumberProps) {
  return (
    <label class="panel-menu">
      <span>{label}</span>
      <input
        type="number"
        class={step === 1 ? "whole" : ""}
        value={value}
        min={min}
        max={max}
        step={step}
        onChange={(event) => {
          const number = event.currentTarget.valueAsNumber;
          if (Number.isFinite(number)) choose(Math.min(Math.max(number, min ?? -Infinity), max ?? Infinity));
        }}
      />
    </label>
  );
}

/** What the colours mean, from the least value to the largest. */
export function ColourBar({ map, min, max, unit }: { map: ColourMap; min: string; max: string; unit: string }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    const table = colourTable(map);
    const image = context.createImageData(256, 1);
    for (let i = 0; i < 256; i++) {
      image.data.set(table.subarray(3 * i, 3 * i + 3), 4 * i);
      image.data[4 * i + 3] = 255;
    }
    context.putImageData(image, 0, 0);
  }, [map]);
  return (
    <span class="colour-bar">
      <span>{min}</span>
      <canvas ref={canvas} width={256} height={1} />
      <span>
        {max}
        {unit === "" ? "" : ` ${unit}`}
      </span>
    </span>
  );
}
