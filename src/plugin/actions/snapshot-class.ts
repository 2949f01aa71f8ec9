import { CodedError, lookup, messageOf } from '../../base/index.ts';
import {
  type KubeObject,
  type PersistentVolumeClaim,
  VOLUME_SNAPSHOT_CLASSES,
  type VolumeSnapshotClass,
} from '../../kube/index.ts';
import type { Backup } from '../contract.ts';
import { askOnce, patiently, type Setting } from './setting.ts';
import { DEFAULT_CLASS, SNAPSHOT_CLASS } from './velero-names.ts';
import type { PlannedBackup } from './volume-choice.ts';

/**
 * The class that snapshots of a driver are taken with: named by a rule, which must be usable, by the PVC, by the Backup, by its label, its annotation as default, or
 * the only one (Velero: pkg/util/csi/volume_snapshot.go, GetVolumeSnapshotClass). Throws `NO_SNAPSHOT_CLASS`.
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
  const { snapshotClass } = backup;
  if (snapshotClass) return namedClass(all, snapshotClass.name, driver, snapshotClass.rule);
  for (const [place, name] of namesIn(driver, pvc, backup)) {
    try {
      return namedClass(all, name, driver, place);
    } catch (error) {
      // As in Velero the next rule counts; without a word nobody would find out.
      logger.warn(
        { reason: messageOf(error) },
        'a VolumeSnapshotClass that is named cannot be used',
      );
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
  { metadata }: PersistentVolumeClaim,
  backup: Backup,
): [place: string, name: string][] {
  const ofPvc = metadata.annotations?.[SNAPSHOT_CLASS];
  const ofBackup = lookup(backup.metadata.annotations, `${SNAPSHOT_CLASS}_${driver.toLowerCase()}`);
  return [
    ...(ofPvc === undefined ? [] : [['the PVC', ofPvc] as [string, string]]),
    ...(ofBackup === undefined ? [] : [['the Backup', ofBackup] as [string, string]]),
  ];
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
