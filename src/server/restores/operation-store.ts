import { BackupArchive, RestoreArchive } from '../../archive/index.ts';
import { CodedError, isCode, type Logger } from '../../base/index.ts';
import { archiveStore, type OperationStore, type Subject } from '../../item-operations/index.ts';
import type { KubeClient } from '../../kube/index.ts';
import type { Buckets } from '../backups/contract.ts';
import type { FileWriters } from '../runs/file-writers.ts';
import type { RestoreLocations } from './locations.ts';
import { RESTORE_RESOURCE } from './restore-kind.ts';

export interface RestoreOperationStoreOptions {
  readonly client: Pick<KubeClient, 'find'>;
  readonly namespace: string;
  readonly buckets: Buckets;
  readonly locations: RestoreLocations;
  readonly writers: FileWriters;
  readonly logger: Logger;
}

/**
 * Operations files of restores, in the location of their backup. Opens the bucket for each call. A
 * damaged file reads as empty; `lostOperations` then counts all operations as lost.
 */
export function restoreOperationStore(options: RestoreOperationStoreOptions): OperationStore {
  const { client, namespace, buckets, locations, writers, logger } = options;
  const locationOf = async ({ name, uid, location }: Subject, signal: AbortSignal) => {
    if (location !== undefined) return location;
    const restore = await client.find(RESTORE_RESOURCE, { namespace, name }, { signal });
    if (restore?.metadata.uid === uid) return locations.of(restore, signal);
    const text = `Restore ${namespace}/${name}, which the operations are of, is not there any more`;
    throw new CodedError('NO_RESTORE', text);
  };
  const within = async <T>(
    subject: Subject,
    signal = new AbortController().signal,
    task: (store: OperationStore) => Promise<T>,
  ): Promise<T> => {
    await using opened = await buckets.open(await locationOf(subject, signal), signal, subject);
    const archives = {
      backups: new BackupArchive(opened.bucket),
      restores: new RestoreArchive(opened.bucket),
    };
    return await task(archiveStore(() => Promise.resolve(archives)));
  };
  return {
    load: (subject, signal) =>
      within(subject, signal, async (store) => {
        try {
          return await store.load(subject, signal);
        } catch (error) {
          if (!isCode(error, 'DAMAGED_ARCHIVE')) throw error;
          const fields = { restore: subject.name, error: error.message };
          logger.warn(fields, 'the operations file of a restore is damaged');
          return [];
        }
      }),
    save: async (subject, operations, signal) => {
      const save = (store: OperationStore): Promise<void> =>
        store.save(subject, operations, signal);
      await writers.run(subject.uid, () => within(subject, signal, save));
    },
  };
}
