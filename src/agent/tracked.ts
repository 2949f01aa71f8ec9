import type { Sighting } from './ages.ts';
import type { DataPath, MoverProgress } from './data-path.ts';
import type { Movement } from './movement.ts';
import type { Slots } from './slots.ts';

/** What agents wait for, each by its own watch. */
export type Wait =
  | 'new'
  | 'prepared'
  | 'away'
  | 'deleted'
  | 'final'
  | 'canceling'
  | 'cleanUp'
  | 'refused'
  | 'noRoom'
  | 'timedOut';

export type ExposureState = 'running' | 'done' | { readonly error: unknown };

export interface Exposure {
  readonly abort: AbortController;
  /** When it began; milliseconds of `performance.now()`. */
  readonly sinceMs: number;
  state: ExposureState;
  /** Resolves when it has stopped, whatever came of it. */
  over: Promise<void>;
}

export interface WatchedPath {
  readonly path: DataPath;
  latest: MoverProgress | undefined;
  isWriting: boolean;
  /** When this agent began to watch it; milliseconds of `performance.now()`. */
  readonly sinceMs: number;
}

/**
 * What this process remembers of one CR. All of it can be made again: what must survive is on the
 * CR.
 */
export interface Tracked<M extends Movement> {
  /** When this agent first saw what it waits for; milliseconds of `performance.now()`. */
  readonly since: Partial<Record<Wait, number>>;
  /** How long before this agent others may have seen it. */
  readonly lateMs: Partial<Record<Wait, number>>;
  /** How many agents come before this one, for a version of the roster. */
  rank: { readonly version: number; readonly is: number } | undefined;
  /**
   * How often the PVC of a restore was looked for in vain, when last, and when it is to be looked
   * for again.
   */
  missing:
    | {
        readonly times: number;
        readonly sinceMs: number;
        readonly pauseMs: number;
        /** Only this agent may claim it: it waits for what happens on this node. */
        readonly isOwn: boolean;
      }
    | undefined;
  /** How often what it waits for has changed. */
  targetChanges: number;
  exposure: Exposure | undefined;
  /**
   * Resolves when an exposure has stopped that another agent did not wait for: nobody else knows
   * its outcome.
   */
  late: Promise<void> | undefined;
  dataPath: WatchedPath | undefined;
  /**
   * How often in a row it could not be made available, and since when; milliseconds of
   * `performance.now()`.
   */
  failed: { readonly times: number; readonly sinceMs: number } | undefined;
  /** When it was made available after that had failed; milliseconds of `performance.now()`. */
  madeAtMs: number | undefined;
  /** Of its claim, by the time that is written on it. */
  claimSeen: Sighting | undefined;
  /** Of its last pod, by UID. */
  podSeen: Sighting | undefined;
  /** UID of the last of its pods here that is known to have ended before it went. */
  endedPod: string | undefined;
  /** Who waited for its data went on before it was gone. */
  isSeenDone: boolean;
  /**
   * UID of the last of its pods whose log was copied: it is looked at again as long as what comes
   * next fails.
   */
  loggedPod: string | undefined;
  /** When it was last asked whether it can still be moved; milliseconds of `performance.now()`. */
  lostAskedMs: number;
  /** The last answer was that it cannot. */
  isLost: boolean;
  /** Since when no mover is named, as this process saw it; milliseconds of `performance.now()`. */
  unnamed: { readonly generation: number; readonly sinceMs: number } | undefined;
  /** This process claimed it, and has made nothing for it yet. */
  isBare: boolean;
  /** Nothing is left of what was made for it. */
  isClean: boolean;
  /** As this agent wrote it last, while the watch is behind. */
  written: M | undefined;
}

/** The one place that remembers CRs, by UID, and the one that forgets them. */
export class Memory<M extends Movement> {
  readonly #records = new Map<string, Tracked<M>>();
  readonly #places: readonly Slots[];

  /** `places`: what a CR may hold of them is given back with its record. */
  constructor(places: readonly Slots[]) {
    this.#places = places;
  }

  of(uid: string): Tracked<M> {
    let record = this.#records.get(uid);
    if (!record) {
      record = {
        since: {},
        lateMs: {},
        rank: undefined,
        missing: undefined,
        targetChanges: 0,
        exposure: undefined,
        late: undefined,
        dataPath: undefined,
        failed: undefined,
        madeAtMs: undefined,
        claimSeen: undefined,
        podSeen: undefined,
        endedPod: undefined,
        isSeenDone: false,
        loggedPod: undefined,
        lostAskedMs: -Infinity,
        isLost: false,
        unnamed: undefined,
        isBare: false,
        isClean: false,
        written: undefined,
      };
      this.#records.set(uid, record);
    }
    return record;
  }

  /** Undefined for a CR of which nothing is known. */
  get(uid: string): Tracked<M> | undefined {
    return this.#records.get(uid);
  }

  get size(): number {
    return this.#records.size;
  }

  /** It is over: what runs for it is stopped, and its places are free. */
  release(uid: string): void {
    const record = this.#records.get(uid);
    record?.exposure?.abort.abort();
    record?.dataPath?.path.close();
    if (record) record.exposure = record.dataPath = undefined;
    for (const places of this.#places) places.release(uid);
  }

  forget(uid: string): void {
    this.release(uid);
    this.#records.delete(uid);
  }

  /** Stops what runs in this process. */
  stop(): void {
    for (const { exposure, dataPath } of this.#records.values()) {
      exposure?.abort.abort();
      dataPath?.path.close();
    }
  }
}
