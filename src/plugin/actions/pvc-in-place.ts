import { CodedError, lookup, messageOf, quantityBytes } from '../../base/index.ts';
import {
  type DataDownload,
  IN_PLACE_MOVER,
  inPlaceConfig,
  type NewObject,
  type PersistentVolume,
  type PersistentVolumeClaim,
  type Restore,
  SERVED_MOVERS,
  validLabel,
} from '../../kube/index.ts';
import { nameFor, placeOf } from './settings.ts';
import { OPERATION_ID } from './velero-names.ts';
import type { UploadResult } from './movements/upload-result.ts';

/** Annotations of a Restore for options without a Velero field: see `InPlaceOrder`. */
const REMOVE_FIRST = 'longshore.io/remove-first';
const DELETE_EXCLUDED = 'longshore.io/delete-excluded';

/** Prefix of operation IDs for restores into an existing volume; see {@link isInPlaceOperation}. */
const ID_PREFIX = 'dd-in-place-';

/** Whether an operation writes into an existing volume, so that its users must wait. */
export const isInPlaceOperation = (operationId: string): boolean =>
  operationId.startsWith(ID_PREFIX);

export const inPlaceOperationId = ({ metadata }: PersistentVolumeClaim, restore: Restore): string =>
  validLabel(`${ID_PREFIX}${restore.metadata.uid}.${metadata.uid}`);

/** Undefined keeps existing volumes unchanged. Both policies read all and write differences. */
export function inPlacePolicyOf({ spec }: Restore): 'full' | 'incremental' | undefined {
  const policy = spec.existingVolumeDataPolicy ?? '';
  return policy === 'full' || policy === 'incremental' ? policy : undefined;
}

/** A volume in place: the PVC from the backup and the PVC in the cluster. */
export interface ExistingVolume {
  readonly fromBackup: PersistentVolumeClaim;
  readonly present: PersistentVolumeClaim;
  readonly result: Pick<UploadResult, 'datamover' | 'nodeOS' | 'snapshotSize'>;
  /** The PV of each PVC; undefined if missing or unknown. */
  readonly volumeFromBackup?: PersistentVolume | undefined;
  readonly presentVolume?: PersistentVolume | undefined;
}

/**
 * Why the backup's data must not go into the PVC's current volume; undefined if they may. Velero:
 * pkg/util/inplace of the branch of 1.19 (another volume, too small).
 */
export function misfitOf(existing: ExistingVolume, restore: Restore): CodedError | undefined {
  const { fromBackup, present, result } = existing;
  const shown = `PVC ${placeOf(present)}`;
  const { datamover = '', nodeOS, snapshotSize = 0 } = result;
  if (!SERVED_MOVERS.has(datamover)) {
    return unusable(`the volume of ${shown} was backed up by the data mover "${datamover}"`);
  }
  if (nodeOS === 'windows') {
    return unusable(`the volume of ${shown} is one of Windows, which is not supported`);
  }
  const [then, now] = [modeOf(fromBackup), modeOf(present)];
  if (then !== now) {
    return unusable(`${shown} has the volume mode ${now}, and had ${then} when it was backed up`);
  }
  const { volumeName: before = '' } = fromBackup.spec;
  const { volumeName: after = '' } = present.spec;
  const { namespace = '' } = fromBackup.metadata;
  // A namespace may be mapped to itself.
  const isElsewhere = (lookup(restore.spec.namespaceMapping, namespace) ?? namespace) !== namespace;
  if (!isElsewhere && before !== '' && after !== '' && before !== after) {
    return unusable(
      `${shown} has the volume ${after}, and had ${before} when it was backed up: if that is meant, "longshore restore in-place" does it for one PVC`,
    );
  }
  if (!isElsewhere) {
    const problem = sourceProblem(existing);
    if (problem !== undefined) return unusable(problem);
  }
  const bytes = capacityOf(present);
  if (bytes === undefined || snapshotSize === 0) return undefined;
  if (bytes >= snapshotSize) return undefined;
  return unusable(`${shown} has ${bytes} bytes, and what was backed up of it has ${snapshotSize}`);
}

/** A PV may have been recreated with the same name for another volume of the storage. */
function sourceProblem({ volumeFromBackup, presentVolume }: ExistingVolume): string | undefined {
  if (!volumeFromBackup || !presentVolume) return undefined;
  const [then, now] = [sourceOf(volumeFromBackup), sourceOf(presentVolume)];
  if (then === now) return undefined;
  return `PersistentVolume ${presentVolume.metadata.name} is ${now}, and was ${then} when it was backed up: if that is meant, "longshore restore in-place" does it for one PVC`;
}

/** Identifies the volume in the storage. Only the kind, if it cannot be restored in place. */
function sourceOf({ spec }: PersistentVolume): string {
  const { csi, nfs } = spec;
  if (csi) return `volume ${csi.volumeHandle} of ${csi.driver}`;
  if (nfs) return `${nfs.path} of the NFS server ${nfs.server}`;
  for (const kind of ['local', 'hostPath']) {
    const { path = '' } = (lookup(spec, kind) ?? {}) as { path?: string };
    if (path !== '') return `${path} of a node`;
  }
  return 'of another kind';
}

const unusable = (text: string): CodedError => new CodedError('TARGET_UNUSABLE', text);

const modeOf = ({ spec }: PersistentVolumeClaim): string => spec.volumeMode ?? 'Filesystem';

function capacityOf({ status }: PersistentVolumeClaim): number | undefined {
  const { storage } = (status as { capacity?: { storage?: string } } | undefined)?.capacity ?? {};
  return storage === undefined ? undefined : quantityBytes(storage);
}

/** Turns the DataDownload of a new volume into one for the existing volume. */
export function inPlaceDownload(
  download: NewObject<DataDownload>,
  { fromBackup, present, presentVolume }: ExistingVolume,
  restore: Restore,
): NewObject<DataDownload> {
  const { metadata, spec } = download;
  return {
    metadata: {
      ...metadata,
      // Not the name of a new volume's DataDownload: a second attempt recognizes its own PVCs by
      // that name.
      name: nameFor(
        restore.metadata.name,
        restore.metadata.uid,
        fromBackup.metadata.uid,
        'in-place',
      ),
      labels: { ...metadata.labels, [OPERATION_ID]: inPlaceOperationId(fromBackup, restore) },
    },
    spec: {
      ...spec,
      datamover: IN_PLACE_MOVER,
      restoreType: inPlacePolicyOf(restore) ?? '',
      dataMoverConfig: inPlaceConfig({
        dryRun: false,
        keepExtra: restore.spec.uploaderConfig?.deleteExtraFiles !== true,
        removeFirst: restore.metadata.annotations?.[REMOVE_FIRST] === 'true',
        deleteExcluded: restore.metadata.annotations?.[DELETE_EXCLUDED] === 'true',
        claimUid: present.metadata.uid,
        volumeUid: presentVolume?.metadata.uid,
      }),
    },
  };
}

const WHY = {
  elsewhere:
    'its volume is brought back in place by a server of Longshore alone (longshore server): existingVolumeDataPolicy has no effect here',
  kept: 'the backup has a snapshot of its volume that stayed in the storage: only data that were moved can be brought back in place',
};

/** Error for a volume that cannot be restored in place: a reason above, or the given error. */
export function notInPlace(
  present: PersistentVolumeClaim,
  why: keyof typeof WHY | Error,
): CodedError {
  const text =
    why instanceof Error ? `its volume is not brought back: ${messageOf(why)}` : WHY[why];
  return new CodedError('NOT_IN_PLACE', `PVC ${placeOf(present)} is there already, and ${text}`);
}
