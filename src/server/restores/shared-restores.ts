import { isOver, type Restore } from '../../kube/index.ts';
import { SharedObjects, type WatchPlace } from '../shared-objects.ts';
import { phaseOf, RESTORE_RESOURCE, UNPUBLISHED } from './restore-kind.ts';

/** A watch of all Restores for all controllers. */
export class SharedRestores extends SharedObjects<Restore> {
  constructor(options: WatchPlace) {
    super({ ...options, resource: RESTORE_RESOURCE, trim: trimmed });
  }
}

/** Keeps only the identity and counts of finished Restores. */
function trimmed(restore: Restore): Restore {
  const phase = phaseOf(restore);
  if (!isOver(phase)) return restore;
  const { backupName, scheduleName } = (restore.spec as Restore['spec'] | undefined) ?? {};
  const { errors, warnings, startTimestamp, completionTimestamp } = (restore.status ?? {}) as {
    readonly errors?: number;
    readonly warnings?: number;
    readonly startTimestamp?: string;
    readonly completionTimestamp?: string;
  };
  // Keep the finalizers: deletion of the files depends on them.
  const metadata = { ...restore.metadata };
  const unpublished = metadata.annotations?.[UNPUBLISHED];
  delete metadata.annotations;
  if (unpublished !== undefined) metadata.annotations = { [UNPUBLISHED]: unpublished };
  return {
    apiVersion: restore.apiVersion,
    kind: restore.kind,
    metadata,
    spec: {
      ...(backupName !== undefined && { backupName }),
      ...(scheduleName !== undefined && { scheduleName }),
    },
    status: { phase, errors, warnings, startTimestamp, completionTimestamp },
  } as Restore;
}
