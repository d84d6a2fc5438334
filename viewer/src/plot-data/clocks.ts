// When a sample was taken: the way from steps to the x axis of a plot, and back.

/**
 * The positions of the samples of a channel on the x axis, in steps or in seconds. They never decrease: a time that is
 * earlier than the one before it is drawn at the latest time until then.
 */
export interface Clock {
  readonly length: number;
  /** How far off a position may be, if most of them are estimates. */
  readonly off?: number;
  at(step: number): number;
  /** The first step at or after a position; `length` if there is none. */
  index(x: number): number;
}

/** Steps themselves are the x axis. `first` is the step of the first sample, for a chunk of a long episode. */
export function stepClock(length: number, first = 0): Clock {
  return {
    length,
    at: (step) => first + step,
    index: (x) => clamp(Math.ceil(x - first), length),
  };
}

/** `hz` samples a second, the first at `start` seconds. */
export function regularClock(length: number, hz: number, start = 0): Clock {
  const at = (step: number) => start + step / hz;
  return {
    length,
    at,
    index(x) {
      // The quotient may be rounded to the wrong side of a sample: its neighbours decide.
      let step = clamp(Math.ceil((x - start) * hz), length);
      while (step > 0 && at(step - 1) >= x) step--;
      while (step < length && at(step) < x) step++;
      return step;
    },
  };
}

/** A time of its own for each sample, in seconds. The array is kept. Times that are NaN are those of the sample before. */
export function secondsClock(seconds: Float64Array): Clock {
  let latest = -Infinity;
  for (let i = 0; i < seconds.length; i++) {
    const x = seconds[i] as number;
    if (x >= latest) latest = x;
    else {
      seconds[i] = latest === -Infinity ? 0 : latest;
      latest = seconds[i] as number;
    }
  }
  return {
    length: seconds.length,
    at: (step) => seconds[step] as number,
    index: (x) => lowerBound(seconds, x),
  };
}

/**
 * A clock of which only the times of some steps are known, the first and the last among them: the others are taken to
 * be even in between. `off` is how far off that would be at a known step, of its neighbours alone: the largest of all.
 */
export function sampledClock(steps: Float64Array, times: Float64Array): Clock & { readonly off: number } {
  secondsClock(times); // puts them in order
  const length = (steps.at(-1) ?? -1) + 1;
  const between = (step: number, low: number, high: number) => {
    const [from, to] = [steps[low] as number, steps[high] as number];
    const [start, end] = [times[low] as number, times[high] as number];
    return step < to ? Math.min(end, start + ((end - start) * (step - from)) / (to - from)) : end;
  };
  let off = 0;
  for (let i = 1; i + 1 < steps.length; i++) {
    off = Math.max(off, Math.abs((times[i] as number) - between(steps[i] as number, i - 1, i + 1)));
  }
  const at = (step: number) => {
    const high = Math.min(Math.max(1, lowerBound(steps, step)), steps.length - 1);
    return between(step, Math.max(0, high - 1), high);
  };
  const index = (x: number) => {
    let low = 0;
    for (let high = length; low < high; ) {
      const middle = Math.floor((low + high) / 2);
      if (at(middle) < x) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  return { length, off, at, index };
}

/** The step whose sample is nearest to a position, the earlier one of two; −1 of a clock without samples. */
export function nearest(clock: Clock, x: number): number {
  const after = clock.index(x);
  if (after === 0) return clock.length === 0 ? -1 : 0;
  if (after === clock.length) return after - 1;
  return x - clock.at(after - 1) <= clock.at(after) - x ? after - 1 : after;
}

/** The last step at or before a position, which is what a recording held at that moment; −1 if it had not begun. */
export function stepAt(clock: Clock, x: number): number {
  const after = clock.index(x);
  if (after === clock.length || clock.at(after) > x) return after - 1;
  let last = after;
  for (let high = clock.length; high - last > 1; ) {
    const middle = (last + high) >>> 1;
    if (clock.at(middle) > x) high = middle;
    else last = middle;
  }
  return last;
}

/** The usual distance between two samples: the median of at most a thousand of them. 0 of fewer than two samples. */
export function usualGap(clock: Clock): number {
  const gaps = clock.length - 1;
  if (gaps < 1) return 0;
  const count = Math.min(gaps, 1001);
  const found = new Float64Array(count);
  for (let i = 0; i < count; i++) {
    const step = Math.floor((i * gaps) / count);
    found[i] = clock.at(step + 1) - clock.at(step);
  }
  return found.sort()[count >>> 1] as number;
}

function lowerBound(sorted: Float64Array, x: number): number {
  let low = 0;
  for (let high = sorted.length; low < high; ) {
    const middle = (low + high) >>> 1;
    if ((sorted[middle] as number) < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** A step between 0 and `length`; 0 if the position is NaN. */
function clamp(step: number, length: number): number {
  return step > 0 ? Math.min(step, length) : 0;
}
