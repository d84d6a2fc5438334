// What the types of uncertainties mean. The format leaves them to the model (spec/wshard.md, section 2): these names are
// understood, and others are shown as what they are called.

import type { Subject } from "./episode";
import type { ChannelFacts } from "./facts";

export type Uncertainty =
  /** A standard deviation, or a variance. */
  | { readonly kind: "std"; readonly name: string; readonly channel: ChannelFacts; readonly isVariance: boolean }
  /** Two edges. */
  | {
      readonly kind: "band";
      readonly name: string;
      readonly lower: ChannelFacts;
      readonly upper: ChannelFacts;
      /** The share of values below the lower edge; null if unknown. */
      readonly low: number | null;
    }
  /** Numbers of another meaning, such as an entropy. */
  | { readonly kind: "line"; readonly name: string; readonly channel: ChannelFacts };

/** The uncertainties of a prediction: deviations first, then bands from the widest on, then all others. */
export function uncertaintiesOf({ uncertainties }: Subject, prediction: ChannelFacts): readonly Uncertainty[] {
  const able = uncertainties.filter(
    (one) =>
      (one.model === prediction.model || one.model === "") &&
      one.layout === "dense" &&
      one.problem === null &&
      one.dimensions === prediction.dimensions &&
      !one.hasOwnClock,
  );
  const deviations: Uncertainty[] = [];
  const bands: (Uncertainty & { kind: "band" })[] = [];
  const paired = new Set<ChannelFacts>();
  for (const channel of able) {
    const { type } = channel;
    if (/^(std|stddev|sigma|variance|var)$/.test(type)) {
      deviations.push({ kind: "std", name: type, channel, isVariance: type.startsWith("var") });
      paired.add(channel);
      continue;
    }
    const low = quantileOf(type);
    const upper = able.find((one) => {
      const high = quantileOf(one.type);
      if (low === null || high === null) return one.type !== type && one.type === upperOf(type);
      return low < 0.5 && Math.abs(low + high - 1) < 1e-9;
    });
    if (upper === undefined) continue;
    const percent = (share: number) => Number((100 * share).toFixed(3));
    const name = low === null ? `${type} – ${upper.type}` : `${percent(low)}–${percent(1 - low)} %`;
    bands.push({ kind: "band", name, lower: channel, upper, low });
    paired.add(channel).add(upper);
  }
  bands.sort((a, b) => (a.low ?? 1) - (b.low ?? 1));
  const others = able.filter((one) => !paired.has(one));
  return [
    ...deviations,
    ...bands,
    ...others.map((channel): Uncertainty => ({ kind: "line", name: channel.type, channel })),
  ];
}

/** `q05`, `p5`, `q0.05`, `quantile_0.05` and `q025`: which share of values is below. Null of other names. */
function quantileOf(type: string): number | null {
  const [, digits = ""] = /^(?:q|p|quantile|percentile)[_-]?(\d*\.?\d+)$/i.exec(type) ?? [];
  const number = Number(digits);
  // Three digits are tenths of per cent.
  const share = number < 1 ? number : number / (/^\d{3}$/.test(digits) ? 1000 : 100);
  return share > 0 && share < 1 ? share : null;
}

const opposites: Readonly<Record<string, string>> = { lower: "upper", low: "high", lo: "hi", min: "max" };

/** What the upper edge is called, if a type is that of a lower edge. */
function upperOf(type: string): string {
  return type.replace(/(?<![a-z])(lower|low|lo|min)(?![a-z])/i, (word) => opposites[word.toLowerCase()] ?? word);
}
