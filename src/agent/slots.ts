/** A bounded number of places, each held under a name. Whoever found none is called when one may be free. */
export class Slots {
  readonly #limit: number;
  readonly #holders = new Set<string>();
  readonly #waiting = new Map<string, () => void>();

  constructor(limit: number) {
    this.#limit = limit;
  }

  get used(): number {
    return this.#holders.size;
  }

  get limit(): number {
    return this.#limit;
  }

  holds(name: string): boolean {
    return this.#holders.has(name);
  }

  /** True when it holds one now; else `onFree` is called once when it may try again. */
  tryAcquire(name: string, onFree: () => void): boolean {
    if (this.#holders.has(name)) return true;
    if (this.#holders.size < this.#limit) {
      this.#holders.add(name);
      this.#waiting.delete(name);
      return true;
    }
    this.#waiting.set(name, onFree);
    return false;
  }

  /** Takes one also above the limit: what runs already goes on. */
  acquireAnyway(name: string): void {
    this.#holders.add(name);
    this.#waiting.delete(name);
  }

  release(name: string): void {
    this.#waiting.delete(name);
    if (!this.#holders.delete(name)) return;
    const [next] = this.#waiting;
    if (!next) return;
    this.#waiting.delete(next[0]);
    next[1]();
  }
}
