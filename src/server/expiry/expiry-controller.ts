import { setTimeout as sleep } from 'node:timers/promises';
import {
  backoffMs,
  type Clock,
  isCode,
  type Logger,
  mapLimited,
  messageOf,
  type Nanoseconds,
  systemClock,
} from '../../base/index.ts';
import {
  type Backup,
  BACKUP_NAME,
  BACKUP_STORAGE_LOCATIONS,
  BACKUP_UID,
  BACKUPS,
  DELETE_BACKUP_REQUESTS,
  isPassing,
  type KubeClient,
  type KubeObject,
  type NewObject,
  NOT_IN_BACKUPS,
  validLabel,
} from '../../kube/index.ts';
import { BACKUP_RESOURCE } from '../backups/backup-kind.ts';
import type { DeletionRequest } from '../deletion/deletion-request.ts';
import type { ServerController } from '../server.ts';
import { LastLook } from './last-pass.ts';
import {
  type Expired,
  EXPIRED_AT_SYNC,
  expiredIn,
  FAILURE_LABEL,
  type FailureReason,
  failureOf,
  isNotedByWrongClock,
} from './failure-label.ts';

export interface ExpiryControllerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  /** Velero: `--garbage-collection-frequency`. */
  readonly frequencyMs: number;
  /** The clock of this machine. */
  readonly clock?: Clock;
  /** First delay after a failure. */
  readonly retryMs?: number;
}

const RETRY_MS = 30_000;
const RETRY_MS_MAX = 10 * 60_000;
/** Requests per pass, so that a night's backups are deleted over hours. Our choice. */
const REQUESTS_MAX = 500;
const MORE_MS = 60_000;
const AT_ONCE = 4;
/** Tolerance between machines without time synchronization. Our choice. */
const DIFFERENCE_NS = 300_000_000_000n;

/**
 * Requests the deletion of expired backups, like Velero's controller `gc`. A deletion is final, so
 * two clocks have to agree: the API server's and this machine's. A single clock that jumps ahead
 * deletes nothing. If both clocks are one, {@link LastLook} detects the jump.
 */
export class ExpiryController implements ServerController {
  readonly name = 'gc';
  readonly #options: ExpiryControllerOptions;
  #failure: string | undefined;
  /** Time of the last request by the Backup's UID: a failed deletion waits for its next turn. */
  readonly #askedMs = new Map<string, number>();
  readonly #lastLook: LastLook;

  constructor(options: ExpiryControllerOptions) {
    this.#options = options;
    this.#lastLook = new LastLook(options);
  }

  get failure(): string | undefined {
    return this.#failure;
  }

  async run(signal: AbortSignal, assertLeading: () => void): Promise<void> {
    const { logger, frequencyMs, retryMs = RETRY_MS } = this.#options;
    let failures = 0;
    while (!signal.aborted) {
      let restMs = frequencyMs;
      try {
        const hasMore = await this.look(signal, assertLeading);
        if (hasMore) restMs = Math.min(MORE_MS, frequencyMs);
        failures = 0;
        this.#failure = undefined;
      } catch (error) {
        if (signal.aborted || isCode(error, 'LEADERSHIP_LOST')) return;
        this.#failure = messageOf(error);
        logger.warn({ error: this.#failure }, 'expired backups could not be looked for');
        const maxMs = Math.min(frequencyMs, RETRY_MS_MAX);
        restMs = backoffMs(++failures, { firstMs: retryMs, maxMs });
      }
      await sleep(restMs, undefined, { signal }).catch(() => undefined);
    }
  }

  /** Returns whether more backups are to be requested soon. Throws errors of the API server. */
  async look(signal: AbortSignal, assertLeading: () => void): Promise<boolean> {
    const { client, namespace } = this.#options;
    // Read first: the answer brings the API server's clock.
    const pending = await this.#pending(signal);
    const nowNs = this.#nowNs();
    if ((await this.#lastLook.note(nowNs, signal, assertLeading)) !== undefined) return false;
    const recent = this.#askedLately();
    const misjudged: Backup['metadata'][] = [];
    const expired = await client.collect(BACKUP_RESOURCE, { namespace, signal }, (backup) => {
      if (isNotedByWrongClock(backup, nowNs)) misjudged.push(backup.metadata);
      return expiredIn(backup, nowNs).filter(({ uid }) => !pending.has(uid) && !recent.has(uid));
    });
    await this.#unmark(misjudged, signal, assertLeading);
    const reasons = await this.#reasons(expired, signal);
    let requests = 0;
    let done = 0;
    const failures: unknown[] = [];
    await mapLimited(expired, AT_ONCE, async (each) => {
      signal.throwIfAborted();
      const reason = each.neverBegan ? undefined : reasons.get(each.location);
      if (!reason && requests >= REQUESTS_MAX) return;
      if (!reason) requests++;
      try {
        await this.#decide(each, reason, signal, assertLeading);
        done++;
      } catch (error) {
        if (signal.aborted || isPassing(error) || isCode(error, 'LEADERSHIP_LOST')) throw error;
        // A failure with one backup must not stop the others.
        const fields = { backup: each.name, uid: each.uid, error: messageOf(error) };
        const text = 'a backup has expired, and its deletion could not be asked for';
        this.#options.logger.error(fields, text);
        failures.push(error);
      }
    });
    // If all failed, this server lacks the permission.
    const forbidden = failures.find((error) => isCode(error, 'KUBE_FORBIDDEN'));
    if (forbidden !== undefined && done === 0) throw forbidden;
    return requests >= REQUESTS_MAX;
  }

  /** Removes the annotation of the sync: its clock was ahead, and these backups expire normally. */
  async #unmark(
    misjudged: readonly Backup['metadata'][],
    signal: AbortSignal,
    assertLeading: () => void,
  ): Promise<void> {
    await mapLimited(misjudged, AT_ONCE, async (metadata) => {
      signal.throwIfAborted();
      assertLeading();
      const body = { metadata: { uid: metadata.uid, annotations: { [EXPIRED_AT_SYNC]: null } } };
      try {
        await this.#options.client.patch(BACKUPS, metadata, body, { signal });
      } catch (error) {
        if (!isCode(error, 'KUBE_NOT_FOUND', 'KUBE_CONFLICT')) throw error;
      }
    });
  }

  /** UIDs requested within half of an interval. The next full pass requests them again. */
  #askedLately(): Set<string> {
    const sinceMs = performance.now() - this.#options.frequencyMs / 2;
    for (const [uid, atMs] of this.#askedMs) if (atMs < sinceMs) this.#askedMs.delete(uid);
    return new Set(this.#askedMs.keys());
  }

  #nowNs(): Nanoseconds {
    const { client, clock = systemClock, logger } = this.#options;
    const [theirs, ours] = [client.clock.nowNs(), clock.nowNs()];
    const earlier = theirs < ours ? theirs : ours;
    const apartNs = theirs + ours - 2n * earlier;
    if (apartNs > DIFFERENCE_NS) {
      logger.warn(
        { seconds: Number(apartNs / 1_000_000_000n) },
        "the API server's clock and this machine's differ: backups expire by the one that is behind; set the clocks right",
      );
    }
    return earlier;
  }

  /** UIDs of Backups with an unanswered deletion request. */
  async #pending(signal: AbortSignal): Promise<Set<string>> {
    const { client, namespace } = this.#options;
    const uids = await client.collect(
      DELETE_BACKUP_REQUESTS,
      { namespace, signal },
      ({ metadata, status }: DeletionRequest) =>
        status?.phase === 'Processed' ? [] : [metadata.labels?.[BACKUP_UID] ?? ''],
    );
    return new Set(uids);
  }

  /** Reasons against deletions, by location. */
  async #reasons(
    expired: readonly Expired[],
    signal: AbortSignal,
  ): Promise<ReadonlyMap<string, FailureReason | undefined>> {
    const reasons = new Map<string, FailureReason | undefined>();
    for (const { location, neverBegan } of expired) {
      if (!neverBegan && !reasons.has(location))
        reasons.set(location, await this.#reasonOf(location, signal));
    }
    return reasons;
  }

  async #reasonOf(name: string, signal: AbortSignal): Promise<FailureReason | undefined> {
    const { client, namespace, logger } = this.#options;
    if (name === '') return 'BSLNotFound';
    try {
      const ref = { namespace, name };
      return failureOf(await client.find(BACKUP_STORAGE_LOCATIONS, ref, { signal }));
    } catch (error) {
      if (isPassing(error)) throw error;
      logger.error({ location: name, error: messageOf(error) }, 'a location could not be read');
      return 'BSLCannotGet';
    }
  }

  async #decide(
    expired: Expired,
    reason: FailureReason | undefined,
    signal: AbortSignal,
    assertLeading: () => void,
  ): Promise<void> {
    const { client, namespace, logger } = this.#options;
    const { name, uid, failure, location } = expired;
    try {
      if (failure !== reason) {
        assertLeading();
        const labels = { [FAILURE_LABEL]: reason ?? null };
        const body = { metadata: { uid, labels } };
        await client.patch(BACKUPS, { namespace, name }, body, { signal });
        if (reason) {
          const text = 'a backup has expired, and its location does not let it be deleted';
          logger.warn({ backup: name, location, reason }, text);
        }
      }
      if (reason) return;
      assertLeading();
      await client.create(DELETE_BACKUP_REQUESTS, requestFor(namespace, expired), { signal });
      this.#askedMs.set(uid, performance.now());
      logger.info({ backup: name, uid }, 'a backup has expired, and is to be deleted');
    } catch (error) {
      // The Backup was deleted or changed: the next pass decides.
      if (!isCode(error, 'KUBE_NOT_FOUND', 'KUBE_CONFLICT', 'KUBE_ALREADY_EXISTS')) throw error;
    }
  }
}

/** As in Velero (v1.18.3: pkg/backup/delete_helpers.go). */
const requestFor = (namespace: string, { name, uid }: Expired): NewObject<KubeObject> => ({
  metadata: {
    namespace,
    generateName: `${name}-`,
    labels: { [BACKUP_NAME]: validLabel(name), [BACKUP_UID]: uid, ...NOT_IN_BACKUPS },
  },
  spec: { backupName: name },
});
