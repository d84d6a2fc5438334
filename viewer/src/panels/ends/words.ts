export const words = {
  title: "Reward and ends",
  reward: "reward",
  return: "return",
  returnTitle: "cumulative",
  terminated: "terminated",
  truncated: "truncated",
  bars: "Bars",
  line: "Line",
  shape: "Reward as",
  total: "in all",
  noReward: "This episode has no reward.",
  reading: (share: number) => `reading, ${Math.floor(share * 100)} %`,
  notNumbers: (count: number) => `${count.toLocaleString("en")} rewards are not finite and count as 0`,
  summary: (from: number, to: number, total: string, ends: string) =>
    `Reward of steps ${from} to ${to}. Return of the episode: ${total}. ${ends}`,
  endsAt: (name: string, step: number) => `${name} at step ${step}.`,
  noEnd: "No end in view.",
} as const;
