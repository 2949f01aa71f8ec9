import { untilAborted } from '../../base/index.ts';

/** Our choice: less than the time between two polls. */
const FRESH_MS = 2000;
/** So many objects of a list cost no more than a look at a single one. Our choice. */
const OBJECTS_PER_LOOK = 50;
/** Our choice; whoever waits for it may leave sooner. */
const LIST_MS_MAX = 60_000;
/** Longer than any poll: what is known of a backup is forgotten then. Our choice. */
const KNOWN_MS = 300_000;

/** The backup or the restore that operations belong to. */
export interface Owner {
  readonly namespace?: string;
  readonly uid: string;
}

type ListAll<A> = (owner: Owner, signal: AbortSignal) => Promise<Map<string, A>>;

interface Round<A> {
  /** IDs that were asked for singly since then. */
  readonly asked: Set<string>;
  sinceMs: number;
  usedMs: number;
  /** How many the last list had. */
  size: number;
  /** Each answer is given once. */
  listed?: Promise<Map<string, A>> | undefined;
}

/**
 * A server asks for the progress of each operation by itself, and then for all of them once more.
 * As soon as operations of one backup are asked for one after another, all are listed at once and
 * answered from that: of 200 operations a poll is then a few requests, and not 200. An answer is
 * given at most two seconds after the list has come, and only once, so that whoever asks again sees
 * what is new.
 */
export class SharedLook<A> {
  readonly #list: ListAll<A>;
  readonly #rounds = new Map<string, Round<A>>();

  /** `list`: all answers of one owner by the ID of the operation. */
  constructor(list: ListAll<A>) {
    this.#list = list;
  }

  /**
   * Undefined where the caller has to look by itself: it is the first, or nothing is known of it.
   */
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

  /** Where it fails, each looks by itself, and says what is wrong. */
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
