import type { Signal } from "@preact/signals";

/** The field that the key / goes to. */
export function FilterField({ label, text, filter }: { label: string; text: string; filter: Signal<string> }) {
  return (
    <input
      type="search"
      class="filter"
      data-filter
      aria-label={label}
      placeholder={text}
      value={filter.value}
      onInput={(event) => {
        filter.value = event.currentTarget.value;
      }}
    />
  );
}
