import { setTimeout as sleep } from 'node:timers/promises';
import { foreignFolders } from '../../archive/index.ts';
import { CodedError, createLimiter, type Limiter, retryOf } from '../../base/index.ts';
import type { BlobStorage } from '../../blob/index.ts';
import { parseBackupStorageLocation, RETENTION, retentionOf } from '../../config/index.ts';
import { type BackupStorageLocation, withOwnSignal } from '../../kube/index.ts';
import { type LocationStoreOptions, openLocation } from './location-stores.ts';

/** Time limit for a bucket. Velero waits as long as its plugin. Our choice. */
export const CHECK_MS = 30_000;
/** A longer check continues without a slot. Our choice: a healthy bucket needs a tenth of it. */
export const YOUNG_MS = 2000;
/** Tries of one check for transient errors. Our choice. */
const TRIES_MAX = 3;
const PAUSE_MS = 400;
/** Parallel checks of new and fast locations. Our choice: 1,000 locations in some seconds. */
const QUICK_AT_ONCE = 32;
/** Parallel checks of locations that were slow before. */
const SLOW_AT_ONCE = 8;

/**
 * Checks locations without mutual delays. A check holds its slot for two seconds at most. A slow
 * location uses separate slots afterwards. So only checks that begin within `CHECK_MS` can hang at
 * the same time.
 */
export class LocationChecks {
  readonly #options: LocationStoreOptions;
  readonly #quick: Limiter = createLimiter(QUICK_AT_ONCE);
  readonly #slow: Limiter = createLimiter(SLOW_AT_ONCE);
  readonly #slowKeys = new Set<string>();
  /** Keys of checks that cannot be aborted, such as a directory on a dead server. */
  readonly #left = new Set<string>();

  constructor(options: LocationStoreOptions) {
    this.#options = options;
  }

  /** Rejects with the problem of the location; `LOCATION_SILENT` if it does not answer. */
  check(key: string, location: BackupStorageLocation, signal: AbortSignal): Promise<void> {
    const places = this.#slowKeys.has(key) ? this.#slow : this.#quick;
    const ended = Promise.withResolvers<undefined>();
    const begun = places.run(async () => {
      const work = this.#check(key, location, signal);
      // Settles at its own time limit at the latest.
      work.then(() => ended.resolve(undefined), ended.reject);
      if (await isSettledSoon(work)) this.#slowKeys.delete(key);
      else this.#slowKeys.add(key);
    });
    begun.catch(ended.reject);
    return ended.promise;
  }

  forget(key: string): void {
    this.#slowKeys.delete(key);
  }

  async #check(key: string, location: BackupStorageLocation, signal: AbortSignal): Promise<void> {
    if (this.#left.has(key)) throw silent('an earlier check still waits for an answer');
    await withOwnSignal(signal, async (own) => {
      const timer = setTimeout(() => {
        own.abort(silent(`no answer within ${CHECK_MS / 1000} s`));
      }, CHECK_MS);
      const aborted = Promise.withResolvers<never>();
      own.signal.addEventListener('abort', () => aborted.reject(own.signal.reason as Error), {
        once: true,
      });
      this.#left.add(key);
      const work = this.#tried(location, own.signal).finally(() => this.#left.delete(key));
      work.catch(() => undefined);
      try {
        await Promise.race([work, aborted.promise]);
      } catch (error) {
        // The reason of the abort, not the error that it caused.
        throw own.signal.aborted ? own.signal.reason : error;
      } finally {
        clearTimeout(timer);
      }
    });
  }

  /** A busy service refuses some requests. A failed check would fail all backups until the next. */
  async #tried(location: BackupStorageLocation, signal: AbortSignal): Promise<void> {
    for (let tries = 1; ; tries++) {
      try {
        await this.#open(location, signal);
        return;
      } catch (error) {
        if (tries >= TRIES_MAX || retryOf(error) === 'never') throw error;
        await sleep(tries * PAUSE_MS, undefined, { signal });
      }
    }
  }

  async #open(location: BackupStorageLocation, signal: AbortSignal): Promise<void> {
    const storage = await openLocation(location, this.#options, signal);
    try {
      const parsed = parseBackupStorageLocation({ ...location, kind: 'BackupStorageLocation' });
      const wantsLocks = retentionOf(parsed) !== undefined;
      await assertValidStore(storage, signal, { wantsLocks });
    } finally {
      // Does not hang: its requests end with the signal.
      await storage.close();
    }
  }
}

const silent = (text: string): CodedError =>
  new CodedError('LOCATION_SILENT', text, { retry: 'backoff' });

/** False if it takes longer. */
export async function isSettledSoon(work: Promise<unknown>, ms = YOUNG_MS): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const over = new Promise<false>((resolve) => {
    timer = setTimeout(() => resolve(false), ms);
  });
  const settled = work.then(
    () => true,
    () => true,
  );
  const isSoon = await Promise.race([settled, over]);
  clearTimeout(timer);
  return isSoon;
}

/**
 * Checks that the bucket answers and has no foreign folders at its top. An empty bucket is fine.
 * `wantsLocks`: the location's annotation requests a retention, so the bucket must support locks.
 * Throws `FOREIGN_FOLDERS` in Velero's words, `NO_OBJECT_LOCK`, and errors of the storage.
 */
export async function assertValidStore(
  storage: BlobStorage,
  signal: AbortSignal,
  { wantsLocks = false }: { readonly wantsLocks?: boolean } = {},
): Promise<void> {
  const foreign = await foreignFolders(storage.listFolders('', { signal }));
  if (foreign) {
    throw new CodedError('FOREIGN_FOLDERS', foreign.text, { facts: { count: foreign.count } });
  }
  if (!wantsLocks) return;
  const isLockable = storage.hasObjectLock && (await storage.isLockable?.({ signal })) !== false;
  if (isLockable) return;
  const why = storage.hasObjectLock ? 'its bucket has no object lock' : 'it knows no locks';
  const text = `nothing can be locked in ${storage.displayName}, as annotation ${RETENTION} asks for: ${why}. Use another bucket, or take the annotation off`;
  throw new CodedError('NO_OBJECT_LOCK', text);
}
