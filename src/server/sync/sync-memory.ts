/** Memory limit per location, because other programs fill the bucket. Our choice. */
const NAMES_MAX = 10_000;
/** Delay before another look at a problem that a person has to fix. Our choice. */
const REFUSED_MS = 3_600_000;

/** A Backup whose files are missing. */
interface Missing {
  readonly sinceMs: number;
  readonly looks: number;
  /** Time of the last search for the reason, which found none. */
  unexplainedAtMs?: number | undefined;
}

/** State between syncs. A new process starts empty: it reads and logs everything again. */
export class SyncMemory {
  readonly #said = new Set<string>();
  /** Time of each refusal, by a clock that may be wrong. */
  readonly #refusedAtMs = new Map<string, number>();
  #missing = new Map<string, Missing>();
  /** Kept Backups whose files are missing. Undefined before the first sync. */
  held: number | undefined;

  /** True at the first call with this text. */
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

  /** A clock that was ahead does not prolong the delay. */
  isRefused(name: string, nowMs: number): boolean {
    const atMs = this.#refusedAtMs.get(name);
    return atMs !== undefined && nowMs >= atMs && nowMs - atMs < REFUSED_MS;
  }

  accept(name: string): void {
    this.#refusedAtMs.delete(name);
  }

  /** Forgets refused backups that the listing no longer has. */
  keepOnly(names: ReadonlySet<string>): void {
    for (const name of this.#refusedAtMs.keys()) {
      if (!names.has(name)) this.#refusedAtMs.delete(name);
    }
  }

  /** Records the missing Backups by UID. Returns since when, and in how many listings. */
  miss(uids: Iterable<string>, nowMs: number): ReadonlyMap<string, Missing> {
    const before = this.#missing;
    this.#missing = new Map(
      Array.from(uids, (uid) => {
        const { sinceMs, looks, ...rest } = before.get(uid) ?? { sinceMs: nowMs, looks: 0 };
        // A clock that was ahead must not set the start.
        return [uid, { ...rest, sinceMs: Math.min(sinceMs, nowMs), looks: looks + 1 }];
      }),
    );
    return this.#missing;
  }

  /** Records that nothing tells why the files of a Backup are missing. */
  unexplained(uid: string, nowMs: number): void {
    const missing = this.#missing.get(uid);
    if (missing) missing.unexplainedAtMs = nowMs;
  }

  /** Whether a search in the last hour found no reason. */
  isUnexplained(uid: string, nowMs: number): boolean {
    const atMs = this.#missing.get(uid)?.unexplainedAtMs;
    return atMs !== undefined && nowMs >= atMs && nowMs - atMs < REFUSED_MS;
  }
}
