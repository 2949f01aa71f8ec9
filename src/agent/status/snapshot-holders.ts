import {
  BACKUP_NAME,
  BACKUPS,
  CONFIG_MAPS,
  DATA_UPLOADS,
  type KubeClient,
  type KubeObject,
  POD_VOLUME_BACKUPS,
  validLabel,
} from '../../kube/index.ts';
import { UPLOAD_TAG } from '../../mover/index.ts';
import { isFinal, type Movement } from '../movement.ts';
import { unlessRefused } from './serving-agents.ts';

const SNAPSHOT_INFO = 'velero.io/data-upload-snapshot-info';
const OPERATION_TAG = 'velero.io/async-operation-id';
const REQUESTER_TAG = 'snapshot-requester';

export interface HeldSnapshot {
  readonly id: string;
  readonly tags?: Readonly<Record<string, string>> | undefined;
}

/** The owner of a snapshot, as far as the cluster shows. */
export interface SnapshotHolder {
  /** Name of the Backup. If the Backup is gone, the value of the label. */
  readonly backup: string | undefined;
  readonly isBackupThere: boolean;
  /** The DataUpload or PodVolumeBackup of the snapshot, or a deleted DataUpload's ConfigMap. */
  readonly heldBy: string | undefined;
  /** The snapshot was not made for Velero, so no backup of this cluster uses it. */
  readonly isForeign: boolean;
}

export interface SnapshotHolders {
  readonly of: (snapshot: HeldSnapshot) => SnapshotHolder;
  /** Kinds that could not be read. Their snapshots look unused. */
  readonly unread: readonly string[];
}

/** Reads Velero's objects once. Throws `KUBE_*`, unless a kind is forbidden or missing. */
export async function loadSnapshotHolders(
  client: KubeClient,
  namespace: string,
): Promise<SnapshotHolders> {
  const labelSelector = `${SNAPSHOT_INFO}=true`;
  const [uploads, podVolumes, records, backups] = await Promise.all([
    unlessRefused(client.list(DATA_UPLOADS, { namespace })),
    unlessRefused(client.list(POD_VOLUME_BACKUPS, { namespace })),
    unlessRefused(client.list(CONFIG_MAPS, { namespace, labelSelector })),
    unlessRefused(client.list(BACKUPS, { namespace })),
  ]);
  const unread = [
    uploads ? '' : DATA_UPLOADS.kind,
    podVolumes ? '' : POD_VOLUME_BACKUPS.kind,
    records ? '' : CONFIG_MAPS.kind,
    backups ? '' : BACKUPS.kind,
  ].filter((kind) => kind !== '');
  const byLabel = new Map<string, string>();
  const byUid = new Map<string, string>();
  for (const { metadata } of backups ?? []) {
    byLabel.set(validLabel(metadata.name), metadata.name);
    byUid.set(metadata.uid, metadata.name);
  }
  const holders = new Map<string, { heldBy: string; label: string | undefined }>();
  const making = new Map<string, { heldBy: string; label: string | undefined }>();
  const hold = (id: unknown, heldBy: string, { metadata }: KubeObject): void => {
    if (typeof id !== 'string' || id === '' || holders.has(id)) return;
    holders.set(id, { heldBy, label: metadata.labels?.[BACKUP_NAME] });
  };
  const note = (movements: readonly Movement[], kind: string): void => {
    for (const movement of movements) {
      const heldBy = `${kind}/${movement.metadata.name}`;
      hold((movement.status as { snapshotID?: unknown } | undefined)?.snapshotID, heldBy, movement);
      const label = movement.metadata.labels?.[BACKUP_NAME];
      if (!isFinal(movement)) making.set(movement.metadata.uid, { heldBy, label });
    }
  };
  note(uploads ?? [], DATA_UPLOADS.kind);
  note(podVolumes ?? [], POD_VOLUME_BACKUPS.kind);
  for (const record of records ?? []) {
    hold(record.data?.snapshotID, `${CONFIG_MAPS.kind}/${record.metadata.name}`, record);
  }
  return {
    unread,
    of: ({ id, tags }) => {
      const holder = holders.get(id) ?? making.get(tags?.[UPLOAD_TAG] ?? '');
      const { label } = holder ?? {};
      // If the DataUpload is gone: the ID of its operation begins with the UID of the backup.
      const uid = /^du-([0-9a-f-]{36})\./.exec(tags?.[OPERATION_TAG] ?? '')?.[1] ?? '';
      const known = label === undefined ? byUid.get(uid) : byLabel.get(label);
      return {
        backup: known ?? label,
        isBackupThere: known !== undefined,
        heldBy: holder?.heldBy,
        isForeign: tags?.[REQUESTER_TAG] === undefined,
      };
    },
  };
}
