import {
  type Backup,
  BACKUP_UID,
  isMovementOver,
  POD_VOLUME_BACKUPS,
  type PodVolumeBackup,
  type PodVolumeRestore,
  waitFor,
} from '../../../kube/index.ts';
import { isCode, messageOf } from '../../../base/index.ts';
import type {
  BackupItemAction,
  BackupOutput,
  CallContext,
  OperationProgress,
} from '../../contract.ts';
import { isAway, patiently, type Setting } from '../settings.ts';
import { SharedLook } from './shared-reads.ts';

/** Velero's cancel returns at once, although the work may continue. Our choice. */
const CANCEL_MS = 60_000;

/**
 * Answers for PodVolumeBackups that our server creates as operations of a backup; their names are
 * the operation IDs. Never begins one, because it applies to no item. Also part of the plugin, so
 * that a Velero server can finish such a backup.
 */
export class PodVolumeOperation implements BackupItemAction {
  readonly #setting: Setting;
  readonly #look: SharedLook<OperationProgress>;

  constructor(setting: Setting) {
    this.#setting = setting;
    this.#look = new SharedLook(async ({ namespace = '', uid }, signal) => {
      const scope = { namespace, labelSelector: `${BACKUP_UID}=${uid}`, signal };
      const seen = await setting.client.collect(POD_VOLUME_BACKUPS, scope, (found) => [
        [found.metadata.name, progressOf(found)] as const,
      ]);
      return new Map(seen);
    });
  }

  execute(): Promise<BackupOutput> {
    return Promise.resolve({});
  }

  async progress(
    operationId: string,
    backup: Backup,
    { signal }: CallContext,
  ): Promise<OperationProgress> {
    const shared = await this.#look.answer(backup.metadata, operationId, signal);
    if (shared) return shared;
    let found: PodVolumeBackup | undefined;
    try {
      const ref = { namespace: backup.metadata.namespace, name: operationId };
      found = await this.#setting.client.find(POD_VOLUME_BACKUPS, ref, { signal });
    } catch (error) {
      if (!isAway(error)) throw error;
      const reason = messageOf(error);
      this.#setting.logger.info({ operationId, reason }, 'the progress is not known now');
      return NOTHING_KNOWN;
    }
    if (!found) {
      return {
        ...NOTHING_KNOWN,
        completed: true,
        err: 'the PodVolumeBackup of this operation was deleted',
      };
    }
    return progressOf(found);
  }

  async cancel(operationId: string, backup: Backup, { signal }: CallContext): Promise<void> {
    const { client, logger } = this.#setting;
    const ref = { namespace: backup.metadata.namespace, name: operationId };
    const found = await patiently(() => client.find(POD_VOLUME_BACKUPS, ref, { signal }), signal);
    if (!found || isMovementOver(found.status?.phase)) return;
    await patiently(
      () => client.patch(POD_VOLUME_BACKUPS, ref, { spec: { cancel: true } }, { signal }),
      signal,
    );
    const look = (now: PodVolumeBackup | undefined): true | undefined =>
      !now || isMovementOver(now.status?.phase) ? true : undefined;
    try {
      await waitFor(client, POD_VOLUME_BACKUPS, ref, look, {
        signal,
        timeoutMs: CANCEL_MS,
        awayMsMax: 0,
      });
    } catch (error) {
      if (!isCode(error, 'WAIT_TIMEOUT')) throw error;
      logger.warn({ operationId }, 'the operation was asked to end, and has not ended yet');
    }
  }
}

export const NOTHING_KNOWN: OperationProgress = Object.freeze({
  completed: false,
  err: '',
  nCompleted: 0,
  nTotal: 0,
  operationUnits: 'Bytes',
  description: '',
  started: undefined,
  updated: undefined,
});

/** `what`: `backup` or `restore`, for the texts. */
export function progressOf(
  { spec, status = {} }: PodVolumeBackup | PodVolumeRestore,
  what = 'backup',
): OperationProgress {
  const { phase = '', progress, message = '', startTimestamp, completionTimestamp } = status;
  const done = progress?.bytesDone ?? 0;
  const total = progress?.totalBytes ?? 0;
  const isDone = phase === 'Completed';
  const about = `volume ${spec.volume} of pod ${spec.pod.namespace ?? ''}/${spec.pod.name ?? ''}`;
  const errors: Partial<Record<string, string>> = {
    Failed: `pod volume ${what} failed: ${message} (${about})`,
    Canceled: `pod volume ${what} canceled: ${message} (${about})`,
  };
  return {
    completed: isMovementOver(phase),
    err: errors[phase] ?? '',
    nCompleted: isDone ? Math.max(done, total) : done,
    nTotal: isDone ? Math.max(done, total) : total,
    operationUnits: 'Bytes',
    description: phase,
    started: startTimestamp ?? undefined,
    updated: completionTimestamp ?? undefined,
  };
}
