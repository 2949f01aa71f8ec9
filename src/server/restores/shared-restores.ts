import type { Logger } from '../../base/index.ts';
import { isOver, type KubeClient, type Restore } from '../../kube/index.ts';
import { SharedObjects, type WatchedObjects } from '../shared-objects.ts';
import { phaseOf, RESTORE_RESOURCE, UNPUBLISHED } from './restore-kind.ts';

export interface SharedRestoresOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
}

export type WatchedRestores = WatchedObjects<Restore>;

/** A watch of all Restores for all controllers. */
export class SharedRestores {
  readonly #objects: SharedObjects<Restore>;

  constructor(options: SharedRestoresOptions) {
    this.#objects = new SharedObjects({ ...options, resource: RESTORE_RESOURCE, trim: trimmed });
  }

  /** Why the watch fails at present. */
  get failure(): string | undefined {
    return this.#objects.failure;
  }

  /** All Restores of the namespace; undefined without a watch. */
  list(): readonly Restore[] | undefined {
    return this.#objects.list();
  }

  /** Resolves after the first list, or an abort. */
  open(signal: AbortSignal): Promise<WatchedRestores> {
    return this.#objects.open(signal);
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
