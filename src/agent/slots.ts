/**
 * A bounded number of places, each held under a name. Whoever found none stands in line, and is
 * called when one may be free; it stays there until it has one or leaves.
 */
export class Slots {
  readonly #limit: number;
  readonly #usedByAll: () => number;
  readonly #least: number;
  readonly #holders = new Set<string>();
  readonly #line = new Map<string, { readonly order: number; readonly onFree: () => void }>();

  /**
   * `usedByAll`: of those that share the limit, how many are held; `least`: so many are to be had
   * whatever the others hold.
   */
  constructor(
    limit: number,
    { usedByAll = () => this.used, least = 0 }: { usedByAll?: () => number; least?: number } = {},
  ) {
    this.#limit = limit;
    this.#usedByAll = usedByAll;
    this.#least = least;
  }

  get used(): number {
    return this.#holders.size;
  }

  get limit(): number {
    return this.#limit;
  }

  get waiting(): number {
    return this.#line.size;
  }

  get #free(): number {
    return Math.max(this.#limit - this.#usedByAll(), this.#least - this.#holders.size);
  }

  holds(name: string): boolean {
    return this.#holders.has(name);
  }

  /** Whether {@link tryAcquire} would succeed. */
  hasRoom(name: string): boolean {
    return this.#holders.has(name) || this.#free > 0;
  }

  /**
   * True when it holds one now; else it {@link wait}s, and `onFree` is called when it may try
   * again.
   */
  tryAcquire(name: string, onFree: () => void, order?: number): boolean {
    if (!this.hasRoom(name)) {
      this.wait(name, onFree, order);
      return false;
    }
    this.#holders.add(name);
    this.#line.delete(name);
    return true;
  }

  /** Takes one also above the limit: what runs already goes on. */
  acquireAnyway(name: string): void {
    this.#holders.add(name);
    this.#line.delete(name);
  }

  /** Stands in line; `order`: those of lower numbers come first. */
  wait(name: string, onFree: () => void, order = performance.now()): void {
    this.#line.set(name, { order, onFree });
  }

  /** Wants none any more; whether it stood in line. */
  leave(name: string): boolean {
    return this.#line.delete(name);
  }

  /**
   * Wants none any more, and may have been called for one that is free: who comes next is called
   * for it.
   */
  withdraw(name: string): void {
    if (this.#line.delete(name)) this.wake();
  }

  release(name: string): void {
    const waited = this.#line.delete(name);
    if (this.#holders.delete(name) || waited) this.wake();
  }

  /** Calls as many as there are places, those first that come first. */
  wake(): void {
    const free = this.#free;
    if (free <= 0) return;
    for (const { onFree } of firstOf(this.#line.values(), free)) onFree();
  }
}

/** The few of the lowest order, without sorting thousands. */
function firstOf<T extends { readonly order: number }>(all: Iterable<T>, count: number): T[] {
  const first: T[] = [];
  for (const one of all) {
    if (first.length === count && one.order >= (first.at(-1)?.order ?? Infinity)) continue;
    const at = first.findIndex(({ order }) => order > one.order);
    first.splice(at < 0 ? first.length : at, 0, one);
    if (first.length > count) first.pop();
  }
  return first;
}
