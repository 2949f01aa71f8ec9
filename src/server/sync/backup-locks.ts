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
  /** Backups of the location. */
  readonly backups: Iterable<Backup>;
  readonly nowNs: Nanoseconds;
  readonly logger: Logger;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

/** Backups per call. A new process extends all once: ten thousand take an hour. Our choice. */
const BACKUPS_MAX = 200;
const AT_ONCE = 4;
/** After a refusal: retries a few times in the remaining half of the retention. Our choice. */
const REFUSED_PART = 8n;
/** Delay after a failure of the bucket. Our choice: other backups get their turn meanwhile. */
const FAILED_NS = 600_000_000_000n;
/** A smaller step back of a clock is a correction. Locks are still extended in time. Our choice. */
const CORRECTED_NS = 60_000_000_000n;
/** Shorter locks are not worth a request. Our choice. */
const SHORTEST_NS = 60_000_000_000n;

/** Extended locks of a location's backups. A new process extends all of them once more. */
export class BackupLocks {
  /** Keyed by UID: the end of the lock, and the time of the extension by a possibly wrong clock. */
  readonly #locked = new Map<
    string,
    { readonly untilNs: Nanoseconds; readonly sinceNs: Nanoseconds }
  >();
  /** Keyed by UID, after a failure: the start and length of the delay. */
  readonly #rests = new Map<string, { readonly sinceNs: Nanoseconds; readonly forNs: bigint }>();

  /**
   * Extends the locks of finished backups that have not expired. The new end is one retention from
   * now, or the expiration if that comes first, so expired files can be deleted. A backup without a
   * readable expiration never expires, and its locks are always extended. Each lock is extended
   * after half of the retention. Refusals are logged, and retried before the other half ends.
   * Returns the number of extended backups. Throws `UNSUPPORTED_PUT`, `LEADERSHIP_LOST`, and
   * transient errors of the bucket.
   */
  async extend(options: BackupLocksOptions): Promise<number> {
    const { bucket, location, retention, backups, nowNs, logger, assertLeading, signal } = options;
    const due: { readonly name: string; readonly uid: string; readonly untilNs: Nanoseconds }[] =
      [];
    const seen = new Set<string>();
    for (const backup of backups) {
      const { name, uid, deletionTimestamp } = backup.metadata;
      if (deletionTimestamp !== undefined || !isOver(phaseOf(backup))) continue;
      // The backup has no files. Files of its name belong to another backup.
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
   * The storage service uses its own clock, so a time from a clock that was ahead proves nothing.
   */
  #isLocked(uid: string, least: Nanoseconds, nowNs: Nanoseconds): boolean {
    const { untilNs, sinceNs } = this.#locked.get(uid) ?? { untilNs: 0n, sinceNs: 0n };
    return untilNs >= least && sinceNs - nowNs < CORRECTED_NS;
  }

  /** A clock that was ahead does not prolong the delay. */
  #isResting(uid: string, nowNs: Nanoseconds): boolean {
    const { sinceNs, forNs } = this.#rests.get(uid) ?? { sinceNs: 0n, forNs: 0n };
    return nowNs >= sinceNs && nowNs - sinceNs < forNs;
  }
}

const canPass = (error: unknown): boolean => retryOf(error) !== 'never';
const earlier = (a: Nanoseconds, b: Nanoseconds): Nanoseconds => (a < b ? a : b);

/** Undefined if it has none, or an unreadable one. */
function expirationOf(backup: Backup): Nanoseconds | undefined {
  const { expiration } = statusOf(backup) as { expiration?: string | null };
  if (!expiration) return undefined;
  try {
    return parseGoTime(expiration);
  } catch {
    return undefined;
  }
}
