// An episode as panels see it: facts, reads, and which channels belong together.

import type { ChannelFacts, EpisodeFacts } from "./facts";
import type { Reads } from "./reads";

/** A channel together with everything that is about it. A panel shows one subject. */
export interface Subject {
  /** Names the panel in links: the key of its channel. */
  readonly key: string;
  readonly channel: ChannelFacts;
  readonly predictions: readonly ChannelFacts[];
  readonly uncertainties: readonly ChannelFacts[];
  readonly residuals: readonly ChannelFacts[];
}

export class EpisodeModel {
  readonly subjects: readonly Subject[];
  readonly #channels: ReadonlyMap<string, ChannelFacts>;

  constructor(
    readonly facts: EpisodeFacts,
    readonly reads: Reads,
  ) {
    this.#channels = new Map(facts.channels.map((channel) => [channel.key, channel]));
    this.subjects = subjectsOf(facts.channels);
  }

  channel(key: string): ChannelFacts | undefined {
    return this.#channels.get(key);
  }

  lane(lane: ChannelFacts["lane"]): readonly ChannelFacts[] {
    return this.facts.channels.filter((channel) => channel.lane === lane);
  }

  /** Seconds after the first step, where the clock is regular; null otherwise. */
  seconds(position: number): number | null {
    const { rate, hasTimestamps } = this.facts;
    return rate === null || hasTimestamps ? null : position / rate;
  }
}

/** A subject for each channel that is about nothing else, and for what is about a channel that the file does not have. */
export function subjectsOf(channels: readonly ChannelFacts[]): Subject[] {
  const isAbout = (one: ChannelFacts) => one.lane === "omen" || one.lane === "uncert" || one.lane === "residual";
  const heads = new Map<string, ChannelFacts>();
  for (const channel of channels) if (channel.lane === "signal") heads.set(channel.id, channel);
  for (const channel of channels)
    if (channel.lane === "action" && !heads.has(channel.id)) heads.set(channel.id, channel);
  const orphans = channels.filter((channel) => isAbout(channel) && !heads.has(channel.id));
  for (const lane of ["omen", "uncert", "residual"]) {
    for (const orphan of orphans) if (orphan.lane === lane && !heads.has(orphan.id)) heads.set(orphan.id, orphan);
  }
  const chosen = new Set(heads.values());
  return channels
    .filter((channel) => !isAbout(channel) || chosen.has(channel))
    .map((channel) => {
      const about = (lane: string) =>
        heads.get(channel.id) === channel
          ? channels.filter((one) => one.lane === lane && one.id === channel.id && one !== channel)
          : [];
      return {
        key: channel.key,
        channel,
        predictions: about("omen"),
        uncertainties: about("uncert"),
        residuals: about("residual"),
      };
    });
}
