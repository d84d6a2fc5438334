/** Remembers what was used last, up to a number of bytes. */
export class Lru<T> {
  readonly #held = new Map<string, { value: T; bytes: number }>();
  #bytes = 0;

  constructor(readonly capacity: number) {}

  get bytes(): number {
    return this.#bytes;
  }

  get(key: string): T | undefined {
    const found = this.#held.get(key);
    if (!found) return undefined;
    this.#held.delete(key);
    this.#held.set(key, found);
    return found.value;
  }

  /** What is larger than everything that may be kept is not kept. */
  set(key: string, value: T, bytes: number): void {
    this.delete(key);
    if (bytes > this.capacity) return;
    this.#held.set(key, { value, bytes });
    this.#bytes += bytes;
    for (const oldest of this.#held.keys()) {
      if (this.#bytes <= this.capacity) break;
      this.delete(oldest);
    }
  }

  delete(key: string): void {
    const found = this.#held.get(key);
    if (!found) return;
    this.#held.delete(key);
    this.#bytes -= found.bytes;
  }

  deleteAll(prefix: string): void {
    for (const key of this.#held.keys()) if (key.startsWith(prefix)) this.delete(key);
  }
}
