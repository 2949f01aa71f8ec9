import { CodedError, isCode, lookup, messageOf } from '../../../base/index.ts';
import {
  type Backup,
  type KubeClient,
  type KubeObject,
  type PersistentVolumeClaim,
  STORAGE_CLASSES,
  type StorageClass,
  VOLUME_GROUP_SNAPSHOT_CLASSES,
  VOLUME_SNAPSHOT_CLASSES,
  type VolumeGroupSnapshotClass,
  type VolumeSnapshotClass,
} from '../../../kube/index.ts';
import {
  type GroupMember,
  ruleText,
  type SnapshotHindrance,
  type VolumeGroup,
  type WantedSnapshot,
} from '../../../volume-policy/index.ts';
import {
  assertSameWay,
  chosenGroupClass,
  driverOf,
  type GroupMember as PlannedMember,
  namedGroupClass,
  NO_GROUP_SNAPSHOTS,
} from '../groups/group-class.ts';
import { askOnce, patiently, type Setting } from '../settings.ts';
import { DEFAULT_CLASS, SNAPSHOT_CLASS } from '../velero-names.ts';
import type { PlannedBackup } from '../volume-choice.ts';

/**
 * The class for snapshots of a driver. A class in a rule comes first and must be usable. Next come
 * the PVC and the Backup, then the class label, the default annotation, the only class. Velero:
 * pkg/util/csi/volume_snapshot.go, GetVolumeSnapshotClass. Throws `NO_SNAPSHOT_CLASS`.
 */
export async function snapshotClassFor(
  driver: string,
  pvc: PersistentVolumeClaim,
  backup: PlannedBackup,
  setting: Setting,
  signal: AbortSignal,
): Promise<VolumeSnapshotClass> {
  const { client, logger } = setting;
  const all = await askOnce(setting, backup, 'volumesnapshotclasses', () =>
    patiently(() => client.list(VOLUME_SNAPSHOT_CLASSES, { signal }), signal),
  );
  const ofPvc = pvc.metadata.annotations?.[SNAPSHOT_CLASS];
  return chosenClass(all, driver, { ofPvc, backup, byRule: backup.snapshotClass }, (error) => {
    // As in Velero, the next source counts. The warning makes this visible.
    logger.warn({ reason: messageOf(error) }, 'a VolumeSnapshotClass that is named cannot be used');
  });
}

interface NamedClasses {
  readonly byRule?: PlannedBackup['snapshotClass'];
  readonly ofPvc: string | undefined;
  readonly backup: Backup | undefined;
}

function chosenClass(
  all: readonly VolumeSnapshotClass[],
  driver: string,
  { byRule, ofPvc, backup }: NamedClasses,
  onUnusable: (error: unknown) => void,
): VolumeSnapshotClass {
  if (byRule) return namedClass(all, byRule.name, driver, byRule.rule);
  for (const [place, name] of namesIn(driver, ofPvc, backup)) {
    try {
      return namedClass(all, name, driver, place);
    } catch (error) {
      onUnusable(error);
    }
  }
  const own = all.filter((each) => each.driver === driver);
  const only = own.length === 1 ? own[0] : undefined;
  const found =
    own.find(({ metadata }) => metadata.labels?.[SNAPSHOT_CLASS] !== undefined) ??
    own.find(({ metadata }) => metadata.annotations?.[DEFAULT_CLASS] !== undefined) ??
    only;
  if (found) return found;
  const text =
    own.length === 0
      ? `there is no VolumeSnapshotClass of driver ${driver}: make one`
      : `${own.length} VolumeSnapshotClasses have driver ${driver}, and none is chosen`;
  throw new CodedError(
    'NO_SNAPSHOT_CLASS',
    `failed to get VolumeSnapshotClass for provisioner ${driver}: ${text}; the desired one has the ${SNAPSHOT_CLASS} label or ${DEFAULT_CLASS} annotation`,
  );
}

function namesIn(
  driver: string,
  ofPvc: string | undefined,
  backup: Backup | undefined,
): [place: string, name: string][] {
  const named = `${SNAPSHOT_CLASS}_${driver.toLowerCase()}`;
  const ofBackup = lookup(backup?.metadata.annotations, named);
  return [
    ...(ofPvc === undefined ? [] : [['the PVC', ofPvc] as [string, string]]),
    ...(ofBackup === undefined ? [] : [['the Backup', ofBackup] as [string, string]]),
  ];
}

interface KnownClasses {
  readonly storage: readonly StorageClass[];
  /** Undefined if the cluster lacks the CRD. */
  readonly snapshot: readonly VolumeSnapshotClass[] | undefined;
  readonly group: readonly VolumeGroupSnapshotClass[] | undefined;
}

/**
 * Returns why the backup cannot take the CSI snapshot of a PVC, for `policy-check`. Classes are
 * listed once and chosen as in a backup. Throws API errors.
 */
export async function snapshotHindrances(
  client: Pick<KubeClient, 'list'>,
  backup: Backup | undefined,
  signal?: AbortSignal,
): Promise<SnapshotHindrance> {
  const classes: KnownClasses = {
    storage: await client.list(STORAGE_CLASSES, { signal }),
    snapshot: await unlessUnknown(client.list(VOLUME_SNAPSHOT_CLASSES, { signal })),
    group: await unlessUnknown(client.list(VOLUME_GROUP_SNAPSHOT_CLASSES, { signal })),
  };
  return (wanted, group) => {
    if (wanted.pvc.storageClass === '') return 'the PVC has no storage class';
    try {
      if (group) assertGroup(wanted, group, classes, backup);
      else assertClass(wanted, classes, backup);
      return undefined;
    } catch (error) {
      return messageOf(error);
    }
  };
}

async function unlessUnknown<T>(answer: Promise<T>): Promise<T | undefined> {
  try {
    return await answer;
  } catch (error) {
    if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
    return undefined;
  }
}

function assertClass(
  wanted: WantedSnapshot,
  { storage, snapshot }: KnownClasses,
  backup: Backup | undefined,
): void {
  const { storageClass } = wanted.pvc;
  const found = storage.find(({ metadata }) => metadata.name === storageClass);
  if (!found) {
    throw new CodedError('NO_STORAGE_CLASS', `there is no StorageClass ${storageClass}`);
  }
  assertSnapshotClass(found.provisioner, wanted, snapshot, backup);
}

function assertSnapshotClass(
  driver: string,
  { pvc, rule }: WantedSnapshot,
  classes: KnownClasses['snapshot'],
  backup: Backup | undefined,
): void {
  if (!classes) {
    throw new CodedError('NO_SNAPSHOT_CLASS', 'the cluster has no VolumeSnapshotClasses');
  }
  const name = rule?.action.parameters?.snapshotClass;
  const byRule =
    rule && typeof name === 'string' ? { name, rule: `${ruleText(rule)},` } : undefined;
  const named = { ofPvc: pvc.snapshotClass, backup, byRule };
  chosenClass(classes, driver, named, () => undefined);
}

/** Whether the backup itself requests the snapshot of this member. */
const isAsked = (member: GroupMember): member is WantedSnapshot =>
  'pvc' in member &&
  member.way !== 'native' &&
  !member.pvc.isExcluded &&
  member.pvc.storageClass !== '';

/** The first PVC by name chooses the classes. The others share its snapshot and its failure. */
function assertGroup(
  wanted: WantedSnapshot,
  { name, members }: VolumeGroup,
  { snapshot, group }: KnownClasses,
  backup: Backup | undefined,
): void {
  const isMoved = wanted.way === 'moved';
  const planned = members.map((member): PlannedMember => {
    if ('refusal' in member) throw new CodedError('WAY_REFUSED', member.refusal);
    const { pvc, pv, way } = member;
    const asked = { claim: pvc, volume: pv.name, driver: pv.csi?.driver, isMoved: way === 'moved' };
    assertSameWay(asked, name, isMoved);
    return asked;
  });
  const driver = driverOf(planned);
  const chooser = members.find((each) => isAsked(each)) ?? wanted;
  if (!group) throw new CodedError('NO_GROUP_SNAPSHOTS', NO_GROUP_SNAPSHOTS);
  const named = namedGroupClass(driver, chooser.pvc.groupClass, backup);
  if (named === undefined || named === '') chosenGroupClass(group, driver);
  else if (!group.some(({ metadata }) => metadata.name === named)) {
    throw new CodedError('NO_GROUP_CLASS', `there is no VolumeGroupSnapshotClass ${named}`);
  }
  assertSnapshotClass(driver, chooser, snapshot, backup);
}

const isSame = (a: string, b: string): boolean => a.toLowerCase() === b.toLowerCase();

function namedClass(
  all: readonly VolumeSnapshotClass[],
  name: string,
  driver: string,
  place: string,
): VolumeSnapshotClass {
  const found = all.find(({ metadata }: KubeObject) => isSame(metadata.name, name));
  if (found && isSame(found.driver, driver)) return found;
  const why = found ? `is of driver ${found.driver}, not of ${driver}` : 'is not there';
  const text = `VolumeSnapshotClass ${name}, which ${place} names, ${why}`;
  throw new CodedError('NO_SNAPSHOT_CLASS', text);
}
