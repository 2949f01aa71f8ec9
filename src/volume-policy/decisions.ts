import { isSnapshotAction, type PolicyAction } from './actions.ts';
import type { VolumeView } from './conditions.ts';
import type { PodVolumeFacts } from './volume-facts.ts';
import { asksForFiles, OPT_IN, OPT_OUT, type PodView } from './pod-annotations.ts';
import type { VolumePolicies } from './policies.ts';
import { type Because, ruleText } from './decision-reason.ts';
import type { VolumeRule } from './rule.ts';
import { SKIP_REASONS } from './skipped-volumes.ts';

export interface Decision {
  readonly yes: boolean;
  readonly because: Because;
}

/** Settings of a Backup about volumes, beside its policies. */
export interface BackupChoices {
  readonly policies: VolumePolicies | undefined;
  /** From the Backup; only an explicit `false` counts. */
  readonly snapshotVolumes: boolean | null | undefined;
  /** From the Backup: `defaultVolumesToFsBackup`, or the older `defaultVolumesToRestic`. */
  readonly defaultsToFiles: boolean;
  /** The Backup excludes PVCs. Then their files are not backed up with pods either. */
  readonly backupExcludePvc: boolean;
}

export interface VolumeUser extends PodView {
  readonly pod: string;
}

/**
 * Whether to take a snapshot of a volume. A rule has priority, then a pod that requests files, then
 * the Backup. Returns undefined for a PVC without a volume and without a matching rule. Velero:
 * internal/volumehelper, ShouldPerformSnapshot.
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
 * Whether to back up the files of a pod's volume. `view` is undefined if there are no policies.
 * Returns undefined as {@link decideSnapshot} does. Velero: internal/volumehelper,
 * ShouldPerformFSBackup.
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

/** A decision that needs no policy, if any. */
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

/** `isRefused`: a rule names an impossible way, which is an error of the backup. */
export type SnapshotPlan =
  | { readonly way: SnapshotWay }
  | { readonly way: undefined; readonly reason: string; readonly isRefused: boolean };

/**
 * Chooses one of the three ways of a snapshot. `snapshot` leaves the choice to the volume and the
 * Backup, as in Velero. An action that names a way allows only that way.
 */
export function planSnapshot({
  action,
  isCsi,
  isKnownToSnapshotter,
  movesData,
  hasClaim = true,
  hasCsi = true,
}: {
  /** Undefined if no rule matches the volume. */
  readonly action: PolicyAction | undefined;
  readonly isCsi: boolean;
  /** Whether a VolumeSnapshotter of the backup claims the volume; undefined if not asked yet. */
  readonly isKnownToSnapshotter: boolean | undefined;
  /** The Backup's `snapshotMoveData`. */
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

/** Message for a refused plan. */
export const refusedText = (rule: VolumeRule, reason: string): string =>
  `${ruleText(rule)}, wants ${rule.action.type}, which cannot be done: ${reason}`;
