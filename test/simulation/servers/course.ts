import { Random, VirtualTime } from '../virtual-time.ts';
import { InstantIo } from './instant-io.ts';

export type Tell = (line: string) => void;

/** The result of one seed. */
export interface Course<E> {
  readonly problems: string[];
  /** Counts of events. */
  readonly counts: ReadonlyMap<string, number>;
  /** Turns of the leading server at which it could have been killed. */
  readonly turns: number;
  /** Undefined if there is nothing to compare. */
  readonly end: E | undefined;
}

export interface CourseGiven<E> {
  /** Already installed. */
  readonly time: VirtualTime;
  /** The end of the same seed without trouble; undefined in that run itself. */
  readonly expected: E | undefined;
  readonly tell: Tell | undefined;
}

/**
 * Runs each seed twice: without trouble, and with the requested settings. The same seed gives the
 * same course. `problems`: violations, and differences from the end without trouble.
 */
export function bySeed<S, E>(
  calm: Partial<S>,
  run: (seed: number, settings: Partial<S>, given: CourseGiven<E>) => Promise<Course<E>>,
): (seed: number, settings?: Partial<S>, tell?: Tell) => Promise<Course<E>> {
  let lastPlain: { readonly seed: number; readonly course: Course<E> } | undefined;
  const runOnce = (
    seed: number,
    settings: Partial<S>,
    given: Omit<CourseGiven<E>, 'time'>,
  ): Promise<Course<E>> => inVirtualTime(seed, (time) => run(seed, settings, { ...given, time }));
  return async (seed, settings = {}, tell) => {
    const nothing = { expected: undefined, tell: undefined };
    const plain = lastPlain?.seed === seed ? lastPlain.course : await runOnce(seed, calm, nothing);
    lastPlain = { seed, course: plain };
    if (plain.problems.length > 0 || !plain.end) {
      return { ...plain, problems: ['without any trouble:', ...plain.problems] };
    }
    return runOnce(seed, settings, { expected: plain.end, tell });
  };
}

/** Runs with timers and promises of the seed only. */
export async function inVirtualTime<R>(
  seed: number,
  run: (time: VirtualTime) => Promise<R>,
): Promise<R> {
  using things = new DisposableStack();
  const time = things.use(new VirtualTime(seed));
  time.install();
  things.use(new InstantIo(new Random(seed + 7)));
  return await run(time);
}

const PROBLEMS_MAX = 20;

/** Output of a course: lines for a listener, counts of events, and problems. */
export class CourseNotes {
  readonly problems: string[] = [];
  readonly counts = new Map<string, number>();
  readonly #time: VirtualTime;
  readonly #tell: Tell | undefined;

  constructor(time: VirtualTime, tell: Tell | undefined) {
    this.#time = time;
    this.#tell = tell;
  }

  get isTold(): boolean {
    return this.#tell !== undefined;
  }

  say(line: string): void {
    this.#tell?.(`${Math.round(this.#time.nowMs)}: ${line}`);
  }

  /** Keeps the first twenty; more would not help. */
  problem(text: string): void {
    this.say(`PROBLEM ${text}`);
    if (this.problems.length < PROBLEMS_MAX) {
      this.problems.push(`${Math.round(this.#time.nowMs)}: ${text}`);
    }
  }

  count(what: string): void {
    this.say(what);
    this.counts.set(what, (this.counts.get(what) ?? 0) + 1);
  }
}
