import { CodedError, isCode, lookup } from '../../../base/index.ts';
import {
  type Backup,
  type PersistentVolumeClaim,
  VOLUME_GROUP_SNAPSHOT_CLASSES,
  type VolumeGroupSnapshotClass,
} from '../../../kube/index.ts';
import { patiently, type Setting } from '../settings.ts';
import { GROUP_CLASS, GROUP_CLASS_OF_PVC } from '../velero-names.ts';

/** A PVC of a volume group. */
export interface GroupMember {
  readonly claim: { readonly namespace?: string | undefined; readonly name: string };
  readonly volume: string;
  /** Undefined for a volume without a CSI driver. */
  readonly driver: string | undefined;
  readonly isMoved: boolean;
}

const claimText = ({ namespace = '', name }: GroupMember['claim']): string =>
  `${namespace}/${name}`;

/** Asserts that all snapshots of a group are kept, or all are moved. Throws `GROUP_WAYS`. */
export function assertSameWay(
  { claim, isMoved }: GroupMember,
  group: string,
  isFirstMoved: boolean,
): void {
  if (isMoved === isFirstMoved) return;
  const way = isMoved ? 'moved' : 'kept';
  const text = `the snapshot of PVC ${claimText(claim)} would be ${way} by its rule, and that of another PVC of volume group ${group} would not: let one rule be about all PVCs of the group, or take the group label off`;
  throw new CodedError('GROUP_WAYS', text);
}

/** Throws `GROUP_DRIVERS` if no single driver can snapshot all the volumes. */
export function driverOf(members: readonly GroupMember[]): string {
  const drivers = new Set<string>();
  for (const { claim, volume, driver } of members) {
    if (driver === undefined) {
      const text = `PV ${volume} for PVC ${claimText(claim)} is not CSI provisioned, so its group cannot be snapshotted: take the group label off the PVC`;
      throw new CodedError('GROUP_DRIVERS', text);
    }
    drivers.add(driver);
  }
  const [driver = '', ...more] = drivers;
  if (more.length === 0) return driver;
  const text = `found multiple CSI drivers in a volume group: ${[...drivers].join(', ')}`;
  throw new CodedError('GROUP_DRIVERS', text);
}

/**
 * Name of the VolumeGroupSnapshotClass for groups of a driver. The PVC or the Backup names it, or
 * it is the only class with Velero's label (Velero v1.18.3: pkg/backup/actions/csi/pvc_action.go,
 * determineVGSClass). Throws `NO_GROUP_CLASS`, and `NO_GROUP_SNAPSHOTS` if the cluster lacks the
 * CRD.
 */
export async function groupClassFor(
  driver: string,
  { metadata }: PersistentVolumeClaim,
  backup: Backup,
  { client }: Setting,
  signal: AbortSignal,
): Promise<string> {
  const named = namedGroupClass(driver, metadata.annotations?.[GROUP_CLASS_OF_PVC], backup);
  if (named) return named;
  const list = () => client.list(VOLUME_GROUP_SNAPSHOT_CLASSES, { signal });
  try {
    return chosenGroupClass(await patiently(list, signal), driver);
  } catch (cause) {
    if (!isCode(cause, 'KUBE_NOT_FOUND')) throw cause;
    throw new CodedError('NO_GROUP_SNAPSHOTS', NO_GROUP_SNAPSHOTS, { cause });
  }
}

export const NO_GROUP_SNAPSHOTS =
  'the cluster has no VolumeGroupSnapshots of version v1beta2: install the CustomResourceDefinitions and the snapshot controller with its gate CSIVolumeGroupSnapshot, or take the group label off the PVCs';

export const namedGroupClass = (
  driver: string,
  ofPvc: string | undefined,
  backup: Backup | undefined,
): string | undefined => ofPvc || lookup(backup?.metadata.annotations, `${GROUP_CLASS}_${driver}`);

/** The class if none is named. Throws `NO_GROUP_CLASS`. */
export function chosenGroupClass(all: readonly VolumeGroupSnapshotClass[], driver: string): string {
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
