import type { BackupArchive, RestoreArchive } from '../archive/index.ts';
import {
  backupOperationSchema,
  type Operation,
  orderedRecord,
  restoreOperationSchema,
  type Subject,
} from './operation.ts';
import type { OperationStore } from './operation-map.ts';

/** The archives of the location that a backup or restore is in. */
export interface Archives {
  readonly backups: BackupArchive;
  readonly restores: RestoreArchive;
}

/** Operations files in the locations of their backups, which `archivesOf` finds; it may change its answer when credentials do. */
export function archiveStore(archivesOf: (subject: Subject) => Promise<Archives>): OperationStore {
  return {
    async load(subject, signal): Promise<readonly Operation[]> {
      const { backups, restores } = await archivesOf(subject);
      return subject.kind === 'Backup'
        ? backups.loadItemOperations(subject.name, backupOperationSchema, { signal })
        : restores.loadItemOperations(subject.name, restoreOperationSchema, { signal });
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
