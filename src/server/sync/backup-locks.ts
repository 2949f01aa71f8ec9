import { extendBackupLocks } from '../../archive/index.ts';
import {
  isCode,
  type Logger,
  mapLimited,
  type Nanoseconds,
  parseGoTime,
  retryOf,
  redactAndCut,
  messageOf,
} from '../../base/index.ts';
import type { Bucket, Retention } from '../../blob/index.ts';
import { type Backup, isOver } from '../../kube/index.ts';
import { phaseOf, statusOf } from '../backups/backup-kind.ts';
import { neverBegan } from '../deletion/ownership.ts';

export interface BackupLocksOptions {
  readonly bucket: Bucket;
  /** Name of the location, for messages. */
  readonly location: string;
  readonly retention: Retention;
  /** Of the location. */
  readonly backups: Iterable<Backup>;
  readonly nowNs: Nanoseconds;
  readonly logger: Logger;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

/**
 * Backups of one look; the rest follows with the next sync. A new process extends all of them once,
 * ten thousand in an hour. Our choice.
 */
const BACKUPS_MAX = 200;
const AT_ONCE = 4;
/**
 * Where something was refused: of the half of a retention that is left then, a few times. Our
 * choice.
 */
const REFUSED_PART = 8n;
/** Where the bucket has failed. Our choice: others get their turn meanwhile. */
const FAILED_NS = 600_000_000_000n;
/**
 * A clock that goes back by less is only set right, and a lock that ends so much sooner is still
 * extended in time. Our choice.
 */
const CORRECTED_NS = 60_000_000_000n;
/** Shorter ones are not worth a request. Our choice. */
const SHORTEST_NS = 60_000_000_000n;

/**
 * What a process knows of the locks of a location's backups. A new one loses nothing: it extends
 * each of them once more.
 */
export class BackupLocks {
  /**
   * By UID, until when its files are locked, and by which time of a clock that may have been wrong.
   */
  readonly #locked = new Map<
    string,
    { readonly untilNs: Nanoseconds; readonly sinceNs: Nanoseconds }
  >();
  /** By UID, where that did not work: since when, and for how long it rests. */
  readonly #rests = new Map<string, { readonly sinceNs: Nanoseconds; readonly forNs: bigint }>();

  /**
   * Extends the locks of backups that are over and have not expired: to the end of the retention
   * from now, or to their expiration where that comes first, so that what has expired can go. One
   * without a time that can be read never expires, and is locked as long as it is there. Nothing is
   * done before half of the retention is over. What is refused is told, and tried again before the
   * other half is. Returns how many were extended. Throws `UNSUPPORTED_PUT`, `LEADERSHIP_LOST`, and
   * what passes of the bucket.
   */
  async extend(options: BackupLocksOptions): Promise<number> {
    const { bucket, location, retention, backups, nowNs, logger, assertLeading, signal } = options;
    const due: { readonly name: string; readonly uid: string; readonly untilNs: Nanoseconds }[] =
      [];
    const seen = new Set<string>();
    for (const backup of backups) {
      const { name, uid, deletionTimestamp } = backup.metadata;
      if (deletionTimestamp !== undefined || !isOver(phaseOf(backup))) continue;
      // Nothing of it is in the bucket; what has its name there is another one's.
      if (neverBegan(backup)) continue;
      const expirationNs = expirationOf(backup) ?? nowNs + retention.periodNs;
      if (expirationNs - nowNs < SHORTEST_NS) continue;
      seen.add(uid);
      const least = earlier(expirationNs, nowNs + retention.periodNs / 2n);
      if (this.#isLocked(uid, least, nowNs) || this.#isResting(uid, nowNs)) continue;
      due.push({ name, uid, untilNs: earlier(expirationNs, nowNs + retention.periodNs) });
    }
    for (const known of [this.#locked, this.#rests]) {
      for (const uid of known.keys()) if (!seen.has(uid)) known.delete(uid);
    }
    const now = due.slice(0, BACKUPS_MAX);
    await mapLimited(now, AT_ONCE, async ({ name, uid, untilNs }) => {
      try {
        await extendBackupLocks(
          bucket,
          name,
          { mode: retention.mode, periodNs: untilNs - nowNs },
          { signal, assertAllowed: assertLeading },
        );
      } catch (error) {
        signal.throwIfAborted();
        const isRefused = isCode(error, 'STORAGE_DENIED', 'STORAGE_FAILED') && !canPass(error);
        const forNs = isRefused ? retention.periodNs / REFUSED_PART : FAILED_NS;
        this.#rests.set(uid, { sinceNs: nowNs, forNs });
        if (!isRefused) throw error;
        const fields = { backup: name, location, error: redactAndCut(messageOf(error)) };
        logger.warn(fields, "the locks of a backup's files could not all be extended");
        return;
      }
      this.#locked.set(uid, { untilNs, sinceNs: nowNs });
      this.#rests.delete(uid);
    });
    return now.length;
  }

  /**
   * The service counts by its own clock: what was said by one that was ahead says nothing of how
   * long they are locked.
   */
  #isLocked(uid: string, least: Nanoseconds, nowNs: Nanoseconds): boolean {
    const { untilNs, sinceNs } = this.#locked.get(uid) ?? { untilNs: 0n, sinceNs: 0n };
    return untilNs >= least && sinceNs - nowNs < CORRECTED_NS;
  }

  /** A clock that was ahead makes it no longer. */
  #isResting(uid: string, nowNs: Nanoseconds): boolean {
    const { sinceNs, forNs } = this.#rests.get(uid) ?? { sinceNs: 0n, forNs: 0n };
    return nowNs >= sinceNs && nowNs - sinceNs < forNs;
  }
}

const canPass = (error: unknown): boolean => retryOf(error) !== 'never';
const earlier = (a: Nanoseconds, b: Nanoseconds): Nanoseconds => (a < b ? a : b);

/** Undefined where it has none, or one that nobody can read. */
function expirationOf(backup: Backup): Nanoseconds | undefined {
  const { expiration } = statusOf(backup) as { expiration?: string | null };
  if (!expiration) return undefined;
  try {
    return parseGoTime(expiration);
  } catch {
    return undefined;
  }
}
