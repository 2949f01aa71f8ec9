import type { ObjectSighting } from './object-age.ts';
import type { DataPath, MoverProgress } from './data-path.ts';
import type { Movement } from '../movement.ts';
import type { Slots } from './slots.ts';

/** Waits of agents, each with its own timer. */
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
  /** Start time; milliseconds of `performance.now()`. */
  readonly sinceMs: number;
  state: ExposureState;
  /** Resolves when the exposure has stopped, successfully or not. */
  over: Promise<void>;
}

export interface WatchedPath {
  readonly path: DataPath;
  latest: MoverProgress | undefined;
  isWriting: boolean;
  /** When this agent began to watch it; milliseconds of `performance.now()`. */
  readonly sinceMs: number;
}

/** This process's memory of one CR. Only a cache: lasting facts are on the CR. */
export interface Tracked<M extends Movement> {
  /** When this agent first saw each wait; milliseconds of `performance.now()`. */
  readonly since: Partial<Record<Wait, number>>;
  /** How much earlier other agents may have seen it. */
  readonly lateMs: Partial<Record<Wait, number>>;
  /** Rank of this agent, for a version of the roster. */
  rank: { readonly version: number; readonly is: number } | undefined;
  /** Failed lookups of a restore's target: how many, when last, and the pause before the next. */
  missing:
    | {
        readonly times: number;
        readonly sinceMs: number;
        readonly pauseMs: number;
        /** Only this agent may claim the CR, because it waits for changes on this node. */
        readonly isOwn: boolean;
      }
    | undefined;
  /** How often the restore's target has changed. */
  targetChanges: number;
  exposure: Exposure | undefined;
  /** Resolves when an exposure has stopped that another agent did not wait for. */
  late: Promise<void> | undefined;
  dataPath: WatchedPath | undefined;
  /** Number of failed exposures in a row, and their start; milliseconds of `performance.now()`. */
  failed: { readonly times: number; readonly sinceMs: number } | undefined;
  /** When an exposure succeeded after failures; milliseconds of `performance.now()`. */
  madeAtMs: number | undefined;
  /** Age of the claim, by the time written in it. */
  claimSeen: ObjectSighting | undefined;
  /** Age of the last pod, by UID. */
  podSeen: ObjectSighting | undefined;
  /** UID of the last pod on this node that is known to have ended before it was deleted. */
  endedPod: string | undefined;
  /** The waiting pod had started with its data before it was deleted. */
  isSeenDone: boolean;
  /** UID of the last pod whose log was copied. A retry does not copy it again. */
  loggedPod: string | undefined;
  /** Last check whether the volume can still be moved; milliseconds of `performance.now()`. */
  lostAskedMs: number;
  /** The last check found that the volume cannot be moved. */
  isLost: boolean;
  /** When this process saw that no mover is named; milliseconds of `performance.now()`. */
  unnamed: { readonly generation: number; readonly sinceMs: number } | undefined;
  /** This process made the claim, and has created no objects yet. */
  isBare: boolean;
  /** All objects of the CR are deleted. */
  isClean: boolean;
  /** The version that this agent wrote last, until the watch delivers it. */
  written: M | undefined;
}

/** Remembers CRs by UID, and is the only place that forgets them. */
export class Memory<M extends Movement> {
  readonly #records = new Map<string, Tracked<M>>();
  readonly #places: readonly Slots[];

  /** `places`: slots that a CR may hold. They are released with its record. */
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

  /** Undefined for an unknown CR. */
  get(uid: string): Tracked<M> | undefined {
    return this.#records.get(uid);
  }

  get size(): number {
    return this.#records.size;
  }

  /** The CR is over: stops its tasks and frees its places. */
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

  /** Stops all tasks of this process. */
  stop(): void {
    for (const { exposure, dataPath } of this.#records.values()) {
      exposure?.abort.abort();
      dataPath?.path.close();
    }
  }
}
