import { restoreJournalFolder } from '../../../archive/index.ts';
import { asError, type Clock, systemClock } from '../../../base/index.ts';
import type { Subject } from '../../../item-operations/index.ts';
import type { Restore } from '../../../kube/index.ts';
import type { Buckets } from '../../backups/contract.ts';
import { isLeft } from '../../runs/failed-run.ts';
import { removeJournals } from '../../runs/journal.ts';
import { patiently } from '../../runs/bucket-retries.ts';
import { isJournalSealed } from '../../runs/journal-tries.ts';
import { subjectOf } from '../restore-kind.ts';
import type {
  RestoreOutcome,
  RestoreRequest,
  RestoreRunner,
  RestoreSession,
  RestoreSessions,
} from './contract.ts';
import { RestoreEnding, type RunParts } from './restore-ending.ts';
import { RestoreJournal, type RestoreJournalOptions } from './restore-journal.ts';
import { RestoreLog } from './restore-log.ts';
import { RestoreRun, type RestoreRunSettings } from './restore-run.ts';
import { whileLeading } from './leadership.ts';

export interface ClusterRestoreRunnerOptions extends RestoreRunSettings {
  readonly buckets: Buckets;
  readonly sessions: RestoreSessions;
  /** Level for the logs of restores. */
  readonly logLevel: string;
  readonly logFormat: string;
  readonly clock?: Clock;
  readonly journalLimits?: RestoreJournalOptions['limits'];
}

/** Tolerance: times of the API server and of a Restore are exact to a second. */
const CLOCK_MS = 2000;

/** Restores backups into the cluster, from the bucket of their location. */
export class ClusterRestoreRunner implements RestoreRunner {
  readonly #options: ClusterRestoreRunnerOptions;
  readonly #clock: Clock;
  readonly #ending: RestoreEnding;

  constructor(options: ClusterRestoreRunnerOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#ending = new RestoreEnding(options);
  }

  async run(request: RestoreRequest): Promise<RestoreOutcome> {
    const { restore, location } = request;
    const { buckets, directory, logger, patienceMs } = this.#options;
    const { name, uid } = restore.metadata;
    const { signal, assertLeading } = whileLeading(request);
    await using opened = await patiently(() => buckets.open(location, signal, { name, uid }), {
      what: 'open the bucket of a restore',
      logger,
      signal,
      patienceMs,
    });
    const { bucket } = opened;
    const subject: Subject = { ...subjectOf(restore), location };
    let journal: RestoreJournal;
    request.onBegin?.();
    try {
      await patiently(() => this.#ending.assertNotFailed(request, { bucket, signal }), {
        what: 'look for the files of an earlier run',
        logger,
        signal,
        patienceMs,
      });
      await patiently(
        () => opened.files?.claim({ signal, assertAllowed: assertLeading }) ?? Promise.resolve(),
        { what: 'look whose files the bucket has', logger, signal, patienceMs },
      );
      journal = await RestoreJournal.open({
        bucket,
        name,
        uid,
        directory,
        assertLeading,
        logger,
        signal,
        patienceMs,
        isSealed: isJournalSealed(restore),
        clock: this.#clock,
        limits: this.#options.journalLimits,
        isSetBack: () => this.#isSetBack(restore),
      });
    } catch (error) {
      // No later run will continue these operations.
      if (!isLeft(error, request.signal)) await this.#ending.endUnread(request, subject, bucket);
      throw error;
    }
    await using opening = journal;
    const log = new RestoreLog({
      sink: journal,
      subject: { restore: `${restore.metadata.namespace ?? ''}/${name}` },
      level: this.#options.logLevel,
      format: this.#options.logFormat,
      entries: journal.entries,
      clock: this.#clock,
    });
    return await this.#make(request, {
      bucket,
      files: opened.files,
      journal: opening,
      log,
      subject,
      signal,
      assertLeading,
    });
  }

  async #make(request: RestoreRequest, parts: RunParts): Promise<RestoreOutcome> {
    const { restore } = request;
    const { journal, log, signal } = parts;
    let session: RestoreSession | undefined;
    try {
      log.info(journal.isContinued ? 'Continuing restore' : 'starting restore');
      session = await this.#options.sessions.open(restore, log.logger);
      return await new RestoreRun({ request, parts, session, settings: this.#options }).make();
    } catch (error) {
      const reason = signal.aborted ? asError(signal.reason) : error;
      // Leave everything unchanged for the next server.
      if (!isLeft(reason, request.signal))
        await this.#ending.fail(request, parts, { session, reason });
      throw reason;
    } finally {
      await session?.[Symbol.asyncDispose]();
    }
  }

  #isSetBack({ metadata }: Restore): boolean {
    const nowMs = Number(this.#options.client.clock.nowNs() / 1_000_000n);
    return nowMs < Date.parse(metadata.creationTimestamp) - CLOCK_MS;
  }

  async end(restore: Restore, location: string, signal: AbortSignal): Promise<void> {
    const { name, uid } = restore.metadata;
    await using opened = await this.#options.buckets.open(location, signal, { name, uid });
    const subject: Subject = { ...subjectOf(restore), location };
    await this.#ending.cancel(restore, subject, { bucket: opened.bucket, signal });
  }

  async forget(restore: Restore, location: string, signal: AbortSignal): Promise<void> {
    const { name, uid } = restore.metadata;
    await using opened = await this.#options.buckets.open(location, signal, { name, uid });
    await removeJournals(opened.bucket, restoreJournalFolder(name, uid), signal);
  }
}
