/**
 * Who may read next: the smallest piece first. One at a time until the first one is there, so that the first plot does
 * not wait for others; then several.
 */
export class Turns {
  readonly #waiting: { bytes: number; start: () => void }[] = [];
  #running = 0;
  #most = 1;
  #isPlanned = false;

  constructor(readonly later: number) {}

  /** Resolves when it is this one's turn, with the function that ends the turn. */
  take(bytes: number): Promise<() => void> {
    return new Promise((resolve) => {
      const end = () => {
        this.#running--;
        this.#most = this.later;
        this.#plan();
      };
      this.#waiting.push({ bytes, start: () => resolve(end) });
      this.#plan();
    });
  }

  /** What is asked for in the same moment is compared. */
  #plan(): void {
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    setTimeout(() => {
      this.#isPlanned = false;
      this.#waiting.sort((a, b) => a.bytes - b.bytes);
      while (this.#running < this.#most && this.#waiting.length > 0) {
        this.#running++;
        this.#waiting.shift()?.start();
      }
    });
  }
}
