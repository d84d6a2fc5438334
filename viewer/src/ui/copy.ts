/** Copies a text. On pages of plain http and in cells of a notebook, browsers have no clipboard but this event. */
export async function copyText(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const fill = (event: ClipboardEvent) => {
      event.clipboardData?.setData("text/plain", text);
      event.preventDefault();
    };
    document.addEventListener("copy", fill, { once: true });
    document.execCommand("copy");
    document.removeEventListener("copy", fill);
  }
}
