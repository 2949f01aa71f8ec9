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
import { nameFor, placeOf } from './setting.ts';
import { OPERATION_ID } from './velero-names.ts';
import type { UploadResult } from './upload-result.ts';

/** Annotations of a Restore, for which Velero has no fields: see `InPlaceOrder`. */
const REMOVE_FIRST = 'longshore.io/remove-first';
const DELETE_EXCLUDED = 'longshore.io/delete-excluded';

/**
 * An ID begins with it where the operation brings a volume back that is there; see
 * {@link isInPlaceOperation}.
 */
const ID_PREFIX = 'dd-in-place-';

/**
 * Whether an operation of a PVC's action writes into a volume that is there, so that what uses the
 * volume must wait for its end.
 */
export const isInPlaceOperation = (operationId: string): boolean =>
  operationId.startsWith(ID_PREFIX);

export const inPlaceOperationId = ({ metadata }: PersistentVolumeClaim, restore: Restore): string =>
  validLabel(`${ID_PREFIX}${restore.metadata.uid}.${metadata.uid}`);

/**
 * `full` or `incremental`; undefined where volumes that are there are left alone. Both read the
 * whole volume and write what differs.
 */
export function inPlacePolicyOf({ spec }: Restore): 'full' | 'incremental' | undefined {
  const policy = spec.existingVolumeDataPolicy ?? '';
  return policy === 'full' || policy === 'incremental' ? policy : undefined;
}

/** What there is of a volume: the claim as the backup has it, and as it is in the cluster. */
export interface ExistingVolume {
  readonly fromBackup: PersistentVolumeClaim;
  readonly present: PersistentVolumeClaim;
  readonly result: Pick<UploadResult, 'datamover' | 'nodeOS' | 'snapshotSize'>;
  /** The volume object of each; undefined where there is none, or nobody knows. */
  readonly volumeFromBackup?: PersistentVolume | undefined;
  readonly presentVolume?: PersistentVolume | undefined;
}

/**
 * Why the data of a backup do not belong into the volume that a claim has now; undefined where
 * nothing speaks against it. Velero: pkg/util/inplace of the branch of 1.19 (another volume, too
 * small).
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

/**
 * A volume object may be deleted and made again under its name, for another volume of the storage.
 */
function sourceProblem({ volumeFromBackup, presentVolume }: ExistingVolume): string | undefined {
  if (!volumeFromBackup || !presentVolume) return undefined;
  const [then, now] = [sourceOf(volumeFromBackup), sourceOf(presentVolume)];
  if (then === now) return undefined;
  return `PersistentVolume ${presentVolume.metadata.name} is ${now}, and was ${then} when it was backed up: if that is meant, "longshore restore in-place" does it for one PVC`;
}

/**
 * Which volume of the storage it is. Of what cannot be brought back in place anyway, only the kind.
 */
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

/** The DataDownload that brings the volume back, made of the one that would fill a new one. */
export function inPlaceDownload(
  download: NewObject<DataDownload>,
  { fromBackup, present, presentVolume }: ExistingVolume,
  restore: Restore,
): NewObject<DataDownload> {
  const { metadata, spec } = download;
  return {
    metadata: {
      ...metadata,
      // Not as that of a new volume would be called: by that one a second attempt knows claims that
      // it has made.
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

/**
 * Of a volume that is to be brought back, and cannot be: for one of the reasons above, or for what
 * speaks against it.
 */
export function notInPlace(
  present: PersistentVolumeClaim,
  why: keyof typeof WHY | Error,
): CodedError {
  const text =
    why instanceof Error ? `its volume is not brought back: ${messageOf(why)}` : WHY[why];
  return new CodedError('NOT_IN_PLACE', `PVC ${placeOf(present)} is there already, and ${text}`);
}
