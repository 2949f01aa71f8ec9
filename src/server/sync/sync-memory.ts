/**
 * Of one location: what a bucket that somebody else fills can make this process remember. Our
 * choice.
 */
const NAMES_MAX = 10_000;
/**
 * For which what cannot be taken is not read again: it may be as long as metadata can be, and a
 * person has to look at it. Our choice.
 */
const REFUSED_MS = 3_600_000;

/** A Backup that was not found in the bucket. */
interface Missing {
  readonly sinceMs: number;
  readonly looks: number;
}

/**
 * What a process knows of a location from one sync to the next. A new one loses nothing: it looks
 * again, and says it again.
 */
export class SyncMemory {
  readonly #said = new Set<string>();
  /** When each was refused, by a clock that may have been wrong. */
  readonly #refusedAtMs = new Map<string, number>();
  #missing = new Map<string, Missing>();
  /**
   * Backups in the cluster that are not in the bucket, and stay. Undefined before the first sync.
   */
  held: number | undefined;

  /** True the first time. */
  isNew(said: string): boolean {
    if (this.#said.has(said)) return false;
    if (this.#said.size >= NAMES_MAX) this.#said.clear();
    this.#said.add(said);
    return true;
  }

  get refused(): number {
    return this.#refusedAtMs.size;
  }

  refuse(name: string, nowMs: number): void {
    if (this.#refusedAtMs.size >= NAMES_MAX) this.#refusedAtMs.clear();
    this.#refusedAtMs.set(name, nowMs);
  }

  /** A clock that was ahead makes it no longer. */
  isRefused(name: string, nowMs: number): boolean {
    const atMs = this.#refusedAtMs.get(name);
    return atMs !== undefined && nowMs >= atMs && nowMs - atMs < REFUSED_MS;
  }

  accept(name: string): void {
    this.#refusedAtMs.delete(name);
  }

  /** Those that a listing does not have any more are nothing to speak of. */
  keepOnly(names: ReadonlySet<string>): void {
    for (const name of this.#refusedAtMs.keys()) {
      if (!names.has(name)) this.#refusedAtMs.delete(name);
    }
  }

  /**
   * All Backups that are missing now, by UID; returns since when each is, and how often it was
   * looked for.
   */
  miss(uids: Iterable<string>, nowMs: number): ReadonlyMap<string, Missing> {
    const before = this.#missing;
    this.#missing = new Map(
      Array.from(uids, (uid) => {
        const { sinceMs, looks } = before.get(uid) ?? { sinceMs: nowMs, looks: 0 };
        // Since when a clock that was ahead then says nothing.
        return [uid, { sinceMs: Math.min(sinceMs, nowMs), looks: looks + 1 }];
      }),
    );
    return this.#missing;
  }
}
