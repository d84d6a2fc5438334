// What all channels have in common (spec/wshard.md, sections 4 and 5).

import { toTypedArray } from "../core/dtypes.js";
import { ShardError } from "../core/errors.js";
import { type DType, dtypeSizes, type ErrorCode } from "../core/registry.js";
import { type Block, checkWindow, type FindBlock } from "./blocks.js";
import { regularTimes } from "./clocks.js";
import type { Row } from "./metadata.js";

/** What describes a channel. */
export interface ChannelFacts {
  readonly dtype: DType;
  readonly shape: readonly number[];
  /** Its row of `meta/channels`; null if the file does not describe it. */
  readonly row: Row | null;
}

/** What every channel has. */
export abstract class BaseChannel {
  abstract readonly layout: string;
  /** The name of its entry. */
  readonly block: string;
  readonly dtype: DType;
  /** The shape of one step, or of one item of a ragged channel. */
  readonly shape: readonly number[];
  /** Its row of `meta/channels`; null if the file does not describe it. */
  readonly row: Row | null;

  /**
   * @param source its bytes
   * @param steps the number of steps of the episode
   * @param find gives the blocks of clocks, offsets and frames
   * @param inferred whether its dtype and shape are a guess (section 10)
   */
  constructor(
    readonly source: Block,
    facts: ChannelFacts,
    protected readonly steps: number,
    protected readonly find: FindBlock,
    readonly inferred = false,
  ) {
    this.block = source.name;
    this.dtype = facts.dtype;
    this.shape = facts.shape;
    this.row = facts.row;
  }

  /** Entries along the first axis. */
  get length(): number {
    return Number(this.row?.length ?? this.steps);
  }

  /** TypedArray of one step or item. */
  get valuesPerStep(): number {
    return this.shape.reduce((product, size) => product * size, 1);
  }

  /** Bytes of one step or item. */
  get stepBytes(): number {
    return this.valuesPerStep * dtypeSizes[this.dtype];
  }

  /** H, if each step holds values about the next H steps. */
  get horizon(): number | null {
    return this.row?.horizon ?? null;
  }

  /** The time of the first entry of a regular clock. */
  get startNs(): bigint | null {
    return this.row?.startNs ?? null;
  }

  get samplingRateHz(): number | null {
    return this.row?.samplingRateHz ?? null;
  }

  /** Whether it advances independently of the steps. */
  get hasOwnClock(): boolean {
    return this.row !== null && (this.row.timeBlock !== null || this.row.startNs !== null);
  }

  /** The block of its own timestamps (W-TIM-3); null if it has none. */
  clockBlock(): Block | null {
    const name = this.row?.timeBlock ?? null;
    if (name === null) return null;
    const clock = this.find(name);
    if (clock === null) throw this.error("bad_profile", "W-TIM-3", "the clock of the channel is missing", name);
    if (clock.size !== 8 * this.length) {
      throw this.error(
        "size_mismatch",
        "W-TIM-3",
        "the clock has another length than the channel",
        `${clock.size} bytes`,
      );
    }
    return clock;
  }

  /** The times of its own clock, of all entries or of a window; null if it follows the steps. */
  async timestampsNs(start = 0, end = this.length): Promise<BigInt64Array | null> {
    checkWindow(start, end, this.length, this.block);
    const clock = this.clockBlock();
    if (clock !== null) return toTypedArray("i64", await clock.read(8 * start, 8 * end));
    const { startNs, samplingRateHz } = this;
    return startNs === null || samplingRateHz === null
      ? null
      : regularTimes(startNs, samplingRateHz, end - start, start);
  }

  protected error(code: ErrorCode, rule: string, problem: string, found?: string, expected?: string): ShardError {
    return new ShardError(code, problem, { rule, path: this.source.path, entry: this.block, expected, found });
  }
}
