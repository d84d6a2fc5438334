// The cumulative return of an episode, kept at the ends of blocks so that a long one needs little memory.

export class Returns {
  /** The sum of all rewards before each block, and after the last one. */
  readonly sums: Float64Array;
  /** Steps in a block. */
  readonly block: number;
  /** How many steps were added. */
  length = 0;
  /** Rewards that are no finite number. They count as 0. */
  notFinite = 0;
  #sum = 0;

  constructor(
    readonly steps: number,
    most = 65_536,
  ) {
    this.block = Math.max(1, Math.ceil(steps / most));
    this.sums = new Float64Array(Math.ceil(steps / this.block) + 1);
  }

  get total(): number {
    return this.#sum;
  }

  /** Adds the rewards of the next steps. */
  add(rewards: ArrayLike<number | bigint>): void {
    for (let i = 0; i < rewards.length && this.length < this.steps; i++) {
      const reward = Number(rewards[i]);
      if (Number.isFinite(reward)) this.#sum += reward;
      else this.notFinite++;
      this.length++;
      if (this.length % this.block === 0 || this.length === this.steps) {
        this.sums[Math.ceil(this.length / this.block)] = this.#sum;
      }
    }
  }

  /** The return before the block that a step is in, and the first step of the block. */
  before(step: number): { sum: number; from: number } {
    const number = Math.max(0, Math.min(Math.floor(step / this.block), this.sums.length - 1));
    return { sum: this.sums[number] as number, from: number * this.block };
  }

  /** The return after each of the steps from `from` on, from their rewards: exact between two blocks. */
  exact(rewards: ArrayLike<number | bigint>, from: number): Float64Array {
    const returns = new Float64Array(rewards.length);
    let { sum } = this.before(from);
    for (let i = 0; i < returns.length; i++) {
      const reward = Number(rewards[i]);
      if (Number.isFinite(reward)) sum += reward;
      returns[i] = sum;
    }
    return returns;
  }
}

/** Positions where a flag is set: of steps one by one, or of the columns of a view. */
export function marks(x: ArrayLike<number>, max: ArrayLike<number | bigint>): number[] {
  const found: number[] = [];
  for (let i = 0; i < x.length; i++) if (Number(max[i]) > 0) found.push(x[i] as number);
  return found;
}
