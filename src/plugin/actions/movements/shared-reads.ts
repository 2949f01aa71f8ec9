import { untilAborted } from '../../../base/index.ts';

/** Our choice: less than the time between two polls. */
const FRESH_MS = 2000;
/** A list of this many objects costs no more than one read. Our choice. */
const OBJECTS_PER_LOOK = 50;
/** Our choice; a waiting caller may leave earlier. */
const LIST_MS_MAX = 60_000;
/** Owners are forgotten after this time, which is longer than any poll. Our choice. */
const KNOWN_MS = 300_000;

/** The backup or restore that owns operations. */
export interface Owner {
  readonly namespace?: string;
  readonly uid: string;
}

type ListAll<A> = (owner: Owner, signal: AbortSignal) => Promise<Map<string, A>>;

interface Round<A> {
  /** IDs read one by one since then. */
  readonly asked: Set<string>;
  sinceMs: number;
  usedMs: number;
  /** Size of the last list. */
  size: number;
  /** Answers of the last list; each is given once. */
  listed?: Promise<Map<string, A>> | undefined;
}

/**
 * Answers polls from a shared list. A server asks for the progress of each operation, and later for
 * all of them again. If operations of one backup are polled in a row, one list answers them: 200
 * operations then need a few requests instead of 200. An answer is used within two seconds of the
 * list, and only once, so that a repeated question gets fresh data.
 */
export class SharedLook<A> {
  readonly #list: ListAll<A>;
  readonly #rounds = new Map<string, Round<A>>();

  /** `list`: all answers of one owner, by operation ID. */
  constructor(list: ListAll<A>) {
    this.#list = list;
  }

  /** Undefined if the caller must read the object itself: it is the first, or the list lacks it. */
  async answer(owner: Owner, id: string, signal: AbortSignal): Promise<A | undefined> {
    const round = this.#roundOf(owner);
    if (!round.listed) {
      round.asked.add(id);
      if (round.asked.size <= Math.max(1, round.size / OBJECTS_PER_LOOK)) return undefined;
      round.listed = this.#begin(owner, round);
    }
    const { listed } = round;
    await untilAborted(signal, listed);
    signal.throwIfAborted();
    const answers = await listed;
    const answer = answers.get(id);
    answers.delete(id);
    return answer;
  }

  #roundOf({ uid }: Owner): Round<A> {
    const nowMs = performance.now();
    for (const [key, { usedMs, listed }] of this.#rounds) {
      if (!listed && nowMs - usedMs > KNOWN_MS) this.#rounds.delete(key);
    }
    const round = this.#rounds.get(uid) ?? {
      asked: new Set(),
      sinceMs: nowMs,
      usedMs: nowMs,
      size: 0,
    };
    this.#rounds.set(uid, round);
    round.usedMs = nowMs;
    if (nowMs - round.sinceMs > FRESH_MS) {
      round.asked.clear();
      round.sinceMs = nowMs;
    }
    return round;
  }

  /** If the list fails, each caller reads its own object and reports the error. */
  async #begin(owner: Owner, round: Round<A>): Promise<Map<string, A>> {
    const answers = await this.#list(owner, AbortSignal.timeout(LIST_MS_MAX)).catch(
      () => new Map<string, A>(),
    );
    round.size = answers.size;
    const timer = setTimeout(() => {
      round.listed = undefined;
      round.asked.clear();
      round.sinceMs = performance.now();
    }, FRESH_MS);
    timer.unref();
    return answers;
  }
}
