import { syncBuiltinESMExports } from 'node:module';

interface Timer {
  readonly id: number;
  readonly atMs: number;
  readonly run: () => void;
}

/** xorshift32: the same numbers for the same seed. */
export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = (seed * 2_654_435_761) >>> 0 || 1;
  }

  /** From 0 up to, but without, 1. */
  next(): number {
    let x = this.#state;
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    this.#state = x >>> 0;
    return this.#state / 2 ** 32;
  }

  between(low: number, high: number): number {
    return low + this.next() * (high - low);
  }

  below(n: number): number {
    return Math.floor(this.next() * n);
  }

  chance(probability: number): boolean {
    return this.next() < probability;
  }
}

/**
 * Virtual time, which passes only when all work is done: timers run in order, with promises between
 * them. While installed, it replaces Node's timers, monotonic clock, randomness and UUIDs. The same
 * seed then gives the same course.
 */
export class VirtualTime implements Disposable {
  readonly #heap: Timer[] = [];
  readonly #live = new Map<number, Timer>();
  readonly #undo: (() => void)[] = [];
  readonly #random: Random;
  readonly #nextTurn = setImmediate;
  #nowMs = 0;
  #ids = 0;

  constructor(seed: number) {
    this.#random = new Random(seed ^ 0x5bd1e995);
  }

  get nowMs(): number {
    return this.#nowMs;
  }

  install(): void {
    const promises = process.getBuiltinModule('node:timers/promises');
    const cryptography = process.getBuiltinModule('node:crypto');
    const sleep = (
      ms?: number,
      value?: unknown,
      { signal }: { signal?: AbortSignal } = {},
    ): Promise<unknown> =>
      new Promise((resolve, reject) => {
        const fail = (): void => {
          this.clear(id);
          const error = new Error('The operation was aborted', { cause: signal?.reason });
          error.name = 'AbortError';
          reject(error);
        };
        const id = this.after(ms ?? 0, () => {
          signal?.removeEventListener('abort', fail);
          resolve(value);
        });
        if (signal?.aborted === true) fail();
        else signal?.addEventListener('abort', fail, { once: true });
      });
    const uuid = (): string =>
      Array.from({ length: 8 }, () =>
        Math.floor(this.#random.next() * 65_536)
          .toString(16)
          .padStart(4, '0'),
      ).join('-');
    this.#replace(globalThis, 'setTimeout', (run: () => void, ms = 0) =>
      handle(this.after(ms, run)),
    );
    this.#replace(globalThis, 'setInterval', (run: () => void, ms = 0) => {
      const timer = { id: 0, [Symbol.toPrimitive]: () => timer.id, unref: () => timer };
      const again = (): void => {
        timer.id = this.after(ms, () => {
          again();
          run();
        });
      };
      again();
      return timer;
    });
    const clear = (timer: unknown): void => {
      if (timer !== undefined) this.clear(Number(timer));
    };
    this.#replace(globalThis, 'clearTimeout', clear);
    this.#replace(globalThis, 'clearInterval', clear);
    this.#replace(performance, 'now', () => this.#nowMs);
    this.#replace(Math, 'random', () => this.#random.next());
    this.#replace(AbortSignal, 'timeout', (ms: number) => {
      const abort = new AbortController();
      this.after(ms, () => {
        abort.abort(new DOMException('The operation timed out', 'TimeoutError'));
      });
      return abort.signal;
    });
    this.#replace(promises, 'setTimeout', sleep);
    this.#replace(cryptography, 'randomUUID', uuid);
    syncBuiltinESMExports();
  }

  /** Calls back after `ms`. Returns the argument for {@link clear}. */
  after(ms: number, run: () => void): number {
    const timer = { id: ++this.#ids, atMs: this.#nowMs + Math.max(0, ms), run };
    this.#live.set(timer.id, timer);
    push(this.#heap, timer);
    return timer.id;
  }

  clear(id: number): void {
    this.#live.delete(id);
  }

  /** Runs until `isDone` or until the time is over. Returns false if the time was over first. */
  async run(untilMs: number, isDone: () => boolean): Promise<boolean> {
    for (;;) {
      await new Promise<void>((resolve) => this.#nextTurn(resolve));
      if (isDone()) return true;
      let timer = pop(this.#heap);
      while (timer && !this.#live.delete(timer.id)) timer = pop(this.#heap);
      if (!timer) return false;
      if (timer.atMs > untilMs) {
        // The timer runs in a later call.
        this.#live.set(timer.id, timer);
        push(this.#heap, timer);
        return false;
      }
      this.#nowMs = Math.max(this.#nowMs, timer.atMs);
      timer.run();
    }
  }

  #replace<T extends object>(target: T, key: keyof T, value: unknown): void {
    const descriptor = Object.getOwnPropertyDescriptor(target, key);
    Object.defineProperty(target, key, { value, configurable: true, writable: true });
    this.#undo.push(() => {
      if (descriptor) Object.defineProperty(target, key, descriptor);
      else Reflect.deleteProperty(target, key);
    });
  }

  [Symbol.dispose](): void {
    for (const undo of this.#undo.splice(0).reverse()) undo();
    syncBuiltinESMExports();
  }
}

/** The parts of a timer object that are used here. */
function handle(id: number): object {
  const timer = { [Symbol.toPrimitive]: () => id, unref: () => timer, ref: () => timer };
  return timer;
}

const isBefore = (a: Timer, b: Timer): boolean =>
  a.atMs < b.atMs || (a.atMs === b.atMs && a.id < b.id);

function push(heap: Timer[], timer: Timer): void {
  let i = heap.push(timer) - 1;
  while (i > 0) {
    const parent = (i - 1) >> 1;
    const above = heap[parent] as Timer;
    if (!isBefore(timer, above)) break;
    heap[i] = above;
    i = parent;
  }
  heap[i] = timer;
}

function pop(heap: Timer[]): Timer | undefined {
  const [first] = heap;
  const last = heap.pop();
  if (!last || heap.length === 0) return first;
  let i = 0;
  for (;;) {
    let child = 2 * i + 1;
    if (child >= heap.length) break;
    if (child + 1 < heap.length && isBefore(heap[child + 1] as Timer, heap[child] as Timer))
      child++;
    if (!isBefore(heap[child] as Timer, last)) break;
    heap[i] = heap[child] as Timer;
    i = child;
  }
  heap[i] = last;
  return first;
}
