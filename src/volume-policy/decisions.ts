import { isSnapshotAction, type PolicyAction } from './actions.ts';
import type { VolumeView } from './conditions.ts';
import type { PodVolumeFacts } from './facts.ts';
import { asksForFiles, OPT_IN, OPT_OUT, type PodView } from './legacy.ts';
import type { VolumePolicies } from './policies.ts';
import type { VolumeRule } from './rule.ts';

/** What decided. */
export type Because =
  | { readonly by: 'rule'; readonly rule: VolumeRule }
  /** A pod asks for a file-system backup, or keeps its volume out of it. */
  | { readonly by: 'annotation'; readonly key: string; readonly pod: string }
  | { readonly by: 'defaultVolumesToFsBackup'; readonly value: boolean; readonly pod?: string }
  | { readonly by: 'snapshotVolumes'; readonly value: boolean | undefined }
  /** No file-system backup is ever made of such a volume. */
  | { readonly by: 'source'; readonly source: string }
  | { readonly by: 'backupExcludePVC' };

export interface Decision {
  readonly yes: boolean;
  readonly because: Because;
}

/** What a backup says about volumes beside its policies. */
export interface BackupChoices {
  readonly policies: VolumePolicies | undefined;
  /** Of the Backup; only an explicit `false` counts. */
  readonly snapshotVolumes: boolean | null | undefined;
  /** Of the Backup, `defaultVolumesToFsBackup`, or the older `defaultVolumesToRestic`. */
  readonly defaultsToFiles: boolean;
  /** The Backup leaves PVCs out: then their files are not backed up with pods either. */
  readonly backupExcludePvc: boolean;
}

/** A pod that mounts the volume. */
export interface VolumeUser extends PodView {
  readonly pod: string;
}

/**
 * Whether a snapshot is taken of a volume. A rule counts more than everything else; then a pod that asks for the files; then the Backup.
 * Undefined for what cannot be decided without a volume: a PVC that has none, and that no rule is about.
 * Velero: internal/volumehelper, ShouldPerformSnapshot.
 */
export function decideSnapshot(
  choices: BackupChoices,
  volume: {
    readonly view: VolumeView;
    readonly hasPv: boolean;
    readonly users: readonly VolumeUser[];
  },
): Decision | undefined {
  const rule = choices.policies?.ruleFor(volume.view);
  if (rule) return { yes: isSnapshotAction(rule.action.type), because: { by: 'rule', rule } };
  if (!volume.hasPv) return undefined;
  const user = volume.users.find((each) => asksForFiles(each, choices.defaultsToFiles));
  if (user) return { yes: false, because: legacyBecause(user, choices.defaultsToFiles, true) };
  const value = choices.snapshotVolumes ?? undefined;
  return { yes: value !== false, because: { by: 'snapshotVolumes', value } };
}

/**
 * Whether the files of a pod's volume are backed up. Velero: internal/volumehelper, ShouldPerformFSBackup. `view` is undefined where
 * there are no policies. Undefined as in {@link decideSnapshot}.
 */
export function decideFiles(
  choices: BackupChoices,
  volume: {
    readonly facts: PodVolumeFacts;
    readonly user: VolumeUser;
    readonly view: VolumeView;
    readonly hasPv: boolean;
  },
): Decision | undefined {
  const refused = refusalOf(choices, volume.facts);
  if (refused) return refused;
  const rule = choices.policies?.ruleFor(volume.view);
  if (rule) return { yes: rule.action.type === 'fs-backup', because: { by: 'rule', rule } };
  if (choices.policies && volume.facts.claim !== undefined && !volume.hasPv) return undefined;
  const yes = asksForFiles(volume.user, choices.defaultsToFiles);
  return { yes, because: legacyBecause(volume.user, choices.defaultsToFiles, yes) };
}

/** What is decided before any policy is asked. */
export function refusalOf(
  { backupExcludePvc }: BackupChoices,
  { withoutFiles, claim }: PodVolumeFacts,
): Decision | undefined {
  if (withoutFiles !== undefined)
    return { yes: false, because: { by: 'source', source: withoutFiles } };
  if (backupExcludePvc && claim !== undefined)
    return { yes: false, because: { by: 'backupExcludePVC' } };
  return undefined;
}

function legacyBecause({ pod }: VolumeUser, defaultsToFiles: boolean, yes: boolean): Because {
  if (yes !== defaultsToFiles)
    return { by: 'annotation', key: defaultsToFiles ? OPT_OUT : OPT_IN, pod };
  return { by: 'defaultVolumesToFsBackup', value: defaultsToFiles, pod };
}

export type SnapshotWay = 'csi' | 'moved' | 'native';

/** How a snapshot is taken, or why none is. */
export type SnapshotPlan =
  { readonly way: SnapshotWay } | { readonly way: undefined; readonly reason: string };

/**
 * Which of the three ways a snapshot is taken. `snapshot` leaves it to the volume and the Backup, as Velero does; the actions that name a
 * way take that one or none.
 */
export function planSnapshot({
  action,
  isCsi,
  isKnownToSnapshotter,
  movesData,
}: {
  /** Undefined where no rule is about the volume. */
  readonly action: PolicyAction | undefined;
  readonly isCsi: boolean;
  /** Whether a VolumeSnapshotter of the backup claims the volume; undefined where nobody has asked. */
  readonly isKnownToSnapshotter: boolean | undefined;
  /** Of the Backup: `snapshotMoveData`. */
  readonly movesData: boolean;
}): SnapshotPlan {
  const native: SnapshotPlan =
    isKnownToSnapshotter === false
      ? { way: undefined, reason: 'no applicable volumesnapshotter found' }
      : { way: 'native' };
  const notCsi = { way: undefined, reason: "skipped b/c it's not a CSI volume" } as const;
  const type = action?.type;
  if (type === 'snapshot-native') return native;
  if (type === 'snapshot-csi') return isCsi ? { way: 'csi' } : notCsi;
  if (type === 'snapshot-datamover') return isCsi ? { way: 'moved' } : notCsi;
  if (!isCsi) return native;
  return { way: movesData ? 'moved' : 'csi' };
}
