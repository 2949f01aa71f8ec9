import type { Logger } from '../../base/index.ts';
import { isOver, type KubeClient, type Restore } from '../../kube/index.ts';
import { SharedObjects, type WatchedObjects } from '../shared-objects.ts';
import { phaseOf, RESTORE_RESOURCE, UNPUBLISHED } from './restore-kind.ts';

export interface SharedRestoresOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
}

/** Restores as controllers watch them. */
export type WatchedRestores = WatchedObjects<Restore>;

/** One watch of all Restores for the controllers that need it. */
export class SharedRestores {
  readonly #objects: SharedObjects<Restore>;

  constructor(options: SharedRestoresOptions) {
    this.#objects = new SharedObjects({ ...options, resource: RESTORE_RESOURCE, trim: trimmed });
  }

  /** Why nothing is heard of Restores at present. */
  get failure(): string | undefined {
    return this.#objects.failure;
  }

  /** All Restores of the namespace; undefined where nobody follows them. */
  list(): readonly Restore[] | undefined {
    return this.#objects.list();
  }

  /** Resolves after the first list, or an abort. */
  open(signal: AbortSignal): Promise<WatchedRestores> {
    return this.#objects.open(signal);
  }
}

/** Of a Restore that is over only what tells it from others is kept, and what is counted. */
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
  // The finalizers: by one of them the files of a Restore go with it.
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
