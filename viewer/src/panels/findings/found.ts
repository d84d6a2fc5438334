// The findings of an open episode: asked for once, then shared by the panel, the inspector and the time line.

import { type ReadonlySignal, type Signal, signal } from "@preact/signals";
import type { EpisodeModel } from "../../model/episode";
import type { ChannelFacts } from "../../model/facts";
import type { Columns, Reads } from "../../model/reads";
import { ChannelCheck, checkColumns, checkTimes, type Finding, joinFindings, parseDoctor } from "./checks";
import { words } from "./words";

export interface Found {
  readonly findings: readonly Finding[];
  /** Channels that were checked here, are being checked, and wait until somebody asks. */
  readonly checked: number;
  readonly planned: number;
  readonly waiting: readonly ChannelFacts[];
  readonly hasDoctor: boolean;
}

/** What is checked without a question, for one channel and in all, as stored. */
const mostChannel = 4 << 20;
const mostTogether = 16 << 20;
/** Values that are read at once. */
const piece = 1 << 18;
const mostTimes = 1 << 22;
/** What is checked before somebody asks, for the time line: of one channel and in all, as stored, and times. */
const smallChannel = 256 << 10;
const smallTogether = 1 << 20;
const smallTimes = 1 << 16;
/** Milliseconds that plots and pictures have for themselves. */
const patience = 1500;

export class FoundSoFar {
  readonly #state: Signal<Found>;
  readonly #own: Finding[];
  readonly #planned: readonly ChannelFacts[];
  /** Those that were read for the checks, or are being read. */
  readonly #read = new Set<ChannelFacts>();
  /** What can be told of other channels by what plots have read of them. */
  readonly #seen = new Map<ChannelFacts, Finding>();
  #isStarted = false;
  #hasTimes = false;
  #doctor: readonly Finding[] = [];

  constructor(readonly episode: EpisodeModel) {
    const { now, later } = plan(episode.facts.channels, mostChannel, mostTogether);
    this.#planned = now;
    this.#own = problems(episode);
    this.#state = signal({ findings: this.#own, checked: 0, planned: now.length, waiting: later, hasDoctor: false });
  }

  get state(): ReadonlySignal<Found> {
    return this.#state;
  }

  /** Asks the doctor and starts our own checks, which read channels: somebody wants to see them. */
  start(): void {
    if (this.#isStarted) return;
    this.#isStarted = true;
    this.episode.reads.findings().then(
      (report) => {
        this.#doctor = parseDoctor(report);
        this.#tell({ hasDoctor: report !== null });
      },
      () => undefined, // without the server's report, our own checks are there
    );
    void this.#checkTimes(mostTimes);
    void this.#check(this.#planned);
  }

  /** What a plot has read tells something, too, and costs nothing: where there are values that are no numbers. */
  see(channel: ChannelFacts, columns: Columns): void {
    if (this.#read.has(channel)) return;
    const [found] = checkColumns(channel.key, columns);
    // Of more than one place, the first counts.
    const before = this.#seen.get(channel)?.step ?? Infinity;
    if (found === undefined || (found.step ?? 0) >= before) return;
    this.#seen.set(channel, found);
    this.#tell({});
  }

  /** Checks what is small, once the plots had their time. */
  startSmall(): () => void {
    const timer = setTimeout(() => {
      if (this.episode.facts.length <= smallTimes) void this.#checkTimes(smallTimes);
      void this.#check(plan(this.#planned, smallChannel, smallTogether).now);
    }, patience);
    return () => clearTimeout(timer);
  }

  async #checkTimes(most: number): Promise<void> {
    const { reads, facts } = this.episode;
    if (!facts.hasTimestamps || this.#hasTimes) return;
    this.#hasTimes = true;
    // Panels say it where times cannot be read.
    const times = await reads.times(0, Math.min(facts.length, most)).catch(() => null);
    this.#own.push(...(times === null ? [] : checkTimes(times)));
    this.#tell({});
  }

  /** Checks the channels that are too large to be read without a question. */
  checkAll(): void {
    const { waiting, planned } = this.#state.peek();
    this.#tell({ waiting: [], planned: planned + waiting.length });
    void this.#check(waiting);
  }

  async #check(channels: readonly ChannelFacts[]): Promise<void> {
    for (const channel of channels) {
      if (this.#read.has(channel)) continue;
      this.#read.add(channel);
      this.#own.push(...(await checkChannel(this.episode.reads, channel)));
      this.#seen.delete(channel);
      this.#tell({ checked: this.#state.peek().checked + 1 });
    }
  }

  #tell(change: Partial<Found>): void {
    const findings = joinFindings(this.#doctor, [...this.#own, ...this.#seen.values()]);
    this.#state.value = { ...this.#state.peek(), ...change, findings };
  }
}

const known = new WeakMap<Reads, FoundSoFar>();

/** The findings of an episode. A recording that grows keeps those of its beginning. */
export function findingsOf(episode: EpisodeModel): FoundSoFar {
  let found = known.get(episode.reads);
  if (found === undefined) {
    found = new FoundSoFar(episode);
    known.set(episode.reads, found);
  }
  return found;
}

/** Parts that cannot be read at all. */
function problems({ facts }: EpisodeModel): Finding[] {
  return facts.channels.flatMap(({ problem, key }): Finding[] =>
    problem === null
      ? []
      : [{ ...blank, code: "unreadable", severity: "error", message: words.notRead(problem), block: key }],
  );
}

const blank = { step: null, run: 1, count: null, advice: "", isOwn: true } as const;

/** Only numbers that a plot would show; small ones first. */
function plan(
  channels: readonly ChannelFacts[],
  mostEach: number,
  mostTogether: number,
): { now: ChannelFacts[]; later: ChannelFacts[] } {
  const lanes = ["signal", "action", "reward", "omen", "uncert"];
  const able = channels
    .filter(
      (one) => one.layout === "dense" && one.problem === null && lanes.includes(one.lane) && one.dimensions <= 256,
    )
    .sort((a, b) => a.storedBytes - b.storedBytes);
  let together = 0;
  const now = able.filter((one) => {
    if (one.storedBytes > mostEach || together + one.storedBytes > mostTogether) return false;
    together += one.storedBytes;
    return true;
  });
  return { now, later: able.filter((one) => !now.includes(one)) };
}

async function checkChannel(reads: Reads, channel: ChannelFacts): Promise<Finding[]> {
  const { key, dimensions, length } = channel;
  try {
    const positions = channel.hasOwnClock ? await reads.positions(key, 0, length) : null;
    const check = new ChannelCheck(key, dimensions, positions);
    const steps = Math.max(1, Math.floor(piece / Math.max(1, dimensions)));
    for (let start = 0; start < length; start += steps) {
      const window = await reads.window(key, start, Math.min(length, start + steps));
      if (window.kind === "dense") check.add(window.values);
    }
    return check.findings();
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    return [{ ...blank, code: "unreadable", severity: "error", message: words.notRead(message), block: key }];
  }
}
