import { setTimeout as sleep } from 'node:timers/promises';
import { foreignFolders } from '../../archive/index.ts';
import { CodedError, createLimiter, type Limiter, retryOf } from '../../base/index.ts';
import type { BlobStorage } from '../../blob/index.ts';
import { parseBackupStorageLocation, RETENTION, retentionOf } from '../../config/index.ts';
import { type BackupStorageLocation, withOwnSignal } from '../../kube/index.ts';
import { type LocationStoreOptions, openLocation } from './location-stores.ts';

/**
 * How long a bucket may take to answer. Velero waits for as long as its plugin does. Our choice.
 */
export const CHECK_MS = 30_000;
/**
 * One that takes longer than this goes on without a place. Our choice: a bucket that is well
 * answers within a tenth of it.
 */
export const YOUNG_MS = 2000;
/** Of one check, where the service may say otherwise a moment later. Our choice. */
const TRIES_MAX = 3;
const PAUSE_MS = 400;
/**
 * Checks at once of locations that answered soon the last time, or are new. Our choice: 1,000
 * locations within some seconds.
 */
const QUICK_AT_ONCE = 32;
/** The same of those that did not. */
const SLOW_AT_ONCE = 8;

/**
 * Checks of locations, none of which delays the others: a check holds its place for two seconds at
 * most, and a location that needed longer is checked in other places from then on. So no more hang
 * at once than can begin within the time that one may take.
 */
export class LocationChecks {
  readonly #options: LocationStoreOptions;
  readonly #quick: Limiter = createLimiter(QUICK_AT_ONCE);
  readonly #slow: Limiter = createLimiter(SLOW_AT_ONCE);
  readonly #slowKeys = new Set<string>();
  /** Checks that nothing could end, such as of a directory on a server that is away. */
  readonly #left = new Set<string>();

  constructor(options: LocationStoreOptions) {
    this.#options = options;
  }

  /** Rejects with what is wrong with the location; `LOCATION_SILENT` where it does not answer. */
  check(key: string, location: BackupStorageLocation, signal: AbortSignal): Promise<void> {
    const places = this.#slowKeys.has(key) ? this.#slow : this.#quick;
    const ended = Promise.withResolvers<undefined>();
    const begun = places.run(async () => {
      const work = this.#check(key, location, signal);
      // Settled by its own time-out at the latest.
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
        // What ended with the abort says so in its own words.
        throw own.signal.aborted ? own.signal.reason : error;
      } finally {
        clearTimeout(timer);
      }
    });
  }

  /**
   * A busy service refuses one request of many. Without another try every backup that begins until
   * the next check would fail for good.
   */
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
      // Waits for nothing that hangs: its requests end with the signal.
      await storage.close();
    }
  }
}

const silent = (text: string): CodedError =>
  new CodedError('LOCATION_SILENT', text, { retry: 'backoff' });

/** False where it takes longer. */
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
 * Whether a location can be used: its bucket answers, and nothing at its top is of somebody else.
 * An empty one can. `wantsLocks`: it is annotated with a retention, which must not be believed in
 * where nothing is locked. Throws `FOREIGN_FOLDERS` in Velero's words, `NO_OBJECT_LOCK`, and what
 * the storage throws.
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
