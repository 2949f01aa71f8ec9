import { formatBytes, lookup } from '../../base/index.ts';
import {
  becauseText,
  type CheckedVolume,
  ruleText,
  type Verdict,
  type VolumePolicies,
  type VolumeRule,
} from '../../volume-policy/index.ts';
import type { Column } from '../output/table.ts';

const NAMESPACE: Column = { title: 'NAMESPACE', isWhole: true };
const VOLUME: Column = { title: 'VOLUME', isWhole: true };
const OUTCOME: Column = { title: 'OUTCOME' };
const WHY: Column = { title: 'WHY', min: 16 };
const VELERO: Column = { title: 'VELERO 1.18', min: 9, leaveOut: 1 };
const WIDE: readonly Column[] = ['PV', 'CAPACITY', 'CLASS', 'TYPE', 'PODS'].map((title) => ({
  title,
}));

/** The last column appears only if Velero handles a volume differently. */
export function columnsOf(volumes: readonly CheckedVolume[], isWide: boolean): Column[] {
  const differs = volumes.some(({ velero }) => velero !== undefined);
  return [NAMESPACE, VOLUME, ...(isWide ? WIDE : []), OUTCOME, WHY, ...(differs ? [VELERO] : [])];
}

export function rowOf(
  volume: CheckedVolume,
  columns: readonly Column[],
  policies: VolumePolicies | undefined,
): string[] {
  const { view, velero } = volume;
  const cells: Readonly<Record<string, string>> = {
    [NAMESPACE.title]: volume.namespace,
    [VOLUME.title]: nameOf(volume),
    PV: volume.pv ?? '',
    CAPACITY: view.capacity === 0n ? '' : formatBytes(bytesOf(volume)),
    CLASS: view.storageClass,
    TYPE: view.type,
    PODS: volume.pods.map(({ pod }) => pod).join(','),
    [OUTCOME.title]: outcomeOf(volume),
    [WHY.title]: whyOf(volume, policies),
    [VELERO.title]: velero ? `${outcomeOf(velero)}: ${whyOf(velero, policies)}` : '',
  };
  return columns.map(({ title }) => lookup(cells, title) ?? '');
}

const PER_BYTE = 1_000_000_000n;
/** Rounded up, as Kubernetes does. */
const bytesOf = ({ view }: CheckedVolume): number =>
  Number((view.capacity + PER_BYTE - 1n) / PER_BYTE);

function nameOf({ pvc, pv, pods }: CheckedVolume): string {
  if (pvc !== undefined) return pvc;
  if (pv !== undefined) return `PV ${pv}`;
  const [only] = pods;
  return only ? `${only.pod}: ${only.volume}` : '';
}

export const outcomeOf = ({ outcome, way }: Verdict): string =>
  way === undefined ? outcome : `${outcome} (${way})`;

/** The deciding rule, and a problem if there is one. */
function whyOf({ because, problem }: Verdict, policies: VolumePolicies | undefined): string {
  const decided = because ? becauseText(because, { isOneSource: isOneSource(policies) }) : '';
  if (problem === undefined) return decided;
  return decided === '' ? problem : `${decided}, but ${problem}`;
}

const isOneSource = (policies: VolumePolicies | undefined): boolean =>
  new Set((policies?.rules ?? []).map(({ place }) => place.source)).size <= 1;

const verdictDocument = (verdict: Verdict) => {
  const { outcome, way, because, problem } = verdict;
  const rule = because?.by === 'rule' ? because.rule : undefined;
  return {
    outcome,
    ...(way !== undefined && { way }),
    ...(rule && {
      rule: { source: rule.place.source, number: rule.number, line: rule.place.line },
      action: rule.action,
    }),
    reason: whyOf({ outcome, because, problem }, undefined),
  };
};

export function documentOf(volume: CheckedVolume): object {
  const { namespace, pvc, pv, pods, view, velero } = volume;
  return {
    ...(namespace !== '' && { namespace }),
    ...(pvc !== undefined && { pvc }),
    ...(pv !== undefined && { pv }),
    pods,
    ...verdictDocument(volume),
    view: { ...view, capacity: bytesOf(volume) },
    ...(velero && { velero: verdictDocument(velero) }),
  };
}

/** The number of volumes that each rule decides. */
function countsOf(volumes: readonly CheckedVolume[]): ReadonlyMap<VolumeRule, number> {
  const counts = new Map<VolumeRule, number>();
  for (const { because } of volumes) {
    if (because?.by === 'rule') counts.set(because.rule, (counts.get(because.rule) ?? 0) + 1);
  }
  return counts;
}

export function ruleDocuments(
  policies: VolumePolicies | undefined,
  volumes: readonly CheckedVolume[],
): object[] {
  const counts = countsOf(volumes);
  return (policies?.rules ?? []).map((rule) => ({
    source: rule.place.source,
    number: rule.number,
    line: rule.place.line,
    action: rule.action,
    volumes: counts.get(rule) ?? 0,
  }));
}

/** Counts volumes by outcome. Lists rules that match no volume, and volumes without a backup. */
export function summaryOf(
  policies: VolumePolicies | undefined,
  volumes: readonly CheckedVolume[],
): string[] {
  const counts = new Map<string, number>();
  for (const { outcome } of volumes) counts.set(outcome, (counts.get(outcome) ?? 0) + 1);
  const parts = [...counts].map(([outcome, count]) => `${count} ${outcome}`);
  const total = volumes.length === 1 ? '1 volume' : `${volumes.length} volumes`;
  const isOne = isOneSource(policies);
  const decided = countsOf(volumes);
  const idle = (policies?.rules ?? []).filter((rule) => !decided.has(rule));
  const others = volumes.filter(({ velero }) => velero !== undefined).length;
  return [
    parts.length === 0 ? 'there are no volumes' : `${total}: ${parts.join(', ')}`,
    ...idle.map((rule) => `${ruleText(rule, { isOneSource: isOne })}, decides about no volume`),
    ...(others > 0
      ? [
          `Velero 1.18 does something else with ${others === 1 ? 'one of them' : `${others} of them`}`,
        ]
      : []),
  ];
}
