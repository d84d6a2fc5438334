/** How long, in milliseconds, pictures wait for a plot to ask for something. */
const patience = 300;

type End = () => void;

/**
 * Who may read when: the smallest piece of a plot alone, so that something is soon there; then the pictures that were
 * asked for meanwhile; then everything else, several pieces of plots at a time, the smallest first.
 */
export class Turns {
  readonly #waiting: { bytes: number; start: () => void }[] = [];
  readonly #first: Promise<void>;
  readonly #settled: Promise<void>;
  #endFirst: () => void = () => {};
  #settle: () => void = () => {};
  #running = 0;
  #pictures = 0;
  #phase: "first" | "pictures" | "all" = "first";
  #isPlanned = false;

  constructor(readonly most: number) {
    this.#first = new Promise((resolve) => {
      this.#endFirst = resolve;
    });
    this.#settled = new Promise((resolve) => {
      this.#settle = resolve;
    });
    // Without plots, there is nothing to wait for.
    setTimeout(() => {
      if (this.#phase === "first" && this.#running === 0 && this.#waiting.length === 0) this.#next();
    }, patience);
  }

  /** Resolves when it is the turn of a piece of a plot, with the function that ends the turn. */
  plot(bytes: number): Promise<End> {
    return new Promise((resolve) => {
      this.#waiting.push({ bytes, start: () => resolve(() => this.#end()) });
      this.#plan();
    });
  }

  /** The same for a picture. */
  async picture(): Promise<End> {
    this.#pictures++;
    await this.#first;
    return () => {
      this.#pictures--;
      if (this.#phase === "pictures" && this.#pictures === 0) this.#next();
    };
  }

  /** Resolves when plots and pictures had their first turns: readouts come then. */
  get settled(): Promise<void> {
    return this.#settled;
  }

  #end(): void {
    this.#running--;
    if (this.#phase === "first") this.#next();
    this.#plan();
  }

  #next(): void {
    if (this.#phase === "first") {
      this.#phase = "pictures";
      this.#endFirst();
    }
    if (this.#pictures > 0) return;
    this.#phase = "all";
    this.#settle();
    this.#plan();
  }

  /** What is asked for in the same moment is compared. */
  #plan(): void {
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    setTimeout(() => {
      this.#isPlanned = false;
      const most = { first: 1, pictures: 0, all: this.most }[this.#phase];
      this.#waiting.sort((a, b) => a.bytes - b.bytes);
      while (this.#running < most && this.#waiting.length > 0) {
        this.#running++;
        this.#waiting.shift()?.start();
      }
    });
  }
}
