import { CodedError } from '../../base/index.ts';
import {
  BACKUPS,
  isOver,
  type KubeObject,
  type Resource,
  RESTORES,
  SCHEDULES,
} from '../../kube/index.ts';
import type { Session } from './session.ts';

/** Fields of Backups and Restores of Velero 1.18 that the verbs show. */
export interface Run extends KubeObject {
  readonly spec?: {
    readonly backupName?: string;
    readonly scheduleName?: string;
    readonly storageLocation?: string;
    readonly ttl?: string;
    readonly snapshotMoveData?: boolean | null;
  } & Readonly<Record<string, unknown>>;
  readonly status?: {
    readonly phase?: string;
    readonly queuePosition?: number;
    readonly startTimestamp?: string | null;
    readonly completionTimestamp?: string | null;
    readonly expiration?: string | null;
    readonly warnings?: number;
    readonly errors?: number;
    readonly failureReason?: string;
    readonly validationErrors?: readonly string[];
    readonly progress?: {
      readonly totalItems?: number;
      readonly itemsBackedUp?: number;
      readonly itemsRestored?: number;
    } | null;
    readonly volumeSnapshotsAttempted?: number;
    readonly volumeSnapshotsCompleted?: number;
    readonly csiVolumeSnapshotsAttempted?: number;
    readonly csiVolumeSnapshotsCompleted?: number;
    readonly backupItemOperationsAttempted?: number;
    readonly backupItemOperationsCompleted?: number;
    readonly backupItemOperationsFailed?: number;
    readonly restoreItemOperationsAttempted?: number;
    readonly restoreItemOperationsCompleted?: number;
    readonly restoreItemOperationsFailed?: number;
    readonly hookStatus?: {
      readonly hooksAttempted?: number;
      readonly hooksFailed?: number;
    } | null;
  };
}

/** The kind of object that a verb works on. */
export interface Noun {
  readonly word: 'backup' | 'restore' | 'schedule';
  readonly resource: Resource<KubeObject>;
  readonly missingCode: string;
}

export const BACKUP: Noun = { word: 'backup', resource: BACKUPS, missingCode: 'NO_BACKUP' };
export const RESTORE: Noun = { word: 'restore', resource: RESTORES, missingCode: 'NO_RESTORE' };
export const SCHEDULE: Noun = { word: 'schedule', resource: SCHEDULES, missingCode: 'NO_SCHEDULE' };

/** As in Velero, an empty phase is `New`. */
export const phaseOf = (object: KubeObject): string => (object as Run).status?.phase || 'New';

export const isRunOver = (object: KubeObject): boolean => isOver(phaseOf(object));

/** Processed items and their total; 0 if not known yet. */
export function itemsOf({ status }: Run): { readonly done: number; readonly total: number } {
  const { totalItems = 0, itemsBackedUp, itemsRestored } = status?.progress ?? {};
  return { done: itemsBackedUp ?? itemsRestored ?? 0, total: totalItems };
}

/** Throws `NO_BACKUP`, `NO_RESTORE` or `NO_SCHEDULE`. */
export async function findNamed(
  noun: Noun,
  name: string,
  { client, namespace, signal }: Session,
): Promise<KubeObject> {
  const found = await client.find(noun.resource, { namespace, name }, { signal });
  if (found) return found;
  throw missing(noun, name, namespace);
}

export const missing = (
  { resource, missingCode, word }: Noun,
  name: string,
  namespace: string,
): CodedError =>
  new CodedError(
    missingCode,
    `there is no ${resource.kind} ${namespace}/${name}; "longshore ${word} get" lists those that there are`,
  );
