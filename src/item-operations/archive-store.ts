import type { BackupArchive, RestoreArchive, StoredArchive } from '../archive/index.ts';
import { isCode } from '../base/index.ts';
import type { BackupIdentity } from '../kube/index.ts';
import {
  backupOperationSchema,
  type Operation,
  orderedRecord,
  restoreOperationSchema,
  type Subject,
} from './operation.ts';
import type { OperationStore } from './operation-map.ts';

/** The archives in the location of a backup or restore. */
export interface Archives {
  readonly backups: BackupArchive;
  readonly restores: RestoreArchive;
}

/**
 * Stores operations files in the locations of their backups and restores. `archivesOf` finds the
 * location; its answer may change with the credentials.
 */
export function archiveStore(archivesOf: (subject: Subject) => Promise<Archives>): OperationStore {
  return {
    async load(subject, signal): Promise<readonly Operation[]> {
      const { backups, restores } = await archivesOf(subject);
      const options = { signal, isSealed: subject.isSealed };
      return subject.kind === 'Backup'
        ? backups.loadItemOperations(subject.name, backupOperationSchema, options)
        : restores.loadItemOperations(subject.name, restoreOperationSchema, options);
    },
    async save(subject, operations, signal) {
      const { backups, restores } = await archivesOf(subject);
      const itemOperations = operations.map(orderedRecord);
      if (subject.kind === 'Backup') {
        await backups.update(subject.name, { itemOperations }, { signal });
      } else await restores.put(subject.name, { itemOperations }, { signal });
    },
  };
}

/**
 * Loads the identity that operation objects of a stored backup must have. If the operations file is
 * missing or damaged, only names and UIDs decide. Throws the errors of the bucket.
 */
export async function identityOfStored(
  stored: Pick<StoredArchive, 'metadata' | 'itemOperations'>,
  signal: AbortSignal,
): Promise<BackupIdentity> {
  const { name, uid = '', namespace = '' } = stored.metadata.metadata;
  const ids = new Set<string>();
  try {
    const operations = await stored.itemOperations(backupOperationSchema, { signal });
    for (const { spec } of operations) ids.add(spec.operationID);
  } catch (error) {
    if (!isCode(error, 'DAMAGED_ARCHIVE')) throw error;
  }
  return {
    name,
    uid,
    namespace: namespace === '' ? undefined : namespace,
    operationIds: ids.size === 0 ? undefined : ids,
  };
}
