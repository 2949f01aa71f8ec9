import { Random, VirtualTime } from '../virtual-time.ts';
import { InstantIo } from './instant-io.ts';

export type Tell = (line: string) => void;

/** What one seed came to. */
export interface Course<E> {
  readonly problems: string[];
  /** What happened, and how often. */
  readonly counts: ReadonlyMap<string, number>;
  /** Turns of the leading server at which it could have been killed. */
  readonly turns: number;
  /** Undefined where there is none to compare. */
  readonly end: E | undefined;
}

export interface CourseGiven<E> {
  /** Installed already. */
  readonly time: VirtualTime;
  /** The end of the same seed without any trouble; undefined for that one itself. */
  readonly expected: E | undefined;
  readonly tell: Tell | undefined;
}

/**
 * Simulates by seed: each once without any trouble, and then with what is asked for, which is held
 * against it. The same seed is the same course. `problems`: whatever must never be, and whatever is
 * not in the end as it is without trouble.
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

/** All that is asynchronous in it is that of the seed. */
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

/**
 * What a course says of itself: line by line to whoever listens, what happened as counts, and what
 * must not be as problems.
 */
export class CourseNotes {
  readonly problems: string[] = [];
  readonly counts = new Map<string, number>();
  readonly #time: VirtualTime;
  readonly #tell: Tell | undefined;

  constructor(time: VirtualTime, tell: Tell | undefined) {
    this.#time = time;
    this.#tell = tell;
  }

  /** Whether anybody listens. */
  get isTold(): boolean {
    return this.#tell !== undefined;
  }

  say(line: string): void {
    this.#tell?.(`${Math.round(this.#time.nowMs)}: ${line}`);
  }

  /** Of the first twenty; more say nothing new. */
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
