// The smallest and the largest value of some samples, and what cannot be drawn as a number.

/** What a bucket or a column holds beside its finite values. */
export const MISSING = 1; // at least one NaN
export const PLUS = 2; // at least one +∞
export const MINUS = 4; // at least one −∞
export const UNREAD = 8; // samples that have not arrived yet

/** The finite extremes of samples, NaN if there is no finite one, and flags for the rest. */
export class Extent {
  min = Number.NaN;
  max = Number.NaN;
  flags = 0;

  reset(): void {
    this.min = Number.NaN;
    this.max = Number.NaN;
    this.flags = 0;
  }

  add(value: number): void {
    if (Number.isFinite(value)) this.merge(value, value, 0);
    else this.flags |= Number.isNaN(value) ? MISSING : value > 0 ? PLUS : MINUS;
  }

  /** Add the extremes of other samples. A comparison with NaN is false, which keeps buckets without values out. */
  merge(min: number, max: number, flags: number): void {
    if (!(this.min <= min) && !Number.isNaN(min)) this.min = min;
    if (!(this.max >= max) && !Number.isNaN(max)) this.max = max;
    this.flags |= flags;
  }
}
