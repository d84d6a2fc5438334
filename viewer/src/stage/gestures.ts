// What the mouse and fingers do on anything that has the time axis from left to right.

import { useEffect } from "preact/hooks";
import type { Range } from "../model/reads";
import { gutter } from "../panels/panel";
import type { View } from "../state/view";
import { listen } from "../ui/listen";
import { toPosition } from "./axis";

/** Pixels that the pointer may move in a click. */
const still = 3;
/** Zoom of one notch of a wheel. */
const notch = 1.2;
/** Two fingers that are nearer to each other count as this far apart. */
const nearest = 24;

type Mode = "pan" | "scrub" | "box" | "select";

interface Drag {
  readonly x: number;
  readonly position: number;
  readonly range: Range;
  readonly mode: Mode;
}

/** What is down on the plots of a view. Two fingers are often on two plots: on a phone, each is not high. */
interface Hand {
  readonly pointers: Map<number, number>;
  drag: Drag | null;
  /** The steps between two fingers, and the position in their middle. */
  pinch: { readonly steps: number; readonly middle: number } | null;
}

const hands = new WeakMap<View, Hand>();

function handOf(view: View): Hand {
  const hand = hands.get(view) ?? { pointers: new Map<number, number>(), drag: null, pinch: null };
  hands.set(view, hand);
  return hand;
}

export type BoxShown = (from: number, to: number) => void;

/** Adds the gestures to an element as wide as the stage. `box` draws the range that is being chosen; NaN: none. */
export function useGestures(
  element: { readonly current: HTMLElement | null },
  view: View,
  { box, drag = "pan" }: { box: BoxShown; drag?: Mode },
): void {
  useEffect(() => {
    const place = element.current;
    if (place === null) return;
    const at = (event: { clientX: number }) => {
      const { left, width } = place.getBoundingClientRect();
      return toPosition(event.clientX - left, view.range.peek(), width);
    };
    const hand = handOf(view);
    const { pointers } = hand;
    let isMoved = false;
    /** How far two fingers are from each other, and the middle between them. */
    const fingers = () => {
      const [a = 0, b = 0] = pointers.values();
      return { apart: Math.max(nearest, Math.abs(a - b)), middle: (a + b) / 2 };
    };

    const down = (event: PointerEvent) => {
      if (event.button !== 0 || isControl(event.target)) return;
      if (event.isPrimary) pointers.clear(); // an element that was removed got no end of its touch
      pointers.set(event.pointerId, event.clientX);
      if (pointers.size > 1) {
        hand.drag = null;
        box(Number.NaN, Number.NaN);
        const { apart, middle } = fingers();
        const { start, end } = view.range.peek();
        const steps = (apart * (end - start)) / innerWidth(place);
        hand.pinch = pointers.size === 2 ? { steps, middle: at({ clientX: middle }) } : null;
        return;
      }
      const mode = event.shiftKey ? "scrub" : event.ctrlKey || event.metaKey ? "box" : drag;
      hand.drag = { x: event.clientX, position: at(event), range: view.range.peek(), mode };
      isMoved = false;
      if (mode === "scrub") view.seek(Math.round(at(event)));
      if (event.pointerType !== "touch") place.setPointerCapture(event.pointerId);
    };
    const move = (event: PointerEvent) => {
      if (event.pointerType === "mouse") view.hover.value = at(event);
      if (pointers.has(event.pointerId)) pointers.set(event.pointerId, event.clientX);
      if (hand.pinch !== null && pointers.has(event.pointerId)) {
        view.isMoving.value = true;
        const { steps, middle } = hand.pinch;
        const now = fingers();
        const width = (steps * innerWidth(place)) / now.apart;
        const { left } = place.getBoundingClientRect();
        // What was between the fingers stays between them.
        const start = middle - ((now.middle - left - gutter.left) / innerWidth(place)) * width;
        view.show({ start, end: start + width });
        return;
      }
      const start = hand.drag;
      if (start === null || !pointers.has(event.pointerId)) return;
      if (!isMoved && Math.abs(event.clientX - start.x) <= still) return;
      isMoved = true;
      view.isMoving.value = true;
      const { width } = place.getBoundingClientRect();
      if (start.mode === "pan") {
        const by = toPosition(start.x, start.range, width) - toPosition(event.clientX, start.range, width);
        view.show({ start: start.range.start + by, end: start.range.end + by });
      } else if (start.mode === "scrub") {
        view.seek(Math.round(at(event)));
      } else {
        box(start.position, at(event));
      }
    };
    const up = (event: PointerEvent) => {
      pointers.delete(event.pointerId);
      const from = hand.drag;
      hand.pinch = hand.drag = null;
      view.isMoving.value = false;
      if (from === null) return;
      const to = at(event);
      const [low, high] = [Math.min(from.position, to), Math.max(from.position, to)];
      if (!isMoved) view.seek(Math.round(to));
      else if (from.mode === "box") view.show({ start: low, end: high });
      else if (from.mode === "select") {
        const end = Math.min(Math.ceil(high), view.length.peek());
        view.selection.value = { start: Math.max(0, Math.floor(low)), end };
      }
      box(Number.NaN, Number.NaN);
    };
    const leave = () => {
      view.hover.value = null;
    };
    const cancel = (event: PointerEvent) => {
      pointers.delete(event.pointerId);
      hand.pinch = hand.drag = null;
      view.isMoving.value = false;
      box(Number.NaN, Number.NaN);
    };
    const wheel = (event: WheelEvent) => {
      if (event.shiftKey || isControl(event.target)) return; // the page scrolls
      event.preventDefault();
      const { start: from, end } = view.range.peek();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const by = (event.deltaX / place.clientWidth) * (end - from);
        view.show({ start: from + by, end: end + by });
        return;
      }
      // Notches of a wheel, and the finer steps of touch pads.
      const notches = Math.max(-3, Math.min(3, event.deltaY / (event.deltaMode === 0 ? 100 : 3)));
      view.zoom(notch ** notches, at(event));
    };
    const double = (event: MouseEvent) => {
      if (!isControl(event.target)) view.fit();
    };
    return listen(place, {
      pointerdown: down,
      pointermove: move,
      pointerup: up,
      pointercancel: cancel,
      pointerleave: leave,
      wheel,
      dblclick: double,
    });
  }, [view, box, drag]);
}

/** Pixels from the beginning of a plot to its end. */
function innerWidth({ clientWidth }: HTMLElement): number {
  return Math.max(1, clientWidth - gutter.left - gutter.right);
}

/** Whether an element inside a plot has a use of its own for the pointer. */
function isControl(target: EventTarget | null): boolean {
  return target instanceof Element && target.closest("button, input, select, textarea, a, [data-own-pointer]") !== null;
}
