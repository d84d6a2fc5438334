import type { ErrorCode } from "./registry.js";

/** Where an error is, and what was expected and found there. */
export interface ErrorDetails {
  rule?: string | undefined;
  path?: string | undefined;
  entry?: string | undefined;
  expected?: string | number | bigint | undefined;
  found?: string | number | bigint | undefined;
  cause?: unknown;
}

/** Says what is wrong, where, and which rule of the specification it breaks. */
export class ShardError extends Error {
  override readonly name = "ShardError";
  // `declare`, here and in other classes of the core: the constructor sets it, and a bundle names it once.
  /** The same in every language. */
  declare readonly code: ErrorCode;
  /** One sentence without a full stop. */
  declare readonly problem: string;
  /** The rule that is broken, such as S-HDR-2. */
  declare readonly rule: string | undefined;
  /** The file: a path or a URL. */
  declare readonly path: string | undefined;
  declare readonly entry: string | undefined;
  declare readonly expected: string | undefined;
  declare readonly found: string | undefined;

  constructor(code: ErrorCode, problem: string, details: ErrorDetails = {}) {
    super(message(code, problem, details), details);
    this.code = code;
    this.problem = problem;
    this.rule = details.rule;
    this.path = details.path;
    this.entry = details.entry;
    this.expected = details.expected?.toString();
    this.found = details.found?.toString();
  }
}

function message(code: ErrorCode, problem: string, details: ErrorDetails): string {
  const { rule, path, entry, expected, found, cause } = details;
  let text = path ? `${path}: ` : "";
  if (entry !== undefined) text += `entry ${JSON.stringify(shortened(entry))}: `;
  text += problem;
  const facts = [];
  if (expected !== undefined) facts.push(`expected ${expected}`);
  if (found !== undefined) facts.push(`found ${found}`);
  if (facts.length > 0) text += ` (${facts.join(", ")})`;
  if (cause instanceof Error) text += `: ${cause.message}`;
  return `${text} [${rule ? `${rule}, ` : ""}${code}]`;
}

/** The start of a text that may be very long. */
export function shortened(text: string): string {
  return text.length > 80 ? `${text.slice(0, 80)}…` : text;
}

/** An error about a broken rule. */
export function broken(code: ErrorCode, rule: string, problem: string, details: ErrorDetails = {}): ShardError {
  return new ShardError(code, problem, { ...details, rule });
}

/** An error about an argument of the caller. */
export function invalid(problem: string, details: ErrorDetails = {}): ShardError {
  return new ShardError("invalid_argument", problem, details);
}

/** The same error with the file and the entry, if it does not name them. Other errors stay as they are. */
export function located(error: unknown, path: string | undefined, entry?: string): unknown {
  if (!(error instanceof ShardError)) return error;
  if ((error.path || !path) && (error.entry !== undefined || entry === undefined)) return error;
  const { code, problem, cause } = error;
  return new ShardError(code, problem, { ...error, cause, path: error.path || path, entry: error.entry ?? entry });
}
