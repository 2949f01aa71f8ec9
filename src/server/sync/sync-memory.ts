/** Of one location: what a bucket that somebody else fills can make this process remember. Our choice. */
const NAMES_MAX = 10_000;
/** For which what cannot be taken is not read again: it may be as long as metadata can be, and a person has to look at it. Our choice. */
const REFUSED_MS = 3_600_000;

/** A Backup that was not found in the bucket. */
interface Missing {
  readonly sinceMs: number;
  readonly looks: number;
}

/** What a process knows of a location from one sync to the next. A new one loses nothing: it looks again, and says it again. */
export class SyncMemory {
  readonly #said = new Set<string>();
  readonly #refusedUntilMs = new Map<string, number>();
  #missing = new Map<string, Missing>();
  /** Backups in the cluster that are not in the bucket, and stay. */
  held = 0;

  /** True the first time. */
  isNew(said: string): boolean {
    if (this.#said.has(said)) return false;
    if (this.#said.size >= NAMES_MAX) this.#said.clear();
    this.#said.add(said);
    return true;
  }

  get refused(): number {
    return this.#refusedUntilMs.size;
  }

  refuse(name: string, nowMs: number): void {
    if (this.#refusedUntilMs.size >= NAMES_MAX) this.#refusedUntilMs.clear();
    this.#refusedUntilMs.set(name, nowMs + REFUSED_MS);
  }

  isRefused(name: string, nowMs: number): boolean {
    return nowMs < (this.#refusedUntilMs.get(name) ?? -Infinity);
  }

  accept(name: string): void {
    this.#refusedUntilMs.delete(name);
  }

  /** Those that a listing does not have any more are nothing to speak of. */
  keepOnly(names: ReadonlySet<string>): void {
    for (const name of this.#refusedUntilMs.keys()) {
      if (!names.has(name)) this.#refusedUntilMs.delete(name);
    }
  }

  /** All Backups that are missing now, by UID; returns since when each is, and how often it was looked for. */
  miss(uids: Iterable<string>, nowMs: number): ReadonlyMap<string, Missing> {
    const before = this.#missing;
    this.#missing = new Map(
      Array.from(uids, (uid) => {
        const { sinceMs, looks } = before.get(uid) ?? { sinceMs: nowMs, looks: 0 };
        return [uid, { sinceMs, looks: looks + 1 }];
      }),
    );
    return this.#missing;
  }
}
