import { CodedError, isCode, lookup, messageOf } from '../../base/index.ts';
import {
  type KubeClient,
  type KubeObject,
  type PersistentVolumeClaim,
  STORAGE_CLASSES,
  VOLUME_SNAPSHOT_CLASSES,
  type VolumeSnapshotClass,
} from '../../kube/index.ts';
import { ruleText, type SnapshotHindrance } from '../../volume-policy/index.ts';
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
  const ofPvc = pvc.metadata.annotations?.[SNAPSHOT_CLASS];
  return chosenClass(all, driver, { ofPvc, backup, byRule: backup.snapshotClass }, (error) => {
    // As in Velero the next rule counts; without a word nobody would find out.
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

/**
 * Why the backup cannot take the CSI snapshot of a PVC, for `policy-check`: classes are listed once,
 * and chosen as for a backup. Throws what the API server answers.
 */
export async function snapshotHindrances(
  client: Pick<KubeClient, 'list'>,
  backup: Backup | undefined,
  signal?: AbortSignal,
): Promise<SnapshotHindrance> {
  const storageClasses = await client.list(STORAGE_CLASSES, { signal });
  let snapshotClasses: VolumeSnapshotClass[] | undefined;
  try {
    snapshotClasses = await client.list(VOLUME_SNAPSHOT_CLASSES, { signal });
  } catch (error) {
    if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
  }
  return ({ storageClass, snapshotClass: ofPvc }, rule) => {
    if (storageClass === '') return 'the PVC has no storage class';
    const found = storageClasses.find(({ metadata }) => metadata.name === storageClass);
    if (!found) return `there is no StorageClass ${storageClass}`;
    if (!snapshotClasses) return 'the cluster has no VolumeSnapshotClasses';
    const name = rule?.action.parameters?.snapshotClass;
    const byRule =
      rule && typeof name === 'string' ? { name, rule: `${ruleText(rule)},` } : undefined;
    try {
      chosenClass(snapshotClasses, found.provisioner, { ofPvc, backup, byRule }, () => undefined);
      return undefined;
    } catch (error) {
      return messageOf(error);
    }
  };
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
