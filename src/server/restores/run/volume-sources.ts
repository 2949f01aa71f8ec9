import type { BackupVolumeInfo, NativeSnapshot, StoredArchive } from '../../../archive/index.ts';
import {
  BACKUP_NAME,
  type BackupIdentity,
  CONFIG_MAPS,
  type DataUpload,
  isOfBackup,
  isUploadOfBackup,
  type KubeClient,
  type KubeObject,
  type PersistentVolume,
  POD_VOLUME_BACKUPS,
  type PodVolumeBackup,
  type Restore,
  UPLOADS_TYPE,
  validLabel,
} from '../../../kube/index.ts';
import type { BackedUpItems } from '../../../restore/index.ts';
import type { VolumeFacts } from '../../../restore-volumes/index.ts';

/** The data that a backup has of its volumes. */
export interface VolumeSources {
  readonly infos: readonly BackupVolumeInfo[];
  readonly natives: readonly NativeSnapshot[];
  /** Empty if the restore brings no data. Their files would replace those of existing claims. */
  readonly podVolumeBackups: readonly PodVolumeBackup[];
  /** `namespace/name` in the backup: claims with a CSI snapshot that was not moved. */
  readonly snapped: ReadonlySet<string>;
  readonly factsOf: (pv: PersistentVolume) => Promise<VolumeFacts>;
}

export interface VolumeSourcesOptions {
  readonly client: Pick<KubeClient, 'list' | 'listPage'>;
  readonly stored: StoredArchive;
  readonly backup: BackupIdentity;
  /** The Backup in the cluster. Objects of a synced backup carry its UID. */
  readonly known: KubeObject | undefined;
  readonly restore: Restore;
  readonly signal: AbortSignal;
}

const CLAIM_ANNOTATION = 'velero.io/pvc-name';
/**
 * On ConfigMaps with the result of an upload (Velero: pkg/apis/velero/v1/labels_annotations.go).
 */
const UPLOAD_LABELS = { usage: 'velero.io/resource-usage', claim: 'velero.io/pvc-namespace-name' };

/**
 * Reads the files of the backup. PodVolumeBackups also come from the cluster, but a cluster that
 * has just synced the backup may lack some. Throws `DAMAGED_ARCHIVE`, and errors of the bucket and
 * the API server.
 */
export async function loadVolumeSources(options: VolumeSourcesOptions): Promise<VolumeSources> {
  const { stored, restore, signal } = options;
  const infos = await stored.volumeInfos({ signal });
  const natives = await stored.volumeSnapshots({ signal });
  const snapshots = await stored.objects('csiVolumeSnapshots', { signal });
  const podVolumeBackups = await podVolumeBackupsOf(options);
  const infoOf = new Map(infos.map((info) => [info.pvName, info]));
  const nativeOf = new Map(natives.map((each) => [each.spec.persistentVolumeName, each]));
  const idOf = (namespace = '', name = ''): string => `${namespace}/${name}`;
  const snapped = new Set(
    snapshots.map(({ metadata, ...snapshot }) => {
      const { spec } = snapshot as { spec?: { source?: { persistentVolumeClaimName?: string } } };
      return idOf(metadata.namespace, spec?.source?.persistentVolumeClaimName);
    }),
  );
  const filed = new Set(
    podVolumeBackups
      .filter(({ status }) => status?.phase === 'Completed' && (status.snapshotID ?? '') !== '')
      .map(({ metadata, spec }) =>
        idOf(spec.pod.namespace, metadata.annotations?.[CLAIM_ANNOTATION]),
      ),
  );
  return {
    infos,
    natives,
    podVolumeBackups: restore.spec.restorePVs === false ? [] : podVolumeBackups,
    snapped,
    factsOf: async ({ metadata, spec }) => {
      const info = infoOf.get(metadata.name);
      const native = nativeOf.get(metadata.name);
      const { restorePVs } = restore.spec;
      const { namespace, name } = spec.claimRef ?? {};
      // Without a volume info, the files of the backup decide.
      const isAsked = info === undefined && name !== undefined;
      const claim = idOf(namespace, name);
      return {
        info,
        native,
        restorePVs,
        hasFileBackup: isAsked && filed.has(claim),
        hasCsiSnapshot: isAsked && snapped.has(claim),
        hasUploadResult: isAsked && (await hasUploadResult(options, `${namespace ?? ''}.${name}`)),
      };
    },
  };
}

/**
 * The volumes of a backup without volume infos: Velero before 1.13 stored none, and the file may be
 * lost. CSI snapshots, native snapshots and DataUploads name the claims.
 */
export async function volumesWithoutInfos(
  { infos, natives, snapped }: Pick<VolumeSources, 'infos' | 'natives' | 'snapped'>,
  items: Pick<BackedUpItems, 'directories' | 'names' | 'load'>,
  backup: BackupIdentity,
): Promise<BackupVolumeInfo[]> {
  if (infos.length > 0) return [];
  const found: BackupVolumeInfo[] = [];
  const add = (claim: ClaimRef | undefined, more: BackupVolumeInfo): void => {
    if (claim) found.push({ pvcNamespace: claim.namespace, pvcName: claim.name, ...more });
  };
  for (const id of snapped) {
    const [namespace = '', name = ''] = id.split('/');
    add({ namespace, name }, { backupMethod: 'CSISnapshot' });
  }
  const ofPv = { groupResource: 'persistentvolumes', version: undefined, isPreferred: true };
  for (const { spec } of natives) {
    const name = spec.persistentVolumeName ?? '';
    const bytes = await items.load({ ...ofPv, namespace: '', name });
    const pv = bytes && (parsedObject(bytes) as PersistentVolume | undefined);
    add(pv?.spec.claimRef as ClaimRef | undefined, { backupMethod: 'NativeSnapshot' });
  }
  for (const folder of items.directories()) {
    if (folder.groupResource !== UPLOADS_TYPE || folder.version !== undefined) continue;
    for (const name of items.names(folder)) {
      const bytes = await items.load({ ...folder, name });
      const upload = bytes && (parsedObject(bytes) as DataUpload | undefined);
      if (!upload || !isUploadOfBackup(upload, backup)) continue;
      const { sourceNamespace: namespace, sourcePVC } = upload.spec;
      const snapshotDataMovementInfo = { snapshotHandle: upload.status?.snapshotID ?? '' };
      add(
        { namespace, name: sourcePVC },
        { backupMethod: 'CSISnapshot', snapshotDataMoved: true, snapshotDataMovementInfo },
      );
    }
  }
  return found;
}

interface ClaimRef {
  readonly namespace: string;
  readonly name: string;
}

/** Undefined for a damaged item: the restore of the item reports it. */
function parsedObject(bytes: Buffer): KubeObject | undefined {
  try {
    return JSON.parse(bytes.toString()) as KubeObject;
  } catch {
    return undefined;
  }
}

async function podVolumeBackupsOf({
  client,
  stored,
  backup,
  known,
  restore,
  signal,
}: VolumeSourcesOptions): Promise<PodVolumeBackup[]> {
  const { namespace } = restore.metadata;
  const name = restore.spec.backupName ?? '';
  const labelSelector = `${BACKUP_NAME}=${validLabel(name)}`;
  const listed = await client.list(POD_VOLUME_BACKUPS, { namespace, labelSelector, signal });
  const uids = [backup.uid, ...(known ? [known.metadata.uid] : [])];
  const present = listed.filter((each) =>
    uids.some((uid) => isOfBackup(each, { name, uid, namespace })),
  );
  const names = new Set(present.map(({ metadata }) => metadata.name));
  const filed = await stored.objects('podVolumeBackups', { signal });
  const missing = filed.filter(
    (each) => !names.has(each.metadata.name) && isOfBackup(each, { ...backup, name }),
  );
  return [...present, ...missing.filter(isPodVolumeBackup)];
}

/** The file may come from anybody. */
function isPodVolumeBackup(object: KubeObject): object is PodVolumeBackup {
  const { spec } = object as Partial<PodVolumeBackup>;
  return typeof spec?.pod === 'object' && typeof spec.volume === 'string';
}

async function hasUploadResult(
  { client, restore, signal }: VolumeSourcesOptions,
  claim: string,
): Promise<boolean> {
  const { namespace, uid } = restore.metadata;
  const labels = [
    `${UPLOAD_LABELS.usage}=DataUpload`,
    `velero.io/restore-uid=${validLabel(uid)}`,
    `${UPLOAD_LABELS.claim}=${validLabel(claim)}`,
  ];
  const found = await client.list(CONFIG_MAPS, {
    namespace,
    labelSelector: labels.join(','),
    signal,
  });
  return found.length > 0;
}
