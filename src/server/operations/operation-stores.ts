import { BackupArchive, RestoreArchive } from '../../archive/index.ts';
import { CodedError, isCode, type Logger } from '../../base/index.ts';
import { archiveStore, type OperationStore, type Subject } from '../../item-operations/index.ts';
import type { KubeClient } from '../../kube/index.ts';
import { BACKUP_RESOURCE } from '../backups/backup-kind.ts';
import type { Buckets, OpenBucket } from '../backups/contract.ts';
import type { RestoreLocations } from '../restores/locations.ts';
import { RESTORE_RESOURCE } from '../restores/restore-kind.ts';
import type { FileWriters } from '../runs/file-writers.ts';

type Open = (subject: Subject, signal: AbortSignal) => Promise<OpenBucket>;

/** Opens the bucket for each call. */
function storeIn(open: Open): OperationStore {
  const within = async <T>(
    subject: Subject,
    signal = new AbortController().signal,
    task: (store: OperationStore) => Promise<T>,
  ): Promise<T> => {
    await using opened = await open(subject, signal);
    const archives = {
      backups: new BackupArchive(opened.bucket),
      restores: new RestoreArchive(opened.bucket),
    };
    return await task(archiveStore(() => Promise.resolve(archives)));
  };
  return {
    load: (subject, signal) => within(subject, signal, (store) => store.load(subject, signal)),
    save: (subject, operations, signal) =>
      within(subject, signal, (store) => store.save(subject, operations, signal)),
  };
}

/** Operations files in the bucket of each Backup's location. */
export function backupOperationStore(
  client: Pick<KubeClient, 'find'>,
  namespace: string,
  buckets: Buckets,
): OperationStore {
  const locationOf = async ({ name, uid, location }: Subject, signal: AbortSignal) => {
    if (location !== undefined) return location;
    const backup = await client.find(BACKUP_RESOURCE, { namespace, name }, { signal });
    const { storageLocation } = backup?.spec ?? {};
    if (storageLocation && backup?.metadata.uid === uid) return storageLocation;
    const text = `Backup ${namespace}/${name}, which the operations are of, is not there any more`;
    throw new CodedError('NO_BACKUP', text);
  };
  return storeIn(async (subject, signal) =>
    buckets.open(await locationOf(subject, signal), signal),
  );
}

export interface RestoreOperationStoreOptions {
  readonly client: Pick<KubeClient, 'find'>;
  readonly namespace: string;
  readonly buckets: Buckets;
  readonly locations: RestoreLocations;
  readonly writers: FileWriters;
  readonly logger: Logger;
}

/**
 * Operations files of restores, in the location of their backup. A damaged file reads as empty;
 * `lostOperations` then counts all operations as lost.
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
  const store = storeIn(async (subject, signal) =>
    buckets.open(await locationOf(subject, signal), signal, subject),
  );
  return {
    load: async (subject, signal) => {
      try {
        return await store.load(subject, signal);
      } catch (error) {
        if (!isCode(error, 'DAMAGED_ARCHIVE')) throw error;
        const fields = { restore: subject.name, error: error.message };
        logger.warn(fields, 'the operations file of a restore is damaged');
        return [];
      }
    },
    save: async (subject, operations, signal) => {
      await writers.run(subject.uid, () => store.save(subject, operations, signal));
    },
  };
}
