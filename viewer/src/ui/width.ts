import { type ReadonlySignal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

/** The width inside of an element, in whole pixels; 0 until it is known. */
export function useWidth(place: { readonly current: Element | null }): ReadonlySignal<number> {
  const width = useSignal(0);
  useEffect(() => {
    if (place.current === null) return;
    const observer = new ResizeObserver(([entry]) => {
      width.value = Math.floor(entry?.contentRect.width ?? 0);
    });
    observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  return width;
}
