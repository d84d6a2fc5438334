// What the mouse and fingers do on anything that has the time axis from left to right.

import { useEffect } from "preact/hooks";
import type { View } from "../state/view";
import { toPosition } from "./axis";

/** Pixels that the pointer may move in a click. */
const still = 3;
/** Zoom of one notch of a wheel. */
const notch = 1.2;

type Mode = "pan" | "scrub" | "box" | "select";

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
    let start: { x: number; position: number; range: { start: number; end: number }; mode: Mode } | null = null;
    let isMoved = false;
    const pointers = new Map<number, number>();
    let pinch: { distance: number; range: { start: number; end: number }; middle: number } | null = null;

    const down = (event: PointerEvent) => {
      if (event.button !== 0 || isControl(event.target)) return;
      pointers.set(event.pointerId, event.clientX);
      if (pointers.size === 2) {
        const [a, b] = [...pointers.values()] as [number, number];
        pinch = { distance: Math.abs(a - b), range: view.range.peek(), middle: at({ clientX: (a + b) / 2 }) };
        start = null;
        return;
      }
      const mode = event.shiftKey ? "scrub" : event.ctrlKey || event.metaKey ? "box" : drag;
      start = { x: event.clientX, position: at(event), range: view.range.peek(), mode };
      isMoved = false;
      if (mode === "scrub") view.seek(Math.round(at(event)));
      if (event.pointerType !== "touch") place.setPointerCapture(event.pointerId);
    };
    const move = (event: PointerEvent) => {
      if (event.pointerType === "mouse") view.hover.value = at(event);
      if (pointers.has(event.pointerId)) pointers.set(event.pointerId, event.clientX);
      if (pinch !== null && pointers.size === 2) {
        const [a, b] = [...pointers.values()] as [number, number];
        const factor = pinch.distance / Math.max(8, Math.abs(a - b));
        const { range, middle } = pinch;
        view.show({ start: middle - (middle - range.start) * factor, end: middle + (range.end - middle) * factor });
        return;
      }
      if (start === null) return;
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
      pinch = null;
      const from = start;
      start = null;
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
      pinch = start = null;
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
    place.addEventListener("pointerdown", down);
    place.addEventListener("pointermove", move);
    place.addEventListener("pointerup", up);
    place.addEventListener("pointercancel", cancel);
    place.addEventListener("pointerleave", leave);
    place.addEventListener("wheel", wheel, { passive: false });
    place.addEventListener("dblclick", double);
    return () => {
      place.removeEventListener("pointerdown", down);
      place.removeEventListener("pointermove", move);
      place.removeEventListener("pointerup", up);
      place.removeEventListener("pointercancel", cancel);
      place.removeEventListener("pointerleave", leave);
      place.removeEventListener("wheel", wheel);
      place.removeEventListener("dblclick", double);
    };
  }, [view, box, drag]);
}

/** Whether an element inside a plot has a use of its own for the pointer. */
function isControl(target: EventTarget | null): boolean {
  return target instanceof Element && target.closest("button, input, select, textarea, a, [data-own-pointer]") !== null;
}
