// How positions of one episode lie on the axis of another.

import type { Clock } from "../plot-data/clocks";

/** Between positions of the second episode and the axis of the first, both ways. They never decrease. */
export interface Alignment {
  toA(position: number): number;
  toB(position: number): number;
}

/** The second episode, moved by some steps. */
export function byStep(shift: number): Alignment {
  return { toA: (position) => position + shift, toB: (position) => position - shift };
}

/** Seconds of the positions of an episode after its beginning. */
export interface Times {
  seconds(position: number): number;
  position(seconds: number): number;
}

export function regularTimes(rate: number): Times {
  return { seconds: (position) => position / rate, position: (seconds) => seconds * rate };
}

/** Stored times of steps, in nanoseconds; straight between two steps, and beyond the ends as between the last two. */
export function storedTimes(times: BigInt64Array): Times {
  const origin = times[0] ?? 0n;
  const seconds = Float64Array.from(times, (time) => Number(time - origin) / 1e9);
  // Where the clock runs backwards, the latest time until then counts.
  for (let step = 1; step < seconds.length; step++) {
    seconds[step] = Math.max(seconds[step] as number, seconds[step - 1] as number);
  }
  const last = seconds.length - 1;
  const at = (step: number) => seconds[step] as number;
  const segment = (step: number) => Math.max(0, Math.min(last - 1, step));
  return {
    seconds(position) {
      if (last < 1) return position;
      const step = segment(Math.floor(position));
      return at(step) + (position - step) * (at(step + 1) - at(step));
    },
    position(time) {
      if (last < 1) return time;
      let [low, high] = [0, last];
      while (high - low > 1) {
        const middle = (low + high) >>> 1;
        if (at(middle) <= time) low = middle;
        else high = middle;
      }
      const step = segment(low);
      const gap = at(step + 1) - at(step);
      return gap > 0 ? step + (time - at(step)) / gap : step;
    },
  };
}

/** Both begin together and go on by their own clocks; then the second one is moved by some steps of the first. */
export function byTime(a: Times, b: Times, shift: number): Alignment {
  return {
    toA: (position) => a.position(b.seconds(position)) + shift,
    toB: (position) => b.position(a.seconds(position - shift)),
  };
}

/** The steps of the second episode as a clock on the axis of the first. */
export function clockOn(alignment: Alignment, length: number): Clock {
  return {
    length,
    at: (step) => alignment.toA(step),
    index(x) {
      let step = Math.max(0, Math.min(length, Math.ceil(alignment.toB(x))));
      // What was rounded to the wrong side of a step is put right by its neighbours.
      while (step > 0 && alignment.toA(step - 1) >= x) step--;
      while (step < length && alignment.toA(step) < x) step++;
      return step;
    },
  };
}
