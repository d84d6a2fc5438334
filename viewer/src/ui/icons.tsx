// Small pictures in the colour of the text around them.

const paths = {
  play: "M5 3.5v9l7.5-4.5z",
  pause: "M4.5 3.5h2.5v9h-2.5zM9 3.5h2.5v9h-2.5z",
  next: "M4 3.5v9l6-4.5zM11 3.5h1.5v9h-1.5z",
  previous: "M12 3.5v9l-6-4.5zM3.5 3.5h1.5v9h-1.5z",
  loop: "M4 5.5h6.5a2.5 2.5 0 0 1 0 5H8v-1.6L5.2 11.2 8 13.5V12h2.5a4 4 0 0 0 0-8H4z",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM7.3 1h1.4v2.2H7.3zM7.3 12.8h1.4V15H7.3zM1 7.3h2.2v1.4H1zM12.8 7.3H15v1.4h-2.2zM2.6 3.6l1-1 1.5 1.5-1 1zM10.9 11.9l1-1 1.5 1.5-1 1zM3.6 13.4l-1-1 1.5-1.5 1 1zM11.9 5.1l-1-1 1.5-1.5 1 1z",
  moon: "M12.9 10.2A5.6 5.6 0 0 1 5.8 3.1a5.6 5.6 0 1 0 7.1 7.1z",
  link: "M6.6 9.4a2.6 2.6 0 0 0 3.7 0l2.2-2.2a2.6 2.6 0 0 0-3.7-3.7L7.6 4.7l1 1 1.2-1.2a1.2 1.2 0 0 1 1.7 1.7L9.3 8.4a1.2 1.2 0 0 1-1.7 0zM9.4 6.6a2.6 2.6 0 0 0-3.7 0L3.5 8.8a2.6 2.6 0 0 0 3.7 3.7l1.2-1.2-1-1-1.2 1.2a1.2 1.2 0 0 1-1.7-1.7l2.2-2.2a1.2 1.2 0 0 1 1.7 0z",
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
