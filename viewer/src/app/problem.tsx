// What went wrong, and what to do about it.

import type { ReadError } from "../model/library";
import { shown } from "../ui/escape";
import { words } from "../words";

type Hint = keyof typeof words.problem.hints;

/** What most likely helps; null if the words of the reader must do. */
export function hintFor(error: Error): Hint | null {
  const { code = "" } = error as Partial<ReadError>;
  const text = error.message;
  if (/wshard view refuses .*found 401\b/.test(text)) return "token";
  if (/wshard view does not answer/.test(text)) return "ended";
  if (/found (401|403|407)\b/.test(text)) return "auth";
  if (/found (404|410)\b/.test(text)) return "missing";
  if (/ignores ranges/.test(text)) return "ranges";
  if (/no Content-Range/.test(text)) return "expose";
  if (/Failed to fetch|NetworkError|Load failed/.test(text)) return "network";
  if (/changed while it was read/.test(text)) return "changed";
  if (/the reader (stopped|did not answer)/.test(text)) return "stopped";
  if (/a catalogue only names/.test(text)) return "catalogue";
  if (code === "bad_magic") return "notShard";
  if (code === "truncated") return "truncated";
  if (code === "missing_file") return "chunks";
  if (/W-ROL-/.test(text)) return "container";
  return code === "" || code === "io_error" || code === "invalid_argument" ? null : "damaged";
}

export function ProblemBox({ error, title }: { readonly error: Error; readonly title?: string }) {
  const hint = hintFor(error);
  return (
    <div class="problem" role="alert">
      <h2>{title ?? words.problem.heading}</h2>
      {hint !== null && <p>{words.problem.hints[hint]}</p>}
      <details open={hint === null}>
        <summary>{words.problem.details}</summary>
        <p class="mono">{shown(error.message)}</p>
      </details>
    </div>
  );
}
