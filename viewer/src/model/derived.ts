// Lines that are computed from two channels, sample by sample: an error, or an edge of a band. They are read by a key as
// channels are, because the extremes of a difference do not follow from the extremes of its parts.

/** a + times · b; with `isVariance`, b is a variance and its square root counts. */
export interface Derived {
  readonly a: string;
  readonly b: string;
  readonly times: number;
  readonly isVariance: boolean;
}

const mark = "derived ";

export function derivedKey(derived: Derived): string {
  return mark + JSON.stringify([derived.a, derived.b, derived.times, derived.isVariance]);
}

export function parseDerived(key: string): Derived | null {
  if (!key.startsWith(mark)) return null;
  const [a, b, times, isVariance] = JSON.parse(key.slice(mark.length)) as [string, string, number, boolean];
  return { a, b, times, isVariance };
}

/** Prediction minus truth. */
export function errorKey(prediction: string, truth: string): string {
  return derivedKey({ a: prediction, b: truth, times: -1, isVariance: false });
}
