import { useSignal } from "@preact/signals";
import type { JsonObject } from "@shard-format/core";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { entriesOf } from "../../model/entries";
import { colourMaps } from "../../plot-data/colours";
import { colour } from "../../ui/colours";
import { shown } from "../../ui/escape";
import { count, value as formatted } from "../../ui/format";
import { canvasSize, drawInFrames, pixelRatio } from "../../ui/pixels";
import { ColourBar, ColourMenu, Controls, controlsHeight, Menu, NumberField } from "../controls";
import { useEntriesAt } from "../entry-at";
import type { PanelProps, PanelStatus } from "../panel";
import { eyeOf, type Frame, frameOf, type Orbit, projected, scaled, startingOrbit, sum } from "./camera";
import {
  type Bounds,
  boundsOf,
  type Cast,
  type ColourBy,
  cloudOf,
  measureSpan,
  ownColourScale,
  pointsIn,
  type Span,
  ups,
} from "./cloud";
import { Renderer } from "./renderer";
import { words } from "./words";
import "./points.css";
import { listen } from "../../ui/listen";

const longestTrail = 100;

export function Points({ episode, subject, view, width, height, settings, change, report }: PanelProps) {
  const { channel } = subject;
  const columns = channel.shape.at(-1) ?? 3;
  const entries = entriesOf(episode);
  const [entryAt] = useEntriesAt(episode, [channel]);
  const room = { width, height: Math.max(40, height - controlsHeight) };

  const up = ups.find((one) => one === settings["up"]) ?? "z";
  const map = colourMaps.find((one) => one === settings["map"]) ?? "viridis";
  const trail = whole(settings["trail"], 1, 1, longestTrail);
  const size = whole(settings["size"], 3, 1, 20);
  const orbit = useSignal<Orbit>(savedOrbit(settings));
  const arrived = useSignal(0);
  const problem = useSignal("");
  const bounds = useSignal<Bounds | null>(null);
  const span = useSignal<Span>({ min: 0, max: 1 });
  const hasOwn = useSignal(false);
  const grid = useSignal("");
  const options: ColourBy[] = [
    ...(hasOwn.value ? (["own"] as const) : []),
    "height",
    "distance",
    ...Array.from({ length: columns - 3 }, (_, i): ColourBy => `column ${i + 3}`),
  ];
  const by = options.find((one) => one === settings["colour"]) ?? (options[0] as ColourBy);

  const canvas = useRef<HTMLCanvasElement>(null);
  const names = [useRef<HTMLSpanElement>(null), useRef<HTMLSpanElement>(null), useRef<HTMLSpanElement>(null)];
  const hasGraphics = useMemo(() => Renderer.isPossible(), []);

  useEffect(() => {
    if (canvas.current === null || !hasGraphics) {
      report({ problem: words.noGraphics });
      return;
    }
    const element = canvas.current;
    let renderer = Renderer.on(element);
    let drawn: readonly unknown[] = [];
    let told = "";
    let spanFor = "";
    const tell = (status: PanelStatus) => {
      const text = JSON.stringify(status);
      if (text !== told) report(status);
      told = text;
    };

    /** The entries of the trail; null while one of them is read. */
    const castsAt = (entry: number): Cast[] | null => {
      const casts: Cast[] = [];
      let missing = false;
      for (let age = 0; age < trail && entry - age >= 0; age++) {
        const values = entries.get(channel, entry - age);
        if (values !== undefined) casts.push({ values, age });
        else {
          missing = true;
          entries.load(channel, entry - age).then(
            () => {
              problem.value = "";
              arrived.value++;
            },
            (error: unknown) => {
              if (error instanceof DOMException && error.name === "AbortError") return;
              problem.value = shown(error instanceof Error ? error.message : String(error));
            },
          );
          break; // the present step first; its trail when that is there
        }
      }
      return missing ? null : casts;
    };

    let axes: Frame | null = null;
    const draw = (position: number) => {
      if (renderer === null || entryAt === undefined || entryAt === null) return;
      const entry = entryAt(position);
      if (entry < 0) {
        renderer.setPoints(new Float32Array(0), new Uint8Array(0), 0);
        drawn = [];
        tell({ note: words.notYet });
      } else {
        const casts = castsAt(entry);
        if (casts === null) {
          tell(problem.value === "" ? { note: words.reading } : { problem: problem.value });
          if (bounds.value === null) return;
        } else {
          problem.value = ""; // what was wrong with another entry is not wrong with these
          entries.prepare(channel, entry);
          load(casts, entry);
        }
      }
      const box = bounds.value;
      if (box === null) return;
      const eye = eyeOf(orbit.value, box, up, room.width / room.height);
      renderer.draw(eye.matrix, size * pixelRatio.value);
      for (const [axis, name] of names.entries()) {
        const place = axes === null ? null : projected(eye.matrix, axes.ends[axis as 0 | 1 | 2]);
        const label = name.current;
        if (label === null) continue;
        label.hidden = place === null;
        if (place !== null)
          label.style.transform = `translate(${place[0] * room.width}px, ${place[1] * room.height}px)`;
      }
    };

    const load = (casts: readonly Cast[], entry: number) => {
      const [{ values } = { values: new Float32Array(0) }] = casts;
      const points = pointsIn(values, columns);
      bounds.value ??= boundsOf(values, columns);
      hasOwn.value = hasOwn.peek() || ownColourScale(values, columns) !== null;
      const name = `${by} ${up}`;
      const here = measureSpan(values, columns, by, up);
      if (here !== null) {
        // Colours keep their meaning from step to step: the range only grows.
        const before = spanFor === name ? span.peek() : here;
        const range = { min: Math.min(before.min, here.min), max: Math.max(before.max, here.max) };
        if (range.min !== span.peek().min || range.max !== span.peek().max) span.value = range;
        spanFor = name;
      }
      const ground = rgb(colour("--surface"));
      const inputs = [...casts.map(({ values }) => values), by, up, map, span.value, ground.join(), bounds.value];
      if (inputs.length !== drawn.length || inputs.some((one, i) => one !== drawn[i])) {
        const cloud = cloudOf(casts, { columns, by, up, map, span: span.value, ground, trail });
        renderer?.setPoints(cloud.places, cloud.colours, cloud.count);
        if (bounds.value !== null) {
          axes = frameOf(bounds.value, up, rgb(colour("--line-strong")));
          renderer?.setLines(axes.places, axes.colours);
          grid.value = words.grid(`${formatted(Number(axes.step.toPrecision(1)))} ${shown(channel.unit)}`.trim());
        }
        drawn = inputs;
        const note = points === 0 ? words.nothing : cloud.every > 1 ? words.thinned(cloud.every) : undefined;
        tell({
          summary: words.summary(count(points), entry),
          ...(note === undefined ? {} : { note }),
          ...(cloud.every > 1 ? { reducedBy: cloud.every } : {}),
        });
      } else tell({ summary: words.summary(count(points), entry) });
    };

    const lost = (event: Event) => {
      event.preventDefault();
      renderer = null;
    };
    const restored = () => {
      renderer = Renderer.on(element);
      drawn = [];
      arrived.value++;
    };
    const deafen = listen(element, { webglcontextlost: lost, webglcontextrestored: restored });
    const stop = drawInFrames(() => {
      void [arrived.value, orbit.value, problem.value, bounds.value, pixelRatio.value, colour("--surface")];
      return view.cursor.value;
    }, draw);
    return () => {
      stop();
      deafen();
      renderer?.end();
    };
  }, [episode, channel, entryAt, by, up, map, trail, size, width, height]);

  const drag = useRef<{ x: number; y: number } | null>(null);
  const set = (changes: JsonObject) => change({ ...settings, ...changes });
  const keep = () => {
    const { turn, tilt, zoom, shift } = orbit.peek();
    set({ orbit: [turn, tilt, zoom, ...shift].map((value) => Number(value.toFixed(4))) });
  };
  const turnBy = (turn: number, tilt: number, zoom = 1) => {
    const now = orbit.peek();
    orbit.value = {
      ...now,
      turn: now.turn + turn,
      tilt: Math.min(Math.max(now.tilt + tilt, -1.55), 1.55),
      zoom: Math.min(Math.max(now.zoom * zoom, 0.1), 200),
    };
  };
  if (!hasGraphics) return null; // the frame of the panel shows why
  const text = (one: ColourBy) =>
    one in words.by ? words.by[one as keyof typeof words.by] : words.column(Number(one.slice(7)));

  return (
    <div class="points-panel">
      <div class="points-place" style={{ height: `${room.height}px` }}>
        <canvas
          ref={canvas}
          {...canvasSize(room.width, room.height)}
          tabIndex={0}
          role="img"
          aria-label={words.canvas}
          onWheel={(event) => {
            event.preventDefault();
            turnBy(0, 0, 1.0015 ** -event.deltaY);
          }}
          onPointerDown={(event) => {
            event.currentTarget.setPointerCapture(event.pointerId);
            drag.current = { x: event.clientX, y: event.clientY };
          }}
          onPointerMove={(event) => {
            if (drag.current === null) return;
            const [dx, dy] = [event.clientX - drag.current.x, event.clientY - drag.current.y];
            drag.current = { x: event.clientX, y: event.clientY };
            if (!event.shiftKey && event.buttons !== 2 && event.buttons !== 4) return turnBy(-dx / 150, dy / 150);
            const box = bounds.peek();
            if (box === null) return;
            const now = orbit.peek();
            const { right, above } = eyeOf(now, box, up, room.width / room.height);
            const step = 1 / (now.zoom * Math.min(room.width, room.height));
            orbit.value = { ...now, shift: sum(now.shift, sum(scaled(right, -dx * step), scaled(above, dy * step))) };
          }}
          onPointerUp={() => {
            drag.current = null;
            keep();
          }}
          onContextMenu={(event) => event.preventDefault()}
          onDblClick={() => {
            orbit.value = startingOrbit;
            keep();
          }}
          onKeyDown={(event) => {
            const step = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] }[
              event.key
            ];
            if (step !== undefined) turnBy(step[0] as number, step[1] as number);
            else if (event.key === "+" || event.key === "-") turnBy(0, 0, event.key === "+" ? 1.2 : 1 / 1.2);
            else return;
            event.preventDefault();
            event.stopPropagation();
          }}
        />
        {["x", "y", "z"].map((name, axis) => (
          <span
            key={name}
            ref={names[axis] as { current: HTMLSpanElement | null }}
            class={`axis-name axis-${name}`}
            aria-hidden="true"
            hidden
          >
            {name}
          </span>
        ))}
        <span class="points-grid">{grid.value}</span>
        {by !== "own" && bounds.value !== null && (
          <ColourBar
            map={map}
            min={formatted(span.value.min)}
            max={formatted(span.value.max)}
            unit={by === "height" || by === "distance" ? shown(channel.unit) : ""}
          />
        )}
      </div>
      <Controls>
        <Menu
          label={words.colour}
          value={by}
          options={options.map((value) => ({ value, text: text(value) }))}
          choose={(value) => set({ colour: value })}
        />
        {by !== "own" && <ColourMenu label={words.colours} map={map} set={set} />}
        <NumberField
          label={words.trail}
          value={trail}
          min={1}
          max={longestTrail}
          step={1}
          choose={(value) => set({ trail: value })}
        />
        <NumberField
          label={words.size}
          value={size}
          min={1}
          max={20}
          step={1}
          choose={(value) => set({ size: value })}
        />
        <Menu
          label={words.up}
          value={up}
          options={ups.map((value) => ({ value, text: words.ups[value] }))}
          choose={(value) => set({ up: value })}
        />
        <button
          type="button"
          class="plain-button"
          title={words.fitHint}
          onClick={() => {
            bounds.value = null;
            orbit.value = { ...orbit.peek(), zoom: 1, shift: [0, 0, 0] };
            keep();
          }}
        >
          {words.fit}
        </button>
      </Controls>
    </div>
  );
}

function whole(value: unknown, usual: number, least: number, largest: number): number {
  return typeof value === "number" && Number.isFinite(value)
    ? Math.min(Math.max(Math.round(value), least), largest)
    : usual;
}

/** The camera of a link; the usual one if the link has none that makes sense. */
function savedOrbit({ orbit }: JsonObject): Orbit {
  if (!Array.isArray(orbit) || orbit.length !== 6) return startingOrbit;
  const numbers = orbit.map((value) => (typeof value === "number" && Number.isFinite(value) ? value : 0));
  const [turn, tilt, zoom, x, y, z] = numbers as [number, number, number, number, number, number];
  return { turn, tilt, zoom: zoom > 0 ? zoom : 1, shift: [x, y, z] };
}

/** A colour of theme.css as bytes. */
function rgb(hex: string): [number, number, number] {
  const digits = /^#([0-9a-f]{6})$/i.exec(hex)?.[1] ?? "888888";
  return [0, 2, 4].map((at) => Number.parseInt(digits.slice(at, at + 2), 16)) as [number, number, number];
}
