// Small pictures in the colour of the text around them.

const paths = {
  play: "M5 3.5v9l7.5-4.5z",
  pause: "M4.5 3.5h2.5v9h-2.5zM9 3.5h2.5v9h-2.5z",
  next: "M4 3.5v9l6-4.5zM11 3.5h1.5v9h-1.5z",
  previous: "M12 3.5v9l-6-4.5zM3.5 3.5h1.5v9h-1.5z",
  loop: "M4 5.5h6.5a2.5 2.5 0 0 1 0 5H8v-1.6L5.2 11.2 8 13.5V12h2.5a4 4 0 0 0 0-8H4z",
  theme: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM8 3.4v9.2a4.6 4.6 0 0 1 0-9.2z",
  link: "M2.5 2.5h8V5H9.1V3.9H3.9v5.2H5v1.4H2.5zM5.5 5.5h8v8h-8zM6.9 6.9v5.2h5.2V6.9z",
  list: "M2.5 3.5h11v1.4h-11zM2.5 7.3h11v1.4h-11zM2.5 11.1h11v1.4h-11z",
  close: "M4.4 3.4 8 7l3.6-3.6 1 1L9 8l3.6 3.6-1 1L8 9l-3.6 3.6-1-1L7 8 3.4 4.4z",
  right: "M6 3.5l-1 1L8.5 8 5 11.5l1 1L10.5 8z",
  warn: "M8 2 1.5 13.5h13zM7.3 6.5h1.4v3.6H7.3zM7.3 11h1.4v1.4H7.3z",
  help: "M5.3 6a2.7 2.7 0 1 1 4 2.4c-.5.3-.6.5-.6 1V10H7.3v-.7c0-1 .4-1.6 1.3-2.1A1.3 1.3 0 1 0 6.7 6zM7.2 11.2h1.6v1.6H7.2z",
  compare: "M2.5 3h5v1.4h-3.6v7.2h3.6V13h-5zM8.5 3h5v10h-5zM9.9 4.4v7.2h2.2V4.4z",
  table: "M2.5 3h11v10h-11zM4 6.2v1.6h3.3V6.2zM8.7 6.2v1.6H12V6.2zM4 9.2v2.3h3.3V9.2zM8.7 9.2v2.3H12V9.2z",
  flag: "M3.5 2h1.4v.8h7.6l-1.8 3 1.8 3H4.9V14H3.5z",
} as const;

export type IconName = keyof typeof paths;

export function Icon({ name }: { readonly name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">
      <path fill="currentColor" fill-rule="evenodd" d={paths[name]} />
    </svg>
  );
}
