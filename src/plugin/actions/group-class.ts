import { CodedError, isCode, lookup } from '../../base/index.ts';
import {
  type PersistentVolume,
  type PersistentVolumeClaim,
  VOLUME_GROUP_SNAPSHOT_CLASSES,
} from '../../kube/index.ts';
import type { Backup } from '../contract.ts';
import { patiently, placeOf, type Setting } from './setting.ts';
import { GROUP_CLASS, GROUP_CLASS_OF_PVC } from './velero-names.ts';

export interface GroupMember {
  readonly claim: PersistentVolumeClaim;
  readonly volume: PersistentVolume;
}

/** Throws `GROUP_DRIVERS` for volumes that no one driver can snapshot together. */
export function driverOf(members: readonly GroupMember[]): string {
  const drivers = new Set<string>();
  for (const { claim, volume } of members) {
    const { csi } = volume.spec;
    if (!csi) {
      const text = `PV ${volume.metadata.name} for PVC ${placeOf(claim)} is not CSI provisioned, so its group cannot be snapshotted: take the group label off the PVC`;
      throw new CodedError('GROUP_DRIVERS', text);
    }
    drivers.add(csi.driver);
  }
  const [driver = '', ...more] = drivers;
  if (more.length === 0) return driver;
  const text = `found multiple CSI drivers in a volume group: ${[...drivers].join(', ')}`;
  throw new CodedError('GROUP_DRIVERS', text);
}

/**
 * Name of the VolumeGroupSnapshotClass that groups of a driver are snapshotted with: named by the PVC, by the Backup, or the only one
 * with Velero's label (Velero v1.18.3: pkg/backup/actions/csi/pvc_action.go, determineVGSClass). Throws `NO_GROUP_CLASS`, and
 * `NO_GROUP_SNAPSHOTS` where the cluster has no such kind.
 */
export async function groupClassFor(
  driver: string,
  { metadata }: PersistentVolumeClaim,
  backup: Backup,
  { client }: Setting,
  signal: AbortSignal,
): Promise<string> {
  const named =
    metadata.annotations?.[GROUP_CLASS_OF_PVC] ||
    lookup(backup.metadata.annotations, `${GROUP_CLASS}_${driver}`);
  if (named) return named;
  const list = () => client.list(VOLUME_GROUP_SNAPSHOT_CLASSES, { signal });
  let all;
  try {
    all = await patiently(list, signal);
  } catch (cause) {
    if (!isCode(cause, 'KUBE_NOT_FOUND')) throw cause;
    const text =
      'the cluster has no VolumeGroupSnapshots of version v1beta2: install the CustomResourceDefinitions and the snapshot controller with its gate CSIVolumeGroupSnapshot, or take the group label off the PVCs';
    throw new CodedError('NO_GROUP_SNAPSHOTS', text, { cause });
  }
  const own = all.filter(
    (each) => each.driver === driver && each.metadata.labels?.[GROUP_CLASS] === 'true',
  );
  const [only, ...more] = own;
  if (only && more.length === 0) return only.metadata.name;
  const text = only
    ? `multiple VolumeGroupSnapshotClasses found for driver ${driver} with label ${GROUP_CLASS}=true: ${own.map((each) => each.metadata.name).join(', ')}`
    : `no VolumeGroupSnapshotClass found for driver ${driver}: put the label ${GROUP_CLASS}=true on one`;
  throw new CodedError('NO_GROUP_CLASS', text);
}
