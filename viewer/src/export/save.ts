// Gives the user a file.

export function saveFile(name: string, parts: readonly (string | Blob)[], type: string): void {
  const address = URL.createObjectURL(new Blob([...parts], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = fileName(name);
  link.click();
  // The browser has started to read it by then.
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** A name without what paths and systems do not allow. */
export function fileName(name: string): string {
  const safe = name
    .replace(/[\p{Cc}\p{Cf}/\\:*?"<>|]+/gu, "_")
    .replace(/^[.\s]+/, "")
    .slice(0, 120);
  return safe === "" ? "shard" : safe;
}
