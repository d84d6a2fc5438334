// What stands on the stage without anybody's choice. Roles and shapes decide, never names.

import type { EpisodeModel, Subject } from "../model/episode";
import { panels } from "../panels";
import type { Panel } from "../panels/panel";
import type { PanelChoice } from "../state/link";

/** Cameras that are shown without being asked for, and other channels. */
const mostMoments = 4;
const mostOthers = 24;

/** Panels that can show a subject, the best first. */
export function fittingPanels(subject: Subject, episode: EpisodeModel): readonly Panel[] {
  return panels
    .map((panel) => ({ panel, fit: panel.fits(subject, episode) }))
    .filter(({ fit }) => fit > 0)
    .sort((a, b) => b.fit - a.fit)
    .map(({ panel }) => panel);
}

/** The panel of the choice, or the one that fits best. */
export function panelOf(subject: Subject, episode: EpisodeModel, choice?: PanelChoice): Panel | undefined {
  const fitting = fittingPanels(subject, episode);
  return fitting.find(({ name }) => name === choice?.as) ?? fitting[0];
}

/** Cameras, then reward and ends, then observations, actions, and labels; what was predicted comes first of each. */
export function usualSubjects(episode: EpisodeModel): readonly string[] {
  const order = ["reward", "terminated", "truncated", "signal", "omen", "action", "label"];
  const hasReward = episode.lane("reward").length > 0;
  const moments: string[] = [];
  const others: { key: string; rank: number }[] = [];
  for (const subject of episode.subjects) {
    const { lane } = subject.channel;
    // The panel of the reward shows the ends, too.
    if (hasReward && (lane === "terminated" || lane === "truncated")) continue;
    const panel = panelOf(subject, episode);
    const rank = order.indexOf(lane);
    if (panel === undefined || rank < 0) continue;
    if (panel.isOverTime) others.push({ key: subject.key, rank: subject.predictions.length > 0 ? rank - 0.5 : rank });
    else if (moments.length < mostMoments) moments.push(subject.key);
  }
  others.sort((a, b) => a.rank - b.rank);
  return [...moments, ...others.slice(0, mostOthers).map(({ key }) => key)];
}
