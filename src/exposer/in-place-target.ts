import { CodedError } from '../base/index.ts';
import {
  type DataDownload,
  inPlaceOrderOf,
  type PersistentVolume,
  type PersistentVolumeClaim,
} from '../kube/index.ts';
import type { ClaimRef } from './claim-users.ts';

/**
 * Drivers that unregister a volume when any PersistentVolume for it is deleted whose policy is not
 * `Delete`. Its PVC could not be mounted until the driver finds the volume again, up to an hour
 * later. kubernetes-sigs/vsphere-csi-driver: pkg/syncer/metadatasyncer.go, csiPVDeleted.
 */
const FORGETFUL_DRIVERS = ['csi.vsphere.vmware.com'];

export const targetRef = ({ spec }: DataDownload): ClaimRef => ({
  namespace: spec.targetVolume.namespace,
  name: spec.targetVolume.pvc,
});

export const inUseMeanwhile = (who: string): string =>
  `${who}, and the restore was stopped: the volume may hold files or blocks of before and of the snapshot; stop what uses it, and restore it again`;

export const unusable = (text: string): CodedError => new CodedError('TARGET_UNUSABLE', text);

/** Why a claim cannot be restored in place; undefined if it can. */
export function claimProblem(
  download: DataDownload,
  claim: PersistentVolumeClaim | undefined,
): string | undefined {
  const { namespace, name } = targetRef(download);
  const shown = `PVC ${namespace}/${name}`;
  if (!claim) return `${shown} does not exist`;
  const { claimUid } = inPlaceOrderOf(download) ?? {};
  if (claimUid !== undefined && claim.metadata.uid !== claimUid) {
    return `${shown} is another one than was meant: it was deleted and made again`;
  }
  if (claim.metadata.deletionTimestamp !== undefined) return `${shown} is being deleted`;
  const phase = claim.status?.phase ?? 'Pending';
  return phase === 'Bound' ? undefined : `${shown} is ${phase}, and has no volume`;
}

/** Like {@link claimProblem}, and also checks the volume. */
export function targetProblem(
  download: DataDownload,
  claim: PersistentVolumeClaim | undefined,
  volume: PersistentVolume | undefined,
): string | undefined {
  const problem = claimProblem(download, claim);
  if (problem !== undefined || !claim) return problem;
  if (!volume) return `PersistentVolume ${claim.spec.volumeName ?? ''} does not exist`;
  const shown = `PersistentVolume ${volume.metadata.name}`;
  const { volumeUid, dryRun } = inPlaceOrderOf(download) ?? {};
  if (volumeUid !== undefined && volume.metadata.uid !== volumeUid) {
    return `${shown} is another one than was meant: it was deleted and made again`;
  }
  if (volume.spec.claimRef?.uid !== claim.metadata.uid) return `${shown} is of another PVC`;
  if (volume.metadata.deletionTimestamp !== undefined) return `${shown} is being deleted`;
  const isWriting = dryRun !== true;
  const csi = volume.spec.csi as { readOnly?: boolean } | undefined;
  const modes = (volume.spec.accessModes ?? []) as string[];
  const isReadOnly = csi?.readOnly === true || modes.every((mode) => mode === 'ReadOnlyMany');
  if (isWriting && isReadOnly) return `${shown} can only be read`;
  return sourceProblem(volume);
}

/** Accepts volumes that every node finds by their object, or that name their nodes. */
function sourceProblem({ metadata, spec }: PersistentVolume): string | undefined {
  const elsewhere = 'restore it with "longshore snapshot restore --in-place" where it is mounted';
  const { driver = '' } = (spec.csi ?? {}) as { driver?: string };
  if (FORGETFUL_DRIVERS.includes(driver)) {
    return `PersistentVolume ${metadata.name} is of ${driver}, which would forget the volume when the second object of it is deleted: ${elsewhere}`;
  }
  if (spec.csi ?? spec.nfs ?? spec.local) return undefined;
  const hasNodes = spec.nodeAffinity?.required !== undefined;
  if (spec.hostPath !== undefined && hasNodes) return undefined;
  const text = `PersistentVolume ${metadata.name} is neither of a CSI driver nor nfs, local, or a hostPath with a nodeAffinity`;
  return `${text}: ${elsewhere}`;
}
