import type { StoredBackup } from '../../archive/index.ts';
import {
  apiVersionOf,
  type Backup,
  BACKUP_UID,
  BACKUPS,
  isMovementOver,
  type KubeObject,
  type NewObject,
  NOT_IN_BACKUPS,
  type OwnerReference,
  type PodVolumeBackup,
  SCHEDULE_UID,
  SYNCED_SCHEDULE_UID,
  SYNCED_UID,
  validLabel,
  VELERO_GROUP,
} from '../../kube/index.ts';
import { SYNC_PENDING } from '../backups/shared-backups.ts';
import { EXPIRED_AT_SYNC } from '../expiry/failure-label.ts';

/** Label that selects the backups of a location. */
export const LOCATION_LABEL = 'velero.io/storage-location';
/** Prefix of annotations that instruct the server of one cluster. */
const OWN_PREFIX = 'longshore.io/';

/** The location of a Backup, even if it was created without a spec. */
export const locationOf = (backup: Backup): string =>
  (backup.spec as Backup['spec'] | undefined)?.storageLocation ?? '';

export interface SyncedBackupOptions {
  readonly namespace: string;
  readonly location: string;
  /** Replaces the stored phase. */
  readonly phase?: string | undefined;
  readonly owners: readonly OwnerReference[];
  /** Its PodVolumeBackups are created later. */
  readonly isPending: boolean;
  /** The backup has already expired. */
  readonly isExpired: boolean;
  /** See {@link StoredArchive.marks}. */
  readonly marks: Readonly<Record<string, string>>;
}

/**
 * The Backup for a stored backup, as in Velero (backup_sync_controller.go, v1.18.3). Its namespace
 * is the server's, and hooks are left out, because they have run. Spec and status stay, and so the
 * expiration.
 *
 * Unlike Velero it drops finalizers, because nothing in this cluster would remove them. Longshore's
 * annotations and the label of a Schedule are dropped, too. With them, a writer of the bucket could
 * instruct this server, or stop a Schedule.
 */
export function syncedBackup(
  { metadata, spec, status }: StoredBackup,
  { namespace, location, phase, owners, isPending, isExpired, marks }: SyncedBackupOptions,
): NewObject<Backup> {
  const { name, uid = '', labels, annotations } = metadata as Partial<KubeObject['metadata']>;
  const given = Object.entries(annotations ?? {}).filter(([key]) => !key.startsWith(OWN_PREFIX));
  const kept = Object.entries(labels ?? {}).filter(([key]) => key !== SCHEDULE_UID);
  const scheduleUid = labels?.[SCHEDULE_UID];
  const { expiration } = status ?? {};
  return plain({
    metadata: {
      name,
      namespace,
      labels: { ...Object.fromEntries(kept), [LOCATION_LABEL]: validLabel(location) },
      annotations: {
        ...Object.fromEntries(given),
        [SYNCED_UID]: uid,
        ...(scheduleUid !== undefined && { [SYNCED_SCHEDULE_UID]: scheduleUid }),
        ...(isExpired && { [EXPIRED_AT_SYNC]: String(expiration) }),
        ...(isPending && { [SYNC_PENDING]: 'podvolumebackups' }),
        ...marks,
      },
      ...(owners.length > 0 && { ownerReferences: [...owners] }),
    },
    spec: { ...spec, hooks: {}, storageLocation: location },
    status: { ...status, ...(phase !== undefined && { phase }) },
  }) as NewObject<Backup>;
}

/** The Schedules that a stored Backup names as its owners. */
export function scheduleOwners({ metadata }: StoredBackup): OwnerReference[] {
  const { ownerReferences } = metadata as { readonly ownerReferences?: unknown };
  const given: unknown[] = Array.isArray(ownerReferences) ? ownerReferences : [];
  return given.filter(isReference).filter(({ apiVersion, kind }) => {
    return apiVersion.startsWith(`${VELERO_GROUP}/`) && kind === 'Schedule';
  });
}

function isReference(value: unknown): value is OwnerReference {
  const { apiVersion, kind, name, uid } = (value ?? {}) as Partial<OwnerReference>;
  return [apiVersion, kind, name, uid].every((text) => typeof text === 'string');
}

/** Whether it has ended. An agent on a node of the same name would run an unfinished copy. */
export const isPodVolumeBackupOver = (stored: KubeObject): boolean => {
  const { phase } = (stored as { readonly status?: { readonly phase?: string } }).status ?? {};
  return isMovementOver(phase);
};

/** A PodVolumeBackup with the synced Backup as its owner. */
export function syncedPodVolumeBackup(
  stored: KubeObject,
  backup: KubeObject,
  location: string,
): NewObject<PodVolumeBackup> {
  const { name, labels, annotations } = stored.metadata;
  const { spec, status } = stored as PodVolumeBackup;
  const { namespace = '', uid } = backup.metadata;
  const owner: OwnerReference = {
    apiVersion: apiVersionOf(BACKUPS),
    kind: BACKUPS.kind,
    name: backup.metadata.name,
    uid,
    controller: true,
  };
  return plain({
    metadata: {
      name,
      namespace,
      labels: {
        ...labels,
        ...(labels?.[BACKUP_UID] !== undefined && { [BACKUP_UID]: uid }),
        ...NOT_IN_BACKUPS,
      },
      ...(annotations && { annotations }),
      ownerReferences: [owner],
    },
    spec: { ...spec, backupStorageLocation: location },
    status,
  }) as NewObject<PodVolumeBackup>;
}

/** Replaces numbers beyond the range of the API's own fields. */
const plain = (object: object): unknown =>
  JSON.parse(
    JSON.stringify(object, (_, value: unknown) =>
      typeof value === 'bigint' ? Number(value) : value,
    ),
  );
