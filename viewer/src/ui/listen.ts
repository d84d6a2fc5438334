type Events = HTMLElementEventMap & { webglcontextlost: Event; webglcontextrestored: Event };
type Listeners = { readonly [Name in keyof Events]?: (event: Events[Name]) => void };

/** Adds listeners by the names of their events. The function that it returns takes them away. */
export function listen(target: EventTarget, listeners: Listeners): () => void {
  const all = Object.entries(listeners) as [string, EventListener][];
  // Wheels of elements may be kept from scrolling the page.
  for (const [name, listener] of all) target.addEventListener(name, listener, { passive: false });
  return () => {
    for (const [name, listener] of all) target.removeEventListener(name, listener);
  };
}
