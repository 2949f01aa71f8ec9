import { lookup } from '../base/index.ts';
import { type ActionType, isOfVelero } from './actions.ts';
import type { VolumeView } from './conditions.ts';
import type { Because } from './decision-reason.ts';
import {
  type BackupChoices,
  decideFiles,
  decideSnapshot,
  type Decision,
  planSnapshot,
  refusedText,
  type SnapshotPlan,
  type SnapshotWay,
  type VolumeUser,
} from './decisions.ts';
import {
  isBound,
  isVolumeOf,
  type PodFacts,
  type PodVolumeFacts,
  type PvcFacts,
  type PvFacts,
  veleroViewOf,
  viewOf,
} from './volume-facts.ts';
import { keyOf, type ListedVolumes } from './listed-volumes.ts';
import type { VolumeRule } from './rule.ts';
import { whyUnbound } from './volume-helper.ts';

/**
 * Result for a volume in a backup. `none`: nothing backs it up, although nothing excludes it.
 * `error`: counts as an error of the backup.
 */
export type Outcome = 'snapshot' | 'fs-backup' | 'skip' | 'custom' | 'none' | 'error';

export interface Verdict {
  readonly outcome: Outcome;
  readonly way?: SnapshotWay | undefined;
  readonly because?: Because | undefined;
  /** Why the decision has no effect, or why no decision was possible. */
  readonly problem?: string | undefined;
}

/** A PVC with its volume, a PersistentVolume without a PVC, or a volume that only a pod has. */
export interface CheckedVolume extends Verdict {
  readonly namespace: string;
  readonly pvc?: string | undefined;
  readonly pv?: string | undefined;
  /** Pods that mount it, with the volume's name in the pod. */
  readonly pods: readonly { readonly pod: string; readonly volume: string }[];
  readonly view: VolumeView;
  /** Velero 1.18's verdict, if it differs. */
  readonly velero?: Verdict | undefined;
}

export interface CheckOptions extends BackupChoices {
  readonly movesData: boolean;
  /** Whether the server takes CSI snapshots at all. */
  readonly hasCsi?: boolean;
  /** Whether the backup has a VolumeSnapshotLocation. Without one there are no native snapshots. */
  readonly hasSnapshotLocation?: boolean;
  /** The label whose value names a volume group. */
  readonly groupLabel?: string;
  /** Undefined if unknown: then every CSI snapshot counts as possible. */
  readonly hindrance?: SnapshotHindrance | undefined;
  /** Whether a namespace is in the backup. */
  readonly hasNamespace?: (namespace: string) => boolean;
}

/** A CSI snapshot that a backup needs of a PVC. */
export interface WantedSnapshot {
  readonly pvc: PvcFacts;
  readonly pv: PvFacts;
  readonly way: SnapshotWay;
  /** The rule that requests it. */
  readonly rule: VolumeRule | undefined;
}

/** A PVC of a volume group: its wanted snapshot, or the reason why its rule cannot be followed. */
export type GroupMember = WantedSnapshot | { readonly refusal: string };

/** PVCs whose snapshots are taken at the same moment, ordered by name. */
export interface VolumeGroup {
  readonly name: string;
  readonly members: readonly GroupMember[];
}

/** Returns why a CSI snapshot is impossible, which is an error of the backup. */
export type SnapshotHindrance = (
  wanted: WantedSnapshot,
  group: VolumeGroup | undefined,
) => string | undefined;

interface Mount {
  readonly pod: PodFacts;
  readonly volume: PodVolumeFacts;
}

interface Joined {
  readonly pvc?: PvcFacts | undefined;
  readonly pv?: PvFacts | undefined;
  readonly mounts: readonly Mount[];
  readonly group?: VolumeGroup | undefined;
}

/** Plans a backup of each volume, with reasons. Writes nothing. Sorted by namespace, name. */
export async function checkVolumes(
  volumes: ListedVolumes,
  options: CheckOptions,
): Promise<CheckedVolume[]> {
  const has = options.hasNamespace ?? (() => true);
  const [pvs, pvcs, pods] = [await volumes.pvs(), await volumes.pvcs(), await volumes.pods()];
  const mounts = new Map<string, Mount[]>();
  const alone: CheckedVolume[] = [];
  for (const pod of pods) {
    if (!has(pod.namespace)) continue;
    for (const volume of pod.volumes) {
      if (volume.claim === undefined) alone.push(checkPodVolume({ pod, volume }, options));
      else {
        const key = keyOf(pod.namespace, volume.claim);
        const before = mounts.get(key);
        if (before) before.push({ pod, volume });
        else mounts.set(key, [{ pod, volume }]);
      }
    }
  }
  const taken = new Set<string>();
  const joined = [...pvcs].flatMap(([key, pvc]) => {
    const found = pvc.volumeName === '' ? undefined : pvs.get(pvc.volumeName);
    const pv = found && isVolumeOf(found, pvc) ? found : undefined;
    if (pv) taken.add(pv.name);
    return has(pvc.namespace) ? [{ pvc, pv, mounts: mounts.get(key) ?? [] }] : [];
  });
  const groups = groupsOf(joined, options);
  const claims = joined.map((each) => {
    const group = groups.get(groupKey(each.pvc, options) ?? '');
    return checkJoined({ ...each, group }, options);
  });
  const free = [...pvs.values()].flatMap((pv) => {
    const isOutside = pv.claim !== undefined && !has(pv.claim.namespace);
    return taken.has(pv.name) || isOutside ? [] : [checkJoined({ pv, mounts: [] }, options)];
  });
  return [...claims, ...free, ...alone].sort((a, b) => (orderOf(a) < orderOf(b) ? -1 : 1));
}

const orderOf = ({ namespace, pvc, pv, pods }: CheckedVolume): string =>
  [namespace, pvc ?? '\uffff', pv ?? '\uffff', pods[0]?.pod ?? '', pods[0]?.volume ?? ''].join(
    '\0',
  );

/** Namespace and name of a PVC's group, or undefined. */
function groupKey({ namespace, labels }: PvcFacts, { groupLabel = '' }: CheckOptions) {
  const name = (groupLabel && lookup(labels, groupLabel)) || '';
  return name === '' ? undefined : keyOf(namespace, name);
}

/** Members are PVCs that need a snapshot, except CSI volumes left to a VolumeSnapshotter. */
function groupsOf(
  all: readonly (Joined & { readonly pvc: PvcFacts })[],
  options: CheckOptions,
): ReadonlyMap<string, VolumeGroup> {
  const groups = new Map<string, { name: string; members: GroupMember[] }>();
  const byName = [...all].sort((a, b) => (a.pvc.name < b.pvc.name ? -1 : 1));
  for (const { pvc, pv, mounts } of byName) {
    const key = groupKey(pvc, options);
    if (key === undefined || !pv || !isBound(pvc)) continue;
    const name = lookup(pvc.labels, options.groupLabel ?? '') ?? '';
    const group = groups.get(key) ?? { name, members: [] };
    groups.set(key, group);
    const users = mounts.map(userOf);
    const decision = decideSnapshot(options, { view: viewOf({ pv, pvc }), hasPv: true, users });
    if (decision?.yes !== true) continue;
    const rule = ruleOf(decision);
    const plan = planOf({ pvc, pv }, rule, options);
    if (plan.way === undefined) {
      const refusal = rule ? refusedText(rule, plan.reason) : plan.reason;
      if (plan.isRefused) group.members.push({ refusal });
    } else if (plan.way !== 'native' || !pv.csi) {
      group.members.push({ pvc, pv, way: plan.way, rule });
    }
  }
  return groups;
}

const ruleOf = ({ because }: Decision): VolumeRule | undefined =>
  because.by === 'rule' ? because.rule : undefined;

const planOf = (
  { pvc, pv }: { readonly pvc?: PvcFacts | undefined; readonly pv: PvFacts },
  rule: VolumeRule | undefined,
  { movesData, hasCsi }: CheckOptions,
  isKnownToSnapshotter?: false,
): SnapshotPlan =>
  planSnapshot({
    action: rule?.action,
    isCsi: pv.csi !== undefined,
    isKnownToSnapshotter,
    movesData,
    hasClaim: pvc !== undefined,
    ...(hasCsi !== undefined && { hasCsi }),
  });

/** Checks a volume without a PVC, such as `emptyDir`, which never gets a snapshot. */
function checkPodVolume(mount: Mount, options: CheckOptions): CheckedVolume {
  const { pod, volume } = mount;
  const view = viewOf({ podVolume: volume });
  const decision = decideFiles(options, {
    facts: volume,
    user: userOf(mount),
    view,
    hasPv: false,
  });
  return {
    namespace: pod.namespace,
    pods: [{ pod: pod.name, volume: volume.name }],
    view,
    ...verdictOnFiles(decision, [mount]),
  };
}

const userOf = ({ pod, volume }: Mount): VolumeUser => ({
  pod: pod.name,
  annotations: pod.annotations,
  volumeName: volume.name,
});

function checkJoined(joined: Joined, options: CheckOptions): CheckedVolume {
  const { pvc, pv, mounts } = joined;
  const verdict = judge(joined, options);
  const velero = judgeAsVelero(joined, options);
  return {
    namespace: pvc?.namespace ?? '',
    ...(pvc && { pvc: pvc.name }),
    ...(pv && { pv: pv.name }),
    pods: mounts.map(({ pod, volume }) => ({ pod: pod.name, volume: volume.name })),
    view: viewOf({ pv, pvc }),
    ...verdict,
    ...(!isSame(verdict, velero) && { velero }),
  };
}

const isSame = (a: Verdict, b: Verdict): boolean => a.outcome === b.outcome && a.way === b.way;

function judge(joined: Joined, options: CheckOptions): Verdict {
  const { pvc, pv, mounts } = joined;
  const view = viewOf({ pv, pvc });
  const hasPv = pv !== undefined && (!pvc || isBound(pvc));
  const files = mounts.map((mount) => ({
    mount,
    decision: decideFiles(options, { facts: mount.volume, user: userOf(mount), view, hasPv }),
  }));
  const users = mounts.map(userOf);
  return compose(joined, options, files, decideSnapshot(options, { view, hasPv, users }), 'none');
}

/** Uses Velero's three views of one volume, see `veleroViewOf`. */
function judgeAsVelero(joined: Joined, options: CheckOptions): Verdict {
  const { pvc, pv, mounts } = joined;
  const own = options.policies?.rules.find(({ action }) => !isOfVelero(action.type));
  if (own) return { outcome: 'error', problem: refusedAction(own.action.type) };
  const hasPv = pv !== undefined && (!pvc || isBound(pvc));
  const bound = hasPv ? pv : undefined;
  const files = mounts.map((mount) => {
    const view = veleroViewOf({ pv: bound, pvc, ...(!bound && { podVolume: mount.volume }) });
    const decision = decideFiles(options, {
      facts: mount.volume,
      user: userOf(mount),
      view,
      hasPv,
    });
    return { mount, decision };
  });
  const users = mounts.map(userOf);
  const whole = { view: veleroViewOf({ pv: bound, pvc }), hasPv, users };
  // Velero decides about a CSI volume at its PVC. Any other volume is decided at the PV, whose PVC
  // Velero does not look up.
  const isByPvc = pvc !== undefined && (!bound || bound.csi !== undefined);
  const atPv = { ...whole, view: veleroViewOf({ pv: bound }) };
  const decision = decideSnapshot(options, isByPvc ? whole : atPv);
  // Velero matches again, with the PVC, right before a native snapshot.
  const again = options.policies?.ruleFor(whole.view);
  const isSkipped = !isByPvc && decision?.yes === true && again?.action.type === 'skip';
  return compose(
    joined,
    options,
    files,
    isSkipped ? { yes: false, because: { by: 'rule', rule: again } } : decision,
    'error',
  );
}

const refusedAction = (type: ActionType): string =>
  `Velero 1.18 refuses the whole document because of the action ${type}`;

/** Files of an excluded PVC are still backed up with the pod that mounts it. */
function excludedVerdict(pvc: PvcFacts | undefined): Verdict | undefined {
  if (!pvc?.isExcluded) return undefined;
  return { outcome: 'skip', problem: 'the PVC has the label velero.io/exclude-from-backup=true' };
}

function compose(
  { pvc, pv, mounts, group }: Joined,
  options: CheckOptions,
  files: readonly { readonly mount: Mount; readonly decision: Decision | undefined }[],
  snapshot: Decision | undefined,
  withoutVolume: Outcome,
): Verdict {
  const chosen = files.filter(({ decision }) => decision?.yes === true);
  const byFiles =
    chosen[0] &&
    verdictOnFiles(
      chosen[0].decision,
      chosen.map(({ mount }) => mount),
    );
  // A pod comes before its PVCs: a volume with a file-system backup gets no snapshot.
  if (byFiles?.outcome === 'fs-backup') return byFiles;
  const excluded = excludedVerdict(pvc);
  if (excluded) return excluded;
  if (!snapshot) {
    const problem = pvc ? `the PVC ${whyUnbound(pvc)}` : undefined;
    return { outcome: withoutVolume, problem };
  }
  const { because } = snapshot;
  if (!snapshot.yes) {
    const type = because.by === 'rule' ? because.rule.action.type : undefined;
    if (type === 'skip' || type === 'custom') return { outcome: type, because };
    if (byFiles) return byFiles;
    if (type === 'fs-backup')
      return { outcome: 'none', because, problem: noFiles(mounts, files[0]?.decision) };
    if (because.by === 'snapshotVolumes') return { outcome: 'none', because };
    return { outcome: 'none', because, problem: noFiles(mounts, files[0]?.decision) };
  }
  if (!pv) {
    const problem = pvc ? `the PVC ${whyUnbound(pvc)}` : 'no volume';
    return { outcome: withoutVolume, because, problem };
  }
  const rule = ruleOf(snapshot);
  const isUnknown = options.hasSnapshotLocation === false;
  const plan = planOf({ pvc, pv }, rule, options, isUnknown ? false : undefined);
  if (plan.way === undefined)
    return { outcome: plan.isRefused ? 'error' : 'none', because, problem: plan.reason };
  if (plan.way !== 'native' && pvc) {
    const problem = options.hindrance?.({ pvc, pv, way: plan.way, rule }, group);
    if (problem !== undefined) return { outcome: 'error', because, problem };
  }
  return { outcome: 'snapshot', way: plan.way, because };
}

/** Why no pod's files are backed up although a rule or a pod requests it. */
function noFiles(mounts: readonly Mount[], decision: Decision | undefined): string {
  if (mounts.length === 0) return 'no pod mounts it, so that nothing backs it up';
  if (decision?.because.by === 'backupExcludePVC') {
    return 'the backup leaves PVCs out, and with them their files';
  }
  return mountProblem(mounts) ?? 'no pod has its files backed up';
}

/** Verdict on volumes whose files are wanted. */
function verdictOnFiles(decision: Decision | undefined, mounts: readonly Mount[]): Verdict {
  if (!decision) return { outcome: 'error', problem: 'its PVC has no volume' };
  const { yes, because } = decision;
  if (!yes) {
    const type = because.by === 'rule' ? because.rule.action.type : undefined;
    if (type === 'skip' || type === 'custom') return { outcome: type, because };
    const isSnapshot = type !== undefined;
    return {
      outcome: 'none',
      because,
      ...(isSnapshot && { problem: 'no snapshot can be taken of a volume that only a pod has' }),
    };
  }
  const problem = mountProblem(mounts);
  return problem === undefined
    ? { outcome: 'fs-backup', because }
    : { outcome: 'none', because, problem };
}

/** Undefined if one pod allows a file-system backup. Velero: pkg/podvolume/backupper.go. */
function mountProblem(mounts: readonly Mount[]): string | undefined {
  const problems = mounts.map(({ pod, volume }) => {
    if (!pod.isRunning) return `pod ${pod.name} is not running, so that its files cannot be read`;
    if (volume.isBlock) return `pod ${pod.name} has it as a block device, which has no files`;
    if (!volume.isMounted) return `no container of pod ${pod.name} mounts it`;
    return undefined;
  });
  return problems.includes(undefined) ? undefined : problems[0];
}
