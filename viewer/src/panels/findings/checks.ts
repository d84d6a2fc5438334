// What can be wrong with an episode: the doctor's report as the server hands it over, and the checks that a browser can
// afford itself. The codes are the doctor's.

import type { JsonObject } from "@shard-format/core";
import type { Columns } from "../../model/reads";
import { MINUS, MISSING, PLUS } from "../../plot-data/extent";
import { value as numberText } from "../../ui/format";
import { words } from "./words";

export type Severity = "error" | "warning" | "note";

export interface Finding {
  readonly code: string;
  readonly severity: Severity;
  readonly message: string;
  /** The block that it is about; null: the whole episode. */
  readonly block: string | null;
  /** The first step where it is so, and how many steps in a row are from there. Null if it is about all. */
  readonly step: number | null;
  readonly run: number;
  readonly count: number | null;
  readonly advice: string;
  readonly isOwn: boolean;
}

const severities: readonly Severity[] = ["error", "warning", "note"];

/** Findings in what `wshard doctor --json` wrote: of one file, or of several. Whatever else it is gives none. */
export function parseDoctor(report: JsonObject | null): Finding[] {
  if (report === null) return [];
  const files = Array.isArray(report["files"]) ? report["files"] : [report];
  const found: Finding[] = [];
  for (const file of files) {
    const list = isObject(file) ? file["findings"] : undefined;
    if (!Array.isArray(list)) continue;
    for (const one of list) {
      if (!isObject(one)) continue;
      const severity = severities.find((name) => name === one["severity"]) ?? "warning";
      found.push({
        code: text(one["code"]),
        severity,
        message: text(one["message"]),
        block: text(one["block"] ?? one["entry"]) || null,
        step: whole(one["step"]),
        run: 1,
        count: whole(one["count"]),
        advice: text(one["advice"]),
        isOwn: false,
      });
    }
  }
  return found;
}

/** The doctor's findings and our own, errors first. Where the doctor says the same of a block, only the doctor speaks. */
export function joinFindings(doctor: readonly Finding[], own: readonly Finding[]): Finding[] {
  const known = new Set(doctor.map(({ code, block }) => `${same(code)} ${block}`));
  const all = [...doctor, ...own.filter(({ code, block }) => !known.has(`${same(code)} ${block}`))];
  const order = (one: Finding) => severities.indexOf(one.severity);
  return all.sort((a, b) => order(a) - order(b) || (a.step ?? Infinity) - (b.step ?? Infinity) || 0);
}

/** The doctor calls a constant of 0 dead. */
function same(code: string): string {
  return code === "dead_dimension" ? "constant_dimension" : code;
}

/** Looks at the values of one channel, window by window, in order. */
export class ChannelCheck {
  readonly #min: Float64Array;
  readonly #max: Float64Array;
  #steps = 0;
  #nan = 0;
  #infinite = 0;
  #first = -1;
  #run = 0;
  #isRunning = false;

  constructor(
    readonly block: string,
    readonly dimensions: number,
    /** Where each entry is on the axis; null: at its number. */
    readonly positions: Float64Array | null = null,
  ) {
    this.#min = new Float64Array(dimensions).fill(Infinity);
    this.#max = new Float64Array(dimensions).fill(-Infinity);
  }

  add(values: ArrayLike<number | bigint>): void {
    const { dimensions } = this;
    const min = this.#min;
    const max = this.#max;
    const steps = dimensions === 0 ? 0 : values.length / dimensions;
    for (let step = 0, at = 0; step < steps; step++) {
      let isWhole = true;
      for (let dimension = 0; dimension < dimensions; dimension++, at++) {
        const value = Number(values[at]);
        if (Number.isFinite(value)) {
          if (value < (min[dimension] as number)) min[dimension] = value;
          if (value > (max[dimension] as number)) max[dimension] = value;
        } else {
          if (Number.isNaN(value)) this.#nan++;
          else this.#infinite++;
          isWhole = false;
          // A dimension with a hole is not constant.
          min[dimension] = -Infinity;
        }
      }
      if (isWhole) {
        this.#isRunning = false;
      } else if (this.#first < 0) {
        this.#first = this.#steps + step;
        this.#run = 1;
        this.#isRunning = true;
      } else if (this.#isRunning) {
        this.#run++;
      }
    }
    this.#steps += steps;
  }

  /** What was found. Dimensions count as constant only in channels of at least 16 steps, as with the doctor. */
  findings(): Finding[] {
    const found: Finding[] = [];
    const base = { block: this.block, isOwn: true } as const;
    if (this.#first >= 0) {
      const at = (entry: number) => this.positions?.[entry] ?? entry;
      found.push({
        ...base,
        code: "not_finite",
        severity: "warning",
        message: words.notFinite(this.#nan, this.#infinite),
        step: at(this.#first),
        run: Math.max(1, at(this.#first + this.#run - 1) - at(this.#first) + 1),
        count: this.#nan + this.#infinite,
        advice: "",
      });
    }
    const constant: number[] = [];
    for (let dimension = 0; dimension < this.dimensions; dimension++) {
      if (this.#min[dimension] === this.#max[dimension]) constant.push(dimension);
    }
    if (this.#steps >= 16 && constant.length > 0) {
      const value = numberText(this.#min[constant[0] as number] as number);
      found.push({
        ...base,
        code: "constant_dimension",
        severity: "note",
        message: words.constant(constant, value, this.dimensions),
        step: null,
        run: 1,
        count: constant.length,
        advice: words.constantAdvice,
      });
    }
    return found;
  }
}

/** What columns tell, which do not have each value. */
export function checkColumns(block: string, { lines }: Columns): Finding[] {
  const places = lines.flatMap(({ flags, x }) => {
    const at = flags.findIndex((flag) => (flag & (MISSING | PLUS | MINUS)) !== 0);
    const [first = 0, second = first + 1] = x;
    return at < 0
      ? []
      : [{ step: Math.max(0, Math.ceil((x[at] as number) - (second - first) / 2)), run: second - first }];
  });
  return places
    .sort((a, b) => a.step - b.step)
    .slice(0, 1)
    .map(({ step, run }) => ({
      ...{ code: "not_finite", severity: "warning", message: words.someNotFinite, block },
      ...{ step, run: Math.max(1, Math.ceil(run)), count: null, advice: "", isOwn: true },
    }));
}

/** Where the times of steps run backwards. */
export function checkTimes(times: BigInt64Array, first = 0): Finding[] {
  let count = 0;
  let where = -1;
  for (let step = 1; step < times.length; step++) {
    if ((times[step] as bigint) >= (times[step - 1] as bigint)) continue;
    count++;
    if (where < 0) where = step;
  }
  if (count === 0) return [];
  return [
    {
      code: "time_backwards",
      severity: "warning",
      message: words.backwards(count),
      block: "time/timestamps_ns",
      step: first + where,
      run: 1,
      count,
      advice: words.backwardsAdvice,
      isOwn: true,
    },
  ];
}

/** The range to show for a finding: itself, with as much around it that it can be told from its surroundings. */
export function rangeAround(step: number, run: number, length: number): { start: number; end: number } {
  const around = Math.max(10, run, Math.min(200, length / 20));
  return { start: step - around, end: step + run + around };
}

function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function whole(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}
