import type { Registry } from 'prom-client';
import {
  CanceledError,
  createLimiter,
  isCode,
  type Limiter,
  messageOf,
  redactAndCut,
  untilAborted,
} from '../../base/index.ts';
import {
  type Backup,
  BACKUP_UID,
  keyOf,
  refOf,
  type Result,
  withOwnSignal,
} from '../../kube/index.ts';
import { phaseOf } from '../backups/backup-kind.ts';
import { isAbout } from '../backups/deletion-requests.ts';
import type { FileWriters } from '../runs/file-writers.ts';
import { type Lead, LeadingController } from '../leading-controller.ts';
import { WatchedKind } from '../watched-kind.ts';
import { BackgroundWork } from '../background-work.ts';
import { RequestedBackups, type RequestedBackupsOptions } from './requested-backups.ts';
import { DeletionFailures } from './deletion-failures.ts';
import { type DeletionTools, deleteBackup } from './deletion.ts';
import type { DeletionMetrics } from './deletion-metrics.ts';
import type { DeletionRequest } from './deletion-request.ts';
import { NamedSnapshots } from './snapshots-of-other-backups.ts';
import { REQUESTS, RequestWriter } from './request-writer.ts';

export interface DeletionControllerOptions
  extends DeletionTools, Pick<RequestedBackupsOptions, 'isMadeHere' | 'endingMsMax'> {
  readonly host: string;
  readonly registry?: Registry;
  readonly metrics: DeletionMetrics;
  /** Writers of a backup's files after its run. */
  readonly writers: Pick<FileWriters, 'close'>;
  /** Total time limit for retries of transient errors, per deletion. */
  readonly patienceMs?: number;
  /** Interval between two checks of a running backup. */
  readonly runningMs?: number;
}

const WORKERS = 4;
/** Parallel deletions per location. Each may have a repository open. Our choice. */
const AT_ONCE = 2;
const PATIENCE_MS = 5 * 60_000;
const RUNNING_MS = 2000;
/**
 * Time limit for one backup. Our choice: a longer deletion hangs; the next request continues it.
 */
const DELETION_MS_MAX = 6 * 3_600_000;
/** Velero: deleteBackupRequestMaxAge. */
const AGE_MS_MAX = 24 * 3_600_000;
/** Longest wait of a timer, because clocks may be set meanwhile. */
const REST_MS_MAX = 3_600_000;

const STILL_WRITTEN =
  'files of the backup are still being written, and nothing is deleted before that has ended: delete it again when its storage answers, or when the server was started anew';

/**
 * Deletes backups like Velero's backup deletion controller, one request at a time for each backup.
 * Failures are written into the request; Velero only logs them. A new leader continues the requests
 * of the old one.
 */
export class DeletionController extends LeadingController<DeletionRun> {
  readonly name = 'backup-deletion';
  readonly #options: DeletionControllerOptions;

  constructor(options: DeletionControllerOptions) {
    super(options);
    this.#options = options;
  }

  protected begin(lead: Lead): DeletionRun {
    return new DeletionRun(this.#options, lead);
  }
}

/** `errors`: why the backup still exists. `undefined` instead of a result: decide again. */
interface Ended {
  readonly backup: Backup;
  readonly errors: readonly string[];
}

/** A period of leadership. */
class DeletionRun {
  readonly #options: DeletionControllerOptions;
  readonly #lead: Lead;
  readonly #requests: WatchedKind<DeletionRequest, Ended | undefined>;
  readonly #writer: RequestWriter;
  readonly #backups: RequestedBackups;
  /** Limits by location. */
  readonly #places = new Map<string, Limiter>();
  readonly #named = new NamedSnapshots();
  /** The key of the request that is being handled, by the name of its backup. */
  readonly #busy = new Map<string, string>();

  constructor(options: DeletionControllerOptions, lead: Lead) {
    this.#options = options;
    this.#lead = lead;
    this.#writer = new RequestWriter(lead);
    this.#backups = new RequestedBackups({ ...options, lead });
    this.#requests = new WatchedKind({
      ...options,
      name: 'backup-deletion',
      workers: WORKERS,
      resource: REQUESTS,
      reconcile: (key) => this.#reconcile(key),
    });
  }

  get failure(): string | undefined {
    return this.#requests.failure;
  }

  async run(): Promise<void> {
    await this.#requests.run(this.#lead.signal, {
      onChange: (after, before) => {
        if (!after && before) this.#writer.forget(before);
        return true;
      },
    });
  }

  async #reconcile(key: string): Promise<Result | undefined> {
    const request = this.#requests.objects.get(refOf(key));
    const ended = this.#requests.work.ended(key);
    if (ended) return this.#finish(key, request, ended);
    if (this.#requests.work.isRunning(key)) return { isUnderWay: true };
    if (!request || request.metadata.deletionTimestamp !== undefined) {
      this.#free(key);
      return undefined;
    }
    if (request.status?.phase === 'Processed') return this.#age(request);
    if (this.#writer.hasAnswered(request)) return undefined;
    const name = request.spec?.backupName ?? '';
    if (name === '')
      return this.#refuse(request, 'backup deletion failed: spec.backupName is required');
    const busy = this.#busy.get(name);
    // The end of the other request wakes this request.
    if (busy !== undefined && busy !== key) return undefined;
    this.#busy.set(name, key);
    const result = await this.#take(key, request, name).catch((error: unknown) => {
      this.#writer.tellFailure(request, error);
      throw error;
    });
    if (!this.#requests.work.isRunning(key) && result?.requeueAfterMs === undefined)
      this.#free(key);
    return result;
  }

  /** Wakes other requests for the same backup. */
  #free(key: string): void {
    for (const [name, holder] of this.#busy) {
      if (holder !== key) continue;
      this.#busy.delete(name);
      for (const { metadata, spec } of this.#requests.objects.list()) {
        if (spec?.backupName === name) this.#requests.look(keyOf(metadata));
      }
    }
  }

  /** Removes a processed request at once if the backup is deleted; with errors after a day. */
  async #age({ metadata, status }: DeletionRequest): Promise<Result | undefined> {
    const hasErrors = (status?.errors ?? []).length > 0;
    const nowMs = Number(this.#options.client.clock.nowNs() / 1_000_000n);
    const leftMs = (Date.parse(metadata.creationTimestamp) || 0) + AGE_MS_MAX - nowMs;
    if (hasErrors && leftMs > 0) return { requeueAfterMs: Math.min(leftMs, REST_MS_MAX) };
    await this.#writer.remove(metadata);
    return undefined;
  }

  async #refuse(request: DeletionRequest, error: string): Promise<undefined> {
    await this.#writer.refuse(request, error);
    return undefined;
  }

  /** Begins the deletion, or writes the reason for a refusal or a wait. */
  async #take(key: string, request: DeletionRequest, name: string): Promise<Result | undefined> {
    const { runningMs = RUNNING_MS } = this.#options;
    const found = await this.#backups.find(name);
    const noted = request.metadata.labels?.[BACKUP_UID] ?? '';
    const isOther = found !== undefined && !isAbout(request, found);
    if (!found || isOther) {
      // A server began to delete this backup, and it is gone. Only the answer is missing.
      if (request.status?.phase !== 'InProgress' || noted === '') {
        return this.#refuse(request, 'backup deletion failed: backup not found');
      }
      await this.#succeed(request, name, noted);
      return undefined;
    }
    // Only now: requests for an earlier Backup of this name must not remove newer requests.
    await this.#removeOthers(request, name);
    const standing = await this.#backups.standingOf(found);
    if (standing.kind === 'refused') return this.#refuse(request, standing.error);
    await this.#writer.claim(request, found);
    if (standing.kind === 'running') {
      if (standing.isCancelable) await this.#backups.cancel(found);
      const text = `the backup is in phase ${phaseOf(found)}: it is deleted when it is over`;
      this.#writer.tell(request, text);
      return { requeueAfterMs: runningMs };
    }
    // The journal lists the leftovers of the run, and is deleted with the files. So wait.
    if (await this.#backups.isEnding(found)) {
      const text = 'what its run has left is still being ended: it is deleted after that';
      this.#writer.tell(request, text);
      return { requeueAfterMs: runningMs };
    }
    this.#begin(key, request, found);
    return { isUnderWay: true };
  }

  /** Removes the other requests for this backup, also answered ones. */
  async #removeOthers(request: DeletionRequest, name: string): Promise<void> {
    for (const { metadata, spec } of this.#requests.objects.list()) {
      if (spec?.backupName !== name || metadata.uid === request.metadata.uid) continue;
      await this.#writer.remove(metadata);
    }
  }

  /** Limits are per location: a hanging location delays only its own backups. */
  #begin(key: string, request: DeletionRequest, backup: Backup): void {
    const location = backup.spec.storageLocation ?? '';
    const places = this.#places.get(location) ?? createLimiter(AT_ONCE);
    this.#places.set(location, places);
    this.#requests.work.begin(key, places, () => this.#deleteAtItsTurn(request, backup));
  }

  /**
   * The deletion may have waited in the queue for hours, and a user may have started a restore. So
   * everything is read again. A changed Backup or request is not deleted.
   */
  async #deleteAtItsTurn(request: DeletionRequest, taken: Backup): Promise<Ended | undefined> {
    const { metrics, writers, logger } = this.#options;
    const backup = await this.#backups.find(taken.metadata.name);
    const asked = this.#requests.objects.get(request.metadata);
    const isSame =
      asked?.metadata.uid === request.metadata.uid &&
      backup?.metadata.uid === taken.metadata.uid &&
      (await this.#backups.standingOf(backup)).kind === 'free';
    if (!isSame) return undefined;
    const marked = await this.#backups.markDeleting(backup);
    const { name, uid } = marked.metadata;
    metrics.count('attempt', marked);
    logger.info({ backup: name, uid }, 'deleting a backup');
    // Also for a completed backup: files stored after its deletion would look like a backup.
    if (!(await writers.close(uid))) return { backup: marked, errors: [STILL_WRITTEN] };
    return this.#delete(request, marked);
  }

  async #delete(request: DeletionRequest, backup: Backup): Promise<Ended> {
    const { logger, patienceMs = PATIENCE_MS } = this.#options;
    const { name } = backup.metadata;
    return withOwnSignal(this.#lead.signal, async (own) => {
      const late = new CanceledError('timeout');
      const timer = setTimeout(() => {
        own.abort(late);
      }, DELETION_MS_MAX);
      const note = this.#writer.newNote(request);
      const attempts = new DeletionFailures({
        logger,
        backup: name,
        signal: own.signal,
        patienceMs,
        onWaiting: (text) => {
          note.tell(text);
        },
      });
      const task = deleteBackup({
        ...this.#options,
        backup,
        attempts,
        signal: own.signal,
        assertLeading: this.#lead.assertLeading,
        known: this.#named,
        onGivenUp: (text) => {
          logger.error({ backup: name, uid: backup.metadata.uid }, `deletion: given up: ${text}`);
          this.#requests.events.record(backup, 'NotAllDeleted', text, 'Warning');
        },
      });
      try {
        await untilAborted(own.signal, task);
        own.signal.throwIfAborted();
        return { backup, errors: await task };
      } catch (error) {
        const isLate = own.signal.reason === late && !this.#lead.signal.aborted;
        if (!isLate && (this.#lead.signal.aborted || isCode(error, 'LEADERSHIP_LOST'))) throw error;
        const text = isLate
          ? `the deletion has not ended within ${DELETION_MS_MAX / 3_600_000} hours, and was given up; delete the backup again when its storage answers`
          : `error deleting backup ${name}: ${redactAndCut(messageOf(error))}`;
        return { backup, errors: [...attempts.take(), text] };
      } finally {
        clearTimeout(timer);
        // The answer must be written after the last note.
        await untilAborted(this.#lead.signal, note.told());
      }
    });
  }

  async #finish(
    key: string,
    request: DeletionRequest | undefined,
    ended: NonNullable<ReturnType<BackgroundWork<Ended | undefined>['ended']>>,
  ): Promise<Result | undefined> {
    if ('error' in ended) {
      this.#requests.work.forget(key);
      this.#free(key);
      if (request) this.#writer.tellFailure(request, ended.error);
      throw ended.error;
    }
    if (!ended.result) {
      this.#requests.work.forget(key);
      return { requeueAfterMs: 0 };
    }
    const { backup, errors } = ended.result;
    const { name, uid } = backup.metadata;
    const { logger, metrics } = this.#options;
    if (errors.length === 0) {
      await this.#succeed(request, name, uid);
      logger.info({ backup: name, uid }, 'a backup is deleted');
    } else {
      if (request) await this.#writer.fail(request, errors);
      logger.error({ backup: name, uid, errors }, 'a backup could not be deleted as a whole');
    }
    this.#backups.forget(uid);
    metrics.count(errors.length === 0 ? 'success' : 'failure', backup);
    this.#requests.work.forget(key);
    this.#free(key);
    return undefined;
  }

  /** Removes all requests for the deleted backup. */
  async #succeed(request: DeletionRequest | undefined, name: string, uid: string): Promise<void> {
    if (request) await this.#writer.succeed(request);
    for (const { metadata, spec } of this.#requests.objects.list()) {
      if (spec?.backupName !== name) continue;
      const noted = metadata.labels?.[BACKUP_UID] ?? '';
      const isOwn = metadata.uid === request?.metadata.uid;
      if (isOwn || noted === uid) await this.#writer.remove(metadata);
    }
  }
}
