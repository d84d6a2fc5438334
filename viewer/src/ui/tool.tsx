import { Icon, type IconName } from "./icons";

interface ToolProps {
  readonly icon: IconName;
  readonly label: string;
  /** What the pointer shows. */
  readonly hint?: string;
  readonly pressed?: boolean;
  readonly expanded?: boolean;
  /** The id of what it shows. */
  readonly controls?: string | undefined;
  /** Further names for the style. */
  readonly kind?: string;
  readonly use: () => void;
}

/** A button with a picture. */
export function Tool({ icon, label, hint = label, pressed, expanded, controls, kind = "", use }: ToolProps) {
  return (
    <button
      type="button"
      class={`tool ${kind}`}
      aria-label={label}
      title={hint}
      aria-pressed={pressed}
      aria-expanded={expanded}
      aria-controls={controls}
      onClick={use}
    >
      <Icon name={icon} />
    </button>
  );
}
