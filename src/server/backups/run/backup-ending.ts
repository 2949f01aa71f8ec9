import {
  type BackupArchive,
  type NativeSnapshot,
  type NewBackup,
  type ScratchFile,
  TarballWriter,
} from '../../../archive/index.ts';
import {
  asError,
  type Clock,
  isCode,
  type Logger,
  messageOf,
  rfc3339Seconds,
} from '../../../base/index.ts';
import { unfreezePods } from '../../../backup/index.ts';
import { type OperationMap, orderedRecord } from '../../../item-operations/index.ts';
import type { Discovery, KubeClient } from '../../../kube/index.ts';
import {
  cancelMovements,
  cancelOperations,
  withUntold,
} from '../../operations/cancel-operations.ts';
import { endFailedRun, endingSignal } from '../../runs/failed-run.ts';
import { patientClient } from '../../runs/api-outage.ts';
import { subjectOf } from '../backup-kind.ts';
import type { ActionSession, ActionSessions, OpenBucket, RunRequest } from '../contract.ts';
import { countFields, metadataOf } from './status-after-items.ts';
import type { BackupJournal } from './journal.ts';
import { endLeftRun, isUnended, readUnfinishedRun } from './unfinished-run.ts';
import type { RunLog } from './run-log.ts';
import { unknownSnapshotText } from './unknown-snapshots.ts';

export interface BackupEndingOptions {
  readonly client: KubeClient;
  readonly discovery: Discovery;
  readonly sessions: ActionSessions;
  readonly operations: OperationMap;
  readonly directory: string;
  readonly logger: Logger;
  readonly clock: Clock;
  readonly patienceMs?: number;
}

export interface RunParts {
  readonly archive: BackupArchive;
  readonly journal: BackupJournal;
  readonly log: RunLog;
  readonly session: ActionSession | undefined;
}

/** Ends everything that a failed or canceled run has begun. */
export class BackupEnding {
  readonly #options: BackupEndingOptions;

  constructor(options: BackupEndingOptions) {
    this.#options = options;
  }

  /** Ends a run whose journal cannot be continued: cancels operations and thaws pods. */
  async endUnread(
    { backup, leaving, assertLeading, onEnded, onUntold }: RunRequest,
    bucket: OpenBucket['bucket'],
  ): Promise<void> {
    const { client, discovery, sessions, operations, logger, patienceMs } = this.#options;
    const { name } = backup.metadata;
    const signal = endingSignal(leaving);
    try {
      const left = await readUnfinishedRun({ bucket, backup, logger, signal });
      const patient = patientClient(client, { logger, signal, patienceMs, assertLeading });
      if (isUnended(left)) {
        await endLeftRun(backup, left, {
          client: patient,
          discovery: () => Promise.resolve(discovery),
          sessions,
          operations,
          logger,
          assertLeading,
          signal,
          onUntold,
        });
      }
      await cancelMovements(patient, 'Backup', backup.metadata, { logger, assertLeading, signal });
      onEnded?.();
    } catch (error) {
      if (isCode(error, 'LEADERSHIP_LOST') || leaving?.aborted === true) throw error;
      const fields = { backup: name, error: messageOf(error) };
      logger.warn(fields, 'what an earlier run of a backup has begun could not all be ended');
    }
  }

  /**
   * Cancels operations. Stores log and results, so that users see the reason. Stores snapshots, so
   * that a deletion of the backup deletes them.
   */
  async fail(
    request: RunRequest,
    parts: RunParts & { readonly snapshots: readonly NativeSnapshot[] },
    error: unknown,
  ): Promise<void> {
    const { backup, signal } = request;
    const { archive, journal, log, session } = parts;
    const { operations, logger } = this.#options;
    const { name } = backup.metadata;
    const subject = subjectOf(backup);
    // If another server continues the backup, leave it to that server.
    request.assertLeading();
    const isThawed = await this.#thaw(request, journal, log);
    tellUnknownSnapshots(journal, log, name);
    const reasonOf = (): unknown => (signal.aborted ? asError(signal.reason) : error);
    await endFailedRun({
      word: 'backup',
      name,
      reasonOf,
      request,
      logger,
      log: log.results,
      cancel: async (stopping, tell) => {
        const options = session && { asker: session.asker, signal: stopping };
        const untold = options && (await cancelOperations(operations, subject, options));
        if (untold !== undefined) tell(untold);
        const areStopped = await this.#cancelMovements(request);
        if (session && isThawed && areStopped) request.onEnded?.();
      },
      store: async (late, untold) => {
        if (isCode(error, 'BACKUP_EXISTS')) return;
        const known = await operations.get(subject, late);
        const logFile = await journal.finishLog();
        await using contents = await emptyTarball(this.#options.directory);
        const status = {
          ...countFields(log.results, known),
          failureReason: withUntold(`backup execution failed: ${messageOf(reasonOf())}`, untold),
          completionTimestamp: rfc3339Seconds(this.#options.clock.nowNs()),
        };
        const files: NewBackup = {
          log: logFile,
          contents,
          itemOperations: known.map(orderedRecord),
          volumeInfos: [],
          volumeSnapshots: parts.snapshots,
          podVolumeBackups: [],
          results: log.results.lists,
          resourceList: {},
          metadata: metadataOf(backup, 'Failed', status),
        };
        request.assertLeading();
        await archive.put(name, files, { signal: late, assertAllowed: request.assertLeading });
      },
    });
  }

  /**
   * Also cancels movements of earlier runs that the journal lacks. Returns false if a later try
   * must finish the work.
   */
  async #cancelMovements({ backup, leaving, assertLeading }: RunRequest): Promise<boolean> {
    const { client, logger, patienceMs } = this.#options;
    const signal = endingSignal(leaving);
    const patient = patientClient(client, { logger, signal, patienceMs, assertLeading });
    try {
      await cancelMovements(patient, 'Backup', backup.metadata, { logger, assertLeading, signal });
      return true;
    } catch (error) {
      if (isCode(error, 'LEADERSHIP_LOST')) throw error;
      const fields = { backup: backup.metadata.name, error: messageOf(error) };
      logger.warn(fields, 'movements of a backup that has failed could not be told to stop');
      return false;
    }
  }

  /** Thaws all pods that are still frozen, also by earlier runs. */
  async #thaw(
    { backup, leaving, assertLeading }: RunRequest,
    journal: BackupJournal,
    { results }: RunLog,
  ): Promise<boolean> {
    const { client, discovery, logger, patienceMs } = this.#options;
    const signal = endingSignal(leaving);
    const cluster = patientClient(client, { logger, signal, patienceMs, assertLeading });
    try {
      await unfreezePods(journal.owed(), backup.spec.hooks, {
        client: cluster,
        resources: discovery,
        log: results,
        assertLeading,
        signal,
        exec: (question, asked) => cluster.exec({ ...question, signal: asked }),
      });
      return true;
    } catch (error) {
      if (isCode(error, 'LEADERSHIP_LOST')) throw error;
      const fields = { backup: backup.metadata.name, error: messageOf(error) };
      logger.warn(fields, 'pods that were frozen for a backup could not all be thawed');
      return false;
    }
  }
}

/** Warns once of each snapshot with an unknown state, in the log of the run. */
export function tellUnknownSnapshots(
  journal: BackupJournal,
  { results }: RunLog,
  backup: string,
): void {
  journal.tellUnknownSnapshots((asked) => {
    const about = { resource: 'persistentvolumes', namespace: '', name: asked.pv };
    results.warn(unknownSnapshotText(backup, asked), about);
  });
}

/** A failed backup stores no items, so that nobody mistakes them for all. */
async function emptyTarball(directory: string): Promise<ScratchFile> {
  await using writer = await TarballWriter.begin(directory);
  return await writer.finish();
}
