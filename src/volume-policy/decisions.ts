import { isSnapshotAction, type PolicyAction } from './actions.ts';
import type { VolumeView } from './conditions.ts';
import type { PodVolumeFacts } from './facts.ts';
import { asksForFiles, OPT_IN, OPT_OUT, type PodView } from './legacy.ts';
import type { VolumePolicies } from './policies.ts';
import { type Because, ruleText } from './because.ts';
import type { VolumeRule } from './rule.ts';
import { SKIP_REASONS } from './skipped-volumes.ts';

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
 * Whether a snapshot is taken of a volume. A rule counts more than everything else; then a pod that
 * asks for the files; then the Backup. Undefined for what cannot be decided without a volume: a PVC
 * that has none, and that no rule is about. Velero: internal/volumehelper, ShouldPerformSnapshot.
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
 * Whether the files of a pod's volume are backed up. Velero: internal/volumehelper,
 * ShouldPerformFSBackup. `view` is undefined where there are no policies. Undefined as in
 * {@link decideSnapshot}.
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

/**
 * How a snapshot is taken, or why none is. `isRefused`: a rule names a way that cannot be gone,
 * which is an error of the backup.
 */
export type SnapshotPlan =
  | { readonly way: SnapshotWay }
  | { readonly way: undefined; readonly reason: string; readonly isRefused: boolean };

/**
 * Which of the three ways a snapshot is taken. `snapshot` leaves it to the volume and the Backup,
 * as Velero does; the actions that name a way take that one or none.
 */
export function planSnapshot({
  action,
  isCsi,
  isKnownToSnapshotter,
  movesData,
  hasClaim = true,
  hasCsi = true,
}: {
  /** Undefined where no rule is about the volume. */
  readonly action: PolicyAction | undefined;
  readonly isCsi: boolean;
  /**
   * Whether a VolumeSnapshotter of the backup claims the volume; undefined where nobody has asked.
   */
  readonly isKnownToSnapshotter: boolean | undefined;
  /** Of the Backup: `snapshotMoveData`. */
  readonly movesData: boolean;
  /** Whether a PVC has the volume: CSI snapshots are taken of PVCs. */
  readonly hasClaim?: boolean;
  /** Whether the server takes CSI snapshots at all. */
  readonly hasCsi?: boolean;
}): SnapshotPlan {
  const type = action?.type;
  const none = (reason: string): SnapshotPlan => {
    const isRefused = type !== undefined && type !== 'snapshot';
    return { way: undefined, reason, isRefused };
  };
  const native = (): SnapshotPlan =>
    isKnownToSnapshotter === false ? none(SKIP_REASONS.noSnapshotter) : { way: 'native' };
  if (type === 'snapshot-native') return native();
  const asked =
    type === 'snapshot-csi' ? 'csi' : type === 'snapshot-datamover' ? 'moved' : undefined;
  if (!hasCsi) return asked === undefined ? native() : none(NO_CSI_FEATURE);
  if (!isCsi) return asked === undefined ? native() : none(NOT_CSI);
  if (!hasClaim) return none(NO_CLAIM);
  return { way: asked ?? (movesData ? 'moved' : 'csi') };
}

const NOT_CSI = 'the volume is of no CSI driver';
const NO_CLAIM = 'no PVC has the volume, and a CSI snapshot is taken of a PVC';
const NO_CSI_FEATURE = 'the server runs without --features=EnableCSI';

/** For a plan that is refused. */
export const refusedText = (rule: VolumeRule, reason: string): string =>
  `${ruleText(rule)}, wants ${rule.action.type}, which cannot be done: ${reason}`;
