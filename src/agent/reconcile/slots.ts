/**
 * A bounded number of places, each held under a name. A caller without a place joins a queue, and
 * is called when a place may be free. The caller stays in the queue until it takes a place or
 * leaves.
 */
export class Slots {
  readonly #limit: number;
  readonly #usedByAll: () => number;
  readonly #least: number;
  readonly #holders = new Set<string>();
  readonly #line = new Map<string, { readonly order: number; readonly onFree: () => void }>();

  /** `usedByAll`: places held by all that share the limit. `least`: reserved places. */
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

  /** Takes a place and returns true, or calls {@link wait} and returns false. */
  tryAcquire(name: string, onFree: () => void, order?: number): boolean {
    if (!this.hasRoom(name)) {
      this.wait(name, onFree, order);
      return false;
    }
    this.#holders.add(name);
    this.#line.delete(name);
    return true;
  }

  /** Takes a place even above the limit, for work that is already running. */
  acquireAnyway(name: string): void {
    this.#holders.add(name);
    this.#line.delete(name);
  }

  /** Joins the queue; lower `order` goes first. `onFree` is called when it may try again. */
  wait(name: string, onFree: () => void, order = performance.now()): void {
    this.#line.set(name, { order, onFree });
  }

  /** Leaves the queue. Returns whether it was in it. */
  leave(name: string): boolean {
    return this.#line.delete(name);
  }

  /** Leaves the queue, and passes a free place on to the next. */
  withdraw(name: string): void {
    if (this.#line.delete(name)) this.wake();
  }

  release(name: string): void {
    const waited = this.#line.delete(name);
    if (this.#holders.delete(name) || waited) this.wake();
  }

  /** Calls as many waiting callers as there are free places, in order. */
  wake(): void {
    const free = this.#free;
    if (free <= 0) return;
    for (const { onFree } of firstOf(this.#line.values(), free)) onFree();
  }
}

/** The `count` lowest by order, without sorting thousands. */
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
