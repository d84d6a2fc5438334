import { effect, useSignal } from "@preact/signals";
import type { JsonObject } from "@shard-format/core";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { entriesOf } from "../../model/entries";
import type { ChannelFacts } from "../../model/facts";
import { Posters } from "../../model/posters";
import { colourMaps } from "../../plot-data/colours";
import { colour } from "../../ui/colours";
import { shown } from "../../ui/escape";
import { value as formatted } from "../../ui/format";
import { canvasSize, drawInFrames, pixelRatio } from "../../ui/pixels";
import { ColourBar, controlsHeight } from "../controls";
import { type EntryAt, useEntriesAt } from "../entry-at";
import type { PanelProps } from "../panel";
import { ImageControls } from "./Controls";
import { drawGround, fitted, moved, placeOf, type Zoom, zoomAt, zoomed } from "./drawing";
import { type Mode, Painter, rangeKinds, type Shown, type Source, type Style, valuesOf } from "./painter";
import { isColour, isDepth, type Picture, pictureOf, pixelAt, type Range, usualRange } from "./pixels";
import { words } from "./words";
import "./image.css";

const blinkMilliseconds = 600;

export function Image({ episode, subject, view, width, height, settings, change, report }: PanelProps) {
  const set = (changes: JsonObject) => change({ ...settings, ...changes });
  const entries = entriesOf(episode);
  const truth = useMemo(() => sourceOf(subject.channel), [subject.channel]);
  const predictions = useMemo(() => subject.predictions.flatMap((channel) => sourceOf(channel) ?? []), [subject]);
  const prediction = predictions.find(({ channel }) => channel.model === settings["model"]) ?? predictions[0];
  const comparable = truth !== null && prediction !== undefined && sameSides(truth.picture, prediction.picture);
  const chosen = chosenMode(settings["mode"], view.difference.value, prediction !== undefined);
  const mode = chosen === "truth" || comparable ? chosen : chosen === "prediction" ? chosen : "truth";

  const [truthAt, predictionAt] = useEntriesAt(
    episode,
    prediction ? [subject.channel, prediction.channel] : [subject.channel],
  );
  const steps = Math.max(1, prediction?.picture.count ?? 1, truth?.picture.count ?? 1);
  const ahead = Math.min(Math.max(0, Math.floor(number(settings["ahead"], 0))), steps - 1);

  const canvas = useRef<HTMLCanvasElement>(null);
  const readout = useRef<HTMLDivElement>(null);
  const zoom = useSignal<Zoom>(savedZoom(settings["zoom"]));
  const divider = useSignal(Math.min(Math.max(number(settings["split"], 0.5), 0), 1));
  const isSecond = useSignal(false);
  const arrived = useSignal(0);
  const pointer = useSignal<{ x: number; y: number } | null>(null);
  const problem = useSignal("");
  const legend = useSignal<Range>({ min: 0, max: 1 });
  const isPreview = useSignal(false);
  /** The entry that was drawn last; −1 before the first. */
  const drawn = useRef(-1);
  const posters = useMemo(
    () => new Posters(episode.reads, subject.channel.key, () => arrived.value++),
    [episode, subject.channel.key],
  );
  const painter = useMemo(() => new Painter(), [subject]);

  const hasMap = truth !== null && truth.picture.planes === 1;
  const hasRange = truth !== null && !isColour(truth.channel, truth.picture) && truth.channel.dtype !== "bool";
  const usual = truth === null ? null : usualRange(truth.channel);
  const map = oneOf(colourMaps, settings["map"], truth?.channel.dtype === "u8" ? "grey" : "viridis");
  const kind =
    usual !== null && !hasRange
      ? "fixed"
      : oneOf(rangeKinds, settings["range"], usual === null ? "percentile" : "fixed");
  const fixed = fixedRange(settings, usual ?? { min: 0, max: 1 });
  const none = truth !== null && isDepth(truth.channel, truth.picture) ? 0 : undefined;
  const style: Style = { map, kind, fixed, none, ahead };
  const hasControls = prediction !== undefined || hasRange || hasMap || steps > 1;
  const room = { width, height: Math.max(40, height - (hasControls ? controlsHeight : 0)) };
  const picture = truth?.picture ?? prediction?.picture;

  // Where blinking is not wanted, a button takes turns.
  const still = useMemo(() => matchMedia("(prefers-reduced-motion: reduce)").matches, []);
  useEffect(() => {
    isSecond.value = false;
    if (mode !== "blink" || still) return;
    const timer = setInterval(() => {
      isSecond.value = !isSecond.peek();
    }, blinkMilliseconds);
    return () => clearInterval(timer);
  }, [mode, still]);

  useEffect(() => {
    if (truth === null || picture === undefined) {
      report({ problem: words.noPicture(`[${subject.channel.shape}]`) });
      return;
    }
    let told = "";
    const tell = (status: { problem?: string; note?: string; summary?: string }) => {
      const text = JSON.stringify(status);
      if (text === told) return;
      told = text;
      report(status);
    };

    /** The entry of a source at the cursor, if it is there; otherwise it is read. */
    const find = (source: Source, entry: number): Shown | null => {
      if (entry < 0 || source.channel.length === 0) return null;
      const values = entries.get(source.channel, entry);
      if (values !== undefined) {
        entries.prepare(source.channel, entry);
        return { ...source, values, entry };
      }
      entries.load(source.channel, entry).then(
        () => {
          problem.value = "";
          arrived.value++;
        },
        (error: unknown) => {
          if (error instanceof DOMException && error.name === "AbortError") return;
          problem.value = shown(error instanceof Error ? error.message : String(error));
        },
      );
      return null;
    };

    const draw = (position: number) => {
      const context = canvas.current?.getContext("2d");
      if (!context) return;
      const wantsTruth = mode !== "prediction";
      const wantsPrediction = mode !== "truth" && prediction !== undefined;
      /** The entry at the cursor; −1 if there is none yet, null if it is not known. */
      const entryOf = (one: Source, at: EntryAt | null | undefined) =>
        at ? at(one.picture.count > 1 ? position - ahead : position) : null;
      const [first, second] = [
        wantsTruth ? entryOf(truth, truthAt) : -1,
        wantsPrediction ? entryOf(prediction, predictionAt) : -1,
      ];
      const a = first === null ? null : find(truth, first);
      const b = second === null || prediction === undefined ? null : find(prediction, second);
      const missing = (a === null && first !== -1) || (b === null && second !== -1);
      const before = first === -1 && second === -1;
      // What was wrong with another entry is not wrong with these.
      if (!missing) problem.value = "";
      if (problem.value !== "") tell({ problem: problem.value });
      else if (before) tell({ note: words.notYet });
      else if (missing) tell({ note: words.reading });
      else tell({ summary: words.summary(picture.width, picture.height, (a ?? b)?.entry ?? 0) });
      // While a picture is read, the one before it stays, or a small one that is nearer takes its place.
      const waits = missing && !before && problem.value === "";
      const hasPosters = mode === "truth" && truth.channel.dtype === "u8" && picture.count === 1 && drawn.current >= 0;
      const poster = waits && hasPosters && first !== null ? posters.near(first, drawn.current) : null;
      if (waits && poster === null) return;
      isPreview.value = poster !== null;

      const ratio = pixelRatio.value;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, room.width, room.height);
      if (before || problem.value !== "") return;
      const place = placeOf(picture, room, zoom.value);
      if (poster !== null) {
        context.imageSmoothingEnabled = true;
        context.drawImage(poster, place.left, place.top, picture.width * place.size, picture.height * place.size);
        return;
      }
      drawn.current = (a ?? b)?.entry ?? -1;
      drawGround(context, place, picture, [colour("--sunken"), colour("--line")]);
      if (mode === "difference" && a !== null && b !== null) {
        legend.value = painter.drawDifference(context, place, a, b, style);
      } else {
        const showsPrediction = mode === "prediction" || (mode === "blink" && isSecond.value);
        const split = mode === "split" ? divider.value : showsPrediction ? 0 : 1;
        legend.value = painter.drawBoth(context, place, a, b, split, style);
      }
      tellPixel(a, b, place.left, place.top, place.size);
    };

    const tellPixel = (a: Shown | null, b: Shown | null, left: number, top: number, size: number) => {
      const box = readout.current;
      if (box === null) return;
      const at = pointer.value;
      const [x, y] = at === null ? [-1, -1] : [Math.floor((at.x - left) / size), Math.floor((at.y - top) / size)];
      const inside = x >= 0 && y >= 0 && x < picture.width && y < picture.height;
      const text = (one: Shown) => valueText(pixelAt(valuesOf(one, style), one.picture, x, y), one.channel, none);
      const parts = inside ? [a, b].flatMap((one) => (one === null ? [] : [text(one)])) : [];
      const names = a !== null && b !== null ? [words.truth, words.prediction] : [""];
      box.textContent =
        parts.length === 0
          ? ""
          : [`x ${x}  y ${y}`, ...parts.map((part, i) => `${names[i]} ${part}`.trim())].join("\n");
    };

    return drawInFrames(() => {
      void [
        arrived.value,
        zoom.value,
        divider.value,
        isSecond.value,
        pointer.value,
        problem.value,
        pixelRatio.value,
        colour("--sunken"),
      ];
      return view.cursor.value;
    }, draw);
  }, [episode, truth, prediction, truthAt, predictionAt, mode, map, kind, fixed.min, fixed.max, ahead, width, height]);

  const drag = useRef<{ x: number; y: number; divides: boolean } | null>(null);
  // The zoom is part of the link once it rests.
  const now = useRef({ settings, change });
  now.current = { settings, change };
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let isFirst = true;
    const stop = effect(() => {
      const { scale, x, y } = zoom.value;
      clearTimeout(timer);
      if (!isFirst) {
        timer = setTimeout(() => {
          const { zoom: _, ...others } = now.current.settings;
          const kept = [scale, x, y].map((value) => Number(value.toFixed(4)));
          now.current.change(scale === 1 ? others : { ...others, zoom: kept });
        }, 300);
      }
      isFirst = false;
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, []);
  if (truth === null || picture === undefined) {
    return null;
  }
  const pointAt = (event: MouseEvent) => {
    const box = canvas.current?.getBoundingClientRect();
    return { x: event.clientX - (box?.left ?? 0), y: event.clientY - (box?.top ?? 0) };
  };
  const place = placeOf(picture, room, zoom.value);
  const lineAt = place.left + divider.value * picture.width * place.size;
  const modes: readonly Mode[] = comparable
    ? ["truth", "prediction", "split", "blink", "difference"]
    : ["truth", "prediction"];
  return (
    <div class="image-panel">
      <div class="image-place" style={{ height: `${room.height}px` }}>
        <canvas
          ref={canvas}
          {...canvasSize(room.width, room.height)}
          onWheel={(event) => {
            event.preventDefault();
            const { x, y } = pointAt(event);
            zoom.value = zoomAt(zoom.value, 1.0015 ** -event.deltaY, x, y, picture, room);
          }}
          onPointerDown={(event) => {
            event.currentTarget.setPointerCapture(event.pointerId);
            const { x, y } = pointAt(event);
            drag.current = { x, y, divides: mode === "split" && Math.abs(x - lineAt) < 12 };
          }}
          onPointerMove={(event) => {
            const { x, y } = pointAt(event);
            const from = drag.current;
            if (from?.divides)
              divider.value = Math.min(Math.max((x - place.left) / (picture.width * place.size), 0), 1);
            else if (from && zoom.value.scale > 1)
              zoom.value = moved(zoom.value, x - from.x, y - from.y, picture, room);
            if (from) drag.current = { ...from, x, y };
            pointer.value = { x, y };
          }}
          onPointerUp={() => {
            if (drag.current?.divides) set({ split: Number(divider.value.toFixed(3)) });
            drag.current = null;
          }}
          onPointerCancel={() => {
            drag.current = null;
          }}
          onPointerLeave={() => {
            pointer.value = null;
            if (readout.current) readout.current.textContent = "";
          }}
          onDblClick={() => {
            zoom.value = fitted;
          }}
          tabIndex={0}
          role="img"
          aria-label={words.canvas}
          onKeyDown={(event) => {
            const factor = { "+": 1.25, "-": 1 / 1.25 }[event.key];
            const step = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] }[event.key];
            if (factor !== undefined) {
              zoom.value = zoomAt(zoom.value, factor, room.width / 2, room.height / 2, picture, room);
            } else if (step !== undefined && zoom.value.scale > 1) {
              zoom.value = moved(zoom.value, step[0] ?? 0, step[1] ?? 0, picture, room);
            } else return;
            event.preventDefault();
            event.stopPropagation(); // of a picture that is not zoomed, the arrows move the cursor
          }}
        />
        {mode === "split" && (
          <Divider
            at={lineAt}
            share={divider.value}
            move={(share) => {
              divider.value = share;
              set({ split: Number(share.toFixed(3)) });
            }}
          />
        )}
        {(mode === "split" || mode === "blink") && (
          <div class="image-names" aria-hidden="true">
            <span class={mode === "blink" && isSecond.value ? "hidden" : ""}>{words.truth}</span>
            <span class={mode === "blink" && !isSecond.value ? "hidden" : ""}>
              {shown(prediction?.channel.model || words.prediction)}
            </span>
          </div>
        )}
        {isPreview.value && (
          <div class="image-names">
            <span>{words.preview}</span>
          </div>
        )}
        <div class="panel-readout" ref={readout} />
        {(hasMap || mode === "difference") && (
          <ColourBar
            map={mode === "difference" ? "viridis" : map}
            min={formatted(legend.value.min)}
            max={formatted(legend.value.max)}
            unit={shown(subject.channel.unit)}
          />
        )}
      </div>
      {hasControls && (
        <ImageControls
          mode={mode}
          modes={modes}
          prediction={prediction}
          predictions={predictions}
          style={style}
          count={steps}
          hasRange={hasRange}
          hasMap={hasMap}
          legend={legend.value}
          set={(changes) => {
            if ("mode" in changes) view.difference.value = false;
            set(changes);
          }}
        >
          {mode === "blink" && still && (
            <button
              type="button"
              class="plain-button"
              onClick={() => {
                isSecond.value = !isSecond.value;
              }}
            >
              {words.swap}
            </button>
          )}
        </ImageControls>
      )}
    </div>
  );
}

function Divider({ at, share, move }: { at: number; share: number; move: (share: number) => void }) {
  return (
    <div
      class="image-divider"
      style={{ left: `${at}px` }}
      role="slider"
      tabIndex={0}
      aria-label={words.dividing}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(100 * share)}
      onKeyDown={(event) => {
        const step = event.key === "ArrowLeft" ? -0.02 : event.key === "ArrowRight" ? 0.02 : 0;
        if (step === 0) return;
        event.preventDefault();
        event.stopPropagation(); // the arrows move the line, not the cursor
        move(Math.min(Math.max(share + step, 0), 1));
      }}
    />
  );
}

function sourceOf(channel: ChannelFacts): Source | null {
  const picture = pictureOf(channel);
  return picture === null ? null : { channel, picture };
}

function savedZoom(saved: unknown): Zoom {
  if (!Array.isArray(saved)) return fitted;
  const [scale, x, y] = saved.map((value) => number(value, 0)) as [number?, number?, number?];
  return zoomed({ scale: scale ?? 1, x: x ?? 0.5, y: y ?? 0.5 });
}

function sameSides(a: Picture, b: Picture): boolean {
  return a.width === b.width && a.height === b.height;
}

function chosenMode(wanted: unknown, difference: boolean, hasPrediction: boolean): Mode {
  if (!hasPrediction) return "truth";
  if (difference) return "difference";
  return oneOf(["truth", "prediction", "split", "blink", "difference"] as const, wanted, "split");
}

function oneOf<T extends string>(known: readonly T[], value: unknown, usual: T): T {
  return known.find((one) => one === value) ?? usual;
}

function number(value: unknown, usual: number): number {
  return typeof value === "number" && Number.isFinite(value) ? value : usual;
}

function fixedRange(settings: JsonObject, usual: Range): Range {
  const min = number(settings["least"], usual.min);
  const max = number(settings["largest"], usual.max);
  return min <= max ? { min, max } : { min: max, max: min };
}

function valueText(values: readonly number[], channel: ChannelFacts, none: number | undefined): string {
  if (values.length === 1 && values[0] === none) return words.noValue;
  const unit = channel.unit === "" ? "" : ` ${shown(channel.unit)}`;
  return values.map((value) => formatted(value)).join("  ") + unit;
}
