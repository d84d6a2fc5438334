import { useRef } from "preact/hooks";
import type { Range } from "../model/reads";
import type { View } from "../state/view";

/** The range that metrics are about. It stays while the view moves. */
export function useSettledRange(view: View): { readonly range: Range; readonly isSelection: boolean } {
  const selection = view.selection.value;
  const visible = view.range.value;
  const settled = useRef(visible);
  if (!view.isMoving.value) settled.current = visible;
  return { range: selection ?? settled.current, isSelection: selection !== null };
}
