import { useRef } from "preact/hooks";
import type { EpisodeModel } from "../model/episode";
import type { View } from "../state/view";
import { words } from "../words";
import { ticksOf, toPixel } from "./axis";
import { useGestures } from "./gestures";

interface RulerProps {
  readonly episode: EpisodeModel;
  readonly view: View;
  readonly width: number;
  readonly box: (from: number, to: number) => void;
}

/** The labels of the shared axis, above all plots. Dragging selects a range. */
export function Ruler({ episode, view, width, box }: RulerProps) {
  const place = useRef<HTMLDivElement>(null);
  useGestures(place, view, { box, drag: "select" });
  const range = view.range.value;
  const rate = view.axisRate.value;
  const canSwitch = episode.seconds(0) !== null;
  return (
    <div ref={place} class="ruler" title={words.stage.ruler}>
      <button
        type="button"
        class="ruler-unit"
        disabled={!canSwitch}
        onClick={() => {
          view.axisRate.value = rate === null ? episode.facts.rate : null;
        }}
      >
        {rate === null ? words.time.unitSteps : words.time.unitTime}
      </button>
      {ticksOf(range, width, rate).map(({ position, label }) => (
        <span key={label} class="tick" style={{ transform: `translateX(${toPixel(position, range, width)}px)` }}>
          {toPixel(position, range, width) < width - 8 - 7 * label.length ? label : ""}
        </span>
      ))}
    </div>
  );
}
