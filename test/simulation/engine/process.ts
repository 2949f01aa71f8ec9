import { AsyncLocalStorage } from 'node:async_hooks';
import { type Clock, type Nanoseconds, type RandomBytes } from '../../../src/base/index.ts';
import { Random, type VirtualTime } from '../virtual-time.ts';

const current = new AsyncLocalStorage<Process>();

/** The process whose code is running; undefined outside of processes. */
export const currentProcess = (): Process | undefined => current.getStore();

/** 2026-01-01 UTC: where the virtual time starts. */
export const START_NS: Nanoseconds = 1_767_225_600_000_000_000n;
export const MINUTE_MS = 60_000;
export const HOUR_MS = 60 * MINUTE_MS;
export const DAY_MS = 24 * HOUR_MS;

/** A machine. Its clock is a little off, may be stepped, and is shared by its processes. */
export class Host {
  readonly name: string;
  offsetNs = 0n;

  constructor(name: string) {
    this.name = name;
  }
}

/** Like the system's clock: it never shows the same time twice, and only a step sets it back. */
class HostClock implements Clock {
  readonly #time: VirtualTime;
  readonly #host: Host;
  #last = 0n;
  #lastOffset = 0n;

  constructor(time: VirtualTime, host: Host) {
    this.#time = time;
    this.#host = host;
  }

  nowNs(): Nanoseconds {
    const { offsetNs } = this.#host;
    const now = START_NS + BigInt(Math.floor(this.#time.nowMs * 1000)) * 1000n + offsetNs;
    this.#last = offsetNs === this.#lastOffset && now <= this.#last ? this.#last + 1n : now;
    this.#lastOffset = offsetNs;
    return this.#last;
  }
}

export function fillRandomly<T extends Uint8Array>(bytes: T, random: Random): T {
  for (let i = 0; i < bytes.length; i += 4) {
    const word = random.below(2 ** 32);
    bytes[i] = word;
    bytes[i + 1] = word >>> 8;
    bytes[i + 2] = word >>> 16;
    bytes[i + 3] = word >>> 24;
  }
  return bytes;
}

export type End =
  | { readonly kind: 'done' }
  | { readonly kind: 'killed' }
  | { readonly kind: 'failed'; readonly error: unknown };

export interface ProcessOptions {
  readonly time: VirtualTime;
  readonly host: Host;
  readonly name: string;
  readonly seed: number;
  /**
   * The shortest interval of repeating timers. Busy machines are late, too, and days pass faster.
   */
  readonly tickMs: number;
  /** The longest time of one codec task, and of one request to the volume. */
  readonly taskMs: number;
  readonly readMs: number;
  /** Chance that a thread dies in a task. */
  readonly threadDeath: number;
  /** The process dies at this wait; never if 0. */
  readonly killAtWait: number;
}

/**
 * One run of the program. All outside waits go through {@link wait}, where the process may be
 * killed, suspended or slow. A process that waits for nothing is detected.
 */
export class Process {
  readonly options: ProcessOptions;
  readonly random: Random;
  readonly clock: Clock;
  readonly abort = new AbortController();
  end: End | undefined;
  waits = 0;
  /** Waits that last until the end of the process. */
  readonly endless: string[] = [];
  onEnd: (end: End) => void = () => undefined;
  /** Faults that were injected. Without any, the process must not fail. */
  readonly troubles = new Set<string>();
  readonly #pending = new Map<number, string>();
  #suspendedUntilMs = 0;
  #ids = 0;
  #idleLooks = 0;

  constructor(options: ProcessOptions) {
    this.options = options;
    this.random = new Random(options.seed);
    this.clock = new HostClock(options.time, options.host);
  }

  get name(): string {
    return this.options.name;
  }

  get isAlive(): boolean {
    return this.end === undefined;
  }

  readonly randomBytes: RandomBytes = (length) => fillRandomly(new Uint8Array(length), this.random);

  start(main: (process: Process) => Promise<void>): void {
    void current.run(this, () =>
      main(this).then(
        () => {
          this.#finish({ kind: 'done' });
        },
        (error: unknown) => {
          this.#finish({ kind: 'failed', error });
        },
      ),
    );
  }

  kill(): void {
    this.#finish({ kind: 'killed' });
  }

  /** Until then the process receives nothing and has no timers. Its requests still take effect. */
  suspend(ms: number): void {
    this.#suspendedUntilMs = this.options.time.nowMs + ms;
  }

  #finish(end: End): void {
    if (this.end) return;
    this.end = end;
    this.#pending.clear();
    current.exit(() => {
      this.onEnd(end);
    });
  }

  /** Waits for something outside that takes `ms`. Never resolves after a kill. */
  wait(what: string, ms: number): Promise<void> {
    return new Promise((resolve) => {
      this.await(what, ms, resolve);
    });
  }

  /** The same with a callback. Returns a cancel function. */
  await(what: string, ms: number, then: () => void): () => void {
    this.waits++;
    if (this.waits === this.options.killAtWait) this.kill();
    if (!this.isAlive) return () => undefined;
    const { time } = this.options;
    const id = ++this.#ids;
    this.#pending.set(id, what);
    const wake = (): void => {
      if (!this.isAlive || !this.#pending.has(id)) return;
      const leftMs = this.#suspendedUntilMs - time.nowMs;
      if (leftMs > 0) {
        time.after(leftMs, wake);
        return;
      }
      this.#pending.delete(id);
      current.run(this, then);
    };
    time.after(ms, wake);
    return () => this.#pending.delete(id);
  }

  /** A wait that never ends; it is not counted. */
  forever(what: string): Promise<never> {
    this.waits++;
    this.endless.push(what);
    return new Promise(() => undefined);
  }

  /** Calls back repeatedly. Returns a stop function. */
  every(ms: number, run: () => void): () => void {
    const { time, tickMs } = this.options;
    let stopped = false;
    const again = (): void => {
      time.after(Math.max(ms, tickMs), () => {
        if (stopped || !this.isAlive) return;
        again();
        if (this.#suspendedUntilMs <= time.nowMs) current.run(this, run);
      });
    };
    again();
    return () => {
      stopped = true;
    };
  }

  get isSuspended(): boolean {
    return this.#suspendedUntilMs > this.options.time.nowMs;
  }

  get pending(): readonly string[] {
    return [...this.#pending.values()];
  }

  /** Call it when nothing is left to run. Returns whether the process was idle twice in a row. */
  looksStuck(): boolean {
    const isIdle = this.isAlive && !this.isSuspended && this.#pending.size === 0;
    this.#idleLooks = isIdle ? this.#idleLooks + 1 : 0;
    return this.#idleLooks >= 2;
  }
}
