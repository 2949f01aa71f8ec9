import { HOUR_NS, type Nanoseconds, toDate } from '../../base/index.ts';
import type { Snapshot } from '../snapshot-manifest.ts';
import type { Policy } from './policy.ts';

/** Younger incomplete snapshots are kept, and the newest few (Kopia: retention_policy.go). */
const INCOMPLETE_KEPT_NS = 4n * HOUR_NS;
const INCOMPLETE_KEPT_MIN = 3;

interface Period {
  readonly kind: string;
  readonly keep: number | undefined;
  readonly cutoffNs: Nanoseconds | undefined;
  readonly idOf: (startNs: Nanoseconds, position: number) => string;
}

const iso = (ns: Nanoseconds): string => toDate(ns).toISOString();

/** ISO 8601 year and week of the UTC day. */
function isoWeek(ns: Nanoseconds): string {
  const day = toDate(ns);
  const weekday = (day.getUTCDay() + 6) % 7;
  const thursday = new Date(
    Date.UTC(day.getUTCFullYear(), day.getUTCMonth(), day.getUTCDate() - weekday + 3),
  );
  const year = thursday.getUTCFullYear();
  const week = 1 + Math.floor((thursday.getTime() - Date.UTC(year, 0, 1)) / (7 * 86_400_000));
  return `${year}-${week}`;
}

/** Go's AddDate: calendar arithmetic that normalises overflowing days. */
function back(ns: Nanoseconds, years: number, months: number, days: number): Nanoseconds {
  const date = toDate(ns);
  const shifted = Date.UTC(
    date.getUTCFullYear() - years,
    date.getUTCMonth() - months,
    date.getUTCDate() - days,
    date.getUTCHours(),
    date.getUTCMinutes(),
    date.getUTCSeconds(),
  );
  // 2^31 - 1 means "forever" and would leave the range of dates.
  return Number.isFinite(shifted)
    ? BigInt(shifted) * 1_000_000n + (ns % 1_000_000_000n)
    : -(2n ** 62n);
}

function periodsOf(retention: Policy['retention'], baseNs: Nanoseconds): Period[] {
  const { keepLatest, keepHourly, keepDaily, keepWeekly, keepMonthly, keepAnnual } = retention;
  const all = [keepLatest, keepHourly, keepDaily, keepWeekly, keepMonthly, keepAnnual];
  // Kopia sums the numbers. Negative numbers keep nothing, so with only negative numbers all
  // snapshots would expire. Then keep all.
  const sum = all.reduce<number>((total, keep) => total + (keep ?? 0), 0);
  const none = sum === 0 || all.every((keep) => (keep ?? 0) <= 0);
  const cutoff = (
    keep: number | undefined,
    at: (keep: number) => Nanoseconds,
  ): Nanoseconds | undefined => (keep === undefined ? undefined : at(keep));
  return [
    {
      kind: 'latest',
      keep: none ? Number.MAX_SAFE_INTEGER : keepLatest,
      cutoffNs: undefined,
      idOf: (_ns, position) => String(position),
    },
    {
      kind: 'annual',
      keep: keepAnnual,
      cutoffNs: cutoff(keepAnnual, (n) => back(baseNs, n, 0, 0)),
      idOf: (ns) => iso(ns).slice(0, 4),
    },
    {
      kind: 'monthly',
      keep: keepMonthly,
      cutoffNs: cutoff(keepMonthly, (n) => back(baseNs, 0, n, 0)),
      idOf: (ns) => iso(ns).slice(0, 7),
    },
    {
      kind: 'weekly',
      keep: keepWeekly,
      cutoffNs: cutoff(keepWeekly, (n) => back(baseNs, 0, 0, 7 * n)),
      idOf: isoWeek,
    },
    {
      kind: 'daily',
      keep: keepDaily,
      cutoffNs: cutoff(keepDaily, (n) => back(baseNs, 0, 0, n)),
      idOf: (ns) => iso(ns).slice(0, 10),
    },
    {
      kind: 'hourly',
      keep: keepHourly,
      cutoffNs: cutoff(keepHourly, (n) => baseNs - BigInt(n) * HOUR_NS),
      idOf: (ns) => iso(ns).slice(0, 13),
    },
  ];
}

/** The moment of a retention check. */
export interface RetentionMoment {
  /** The current time. Snapshots that start later are kept, but do not count. */
  readonly nowNs: Nanoseconds;
  /** The snapshot just stored. Never expires, even if its clock was behind. */
  readonly justMade?: string;
}

/** Reason for keeping a snapshot whose clock was ahead. */
const AHEAD = 'ahead-of-clock';
const JUST_MADE = 'just-made';

/** Kopia's order of reasons. With it, equal sets of reasons give equal texts. */
const REASON_ORDER = ['latest', 'hourly', 'daily', 'weekly', 'monthly', 'annual'];
const rankOf = (reason: string): number => REASON_ORDER.indexOf(reason.split('-')[0] ?? '');

/**
 * The reasons to keep each snapshot of a source, by ID. Snapshots with an empty list have expired
 * unless pinned. Reasons are Kopia's (snapshot/policy/retention_policy.go). With `moment`, a clock
 * jump expires nothing. Snapshots in the future do not take another's place. Ages count from the
 * second newest snapshot, so that a single wrong time ends no period.
 */
export function retentionReasons(
  snapshots: readonly Snapshot[],
  retention: Policy['retention'],
  moment?: RetentionMoment,
): Map<string, string[]> {
  const reasons = new Map<string, string[]>();
  const isAhead = ({ startTimeNs }: Snapshot): boolean =>
    moment !== undefined && startTimeNs > moment.nowNs;
  for (const { id } of snapshots.filter(isAhead)) reasons.set(id, [AHEAD]);
  const newestFirst = snapshots.filter((each) => !isAhead(each)).sort(compareNewest);
  const [newest, second] = newestFirst.filter(({ incomplete }) => !incomplete);
  const base = moment && second ? second : newest;
  const periods = periodsOf(retention, base?.startTimeNs ?? 0n);
  const seen = new Set<string>();
  const counters = new Map<string, number>();
  newestFirst.forEach((snapshot, position) => {
    const kept: string[] = [];
    reasons.set(snapshot.id, kept);
    if (snapshot.incomplete) return;
    for (const { kind, keep, cutoffNs, idOf } of periods) {
      if (keep === undefined) continue;
      if (cutoffNs !== undefined && snapshot.startTimeNs < cutoffNs) continue;
      // Include the kind. Kopia mixes up week 10 and October, and then ignores the week.
      const period = `${kind} ${idOf(snapshot.startTimeNs, position)}`;
      const used = counters.get(kind) ?? 0;
      if (seen.has(period) || used >= keep) continue;
      seen.add(period);
      counters.set(kind, used + 1);
      kept.push(`${kind}-${used + 1}`);
    }
    kept.sort((a, b) => rankOf(a) - rankOf(b));
  });
  keepIncomplete(newestFirst, reasons);
  const mine = reasons.get(moment?.justMade ?? '');
  if (mine?.length === 0) mine.push(JUST_MADE);
  return reasons;
}

/** If clients disagreed on the order, they could delete each other's kept snapshots. */
function compareNewest(a: Snapshot, b: Snapshot): number {
  const byTime = compare(b.startTimeNs, a.startTimeNs) || compare(b.endTimeNs, a.endTimeNs);
  return byTime || compare(b.id, a.id);
}

const compare = <T extends bigint | string>(a: T, b: T): number => (a < b ? -1 : a > b ? 1 : 0);

function keepIncomplete(newestFirst: readonly Snapshot[], reasons: Map<string, string[]>): void {
  const newestNs = newestFirst[0]?.startTimeNs ?? 0n;
  for (const [position, snapshot] of newestFirst.entries()) {
    if (!snapshot.incomplete) return;
    const ageNs = newestNs - snapshot.startTimeNs;
    if (ageNs >= INCOMPLETE_KEPT_NS && position >= INCOMPLETE_KEPT_MIN) return;
    reasons.get(snapshot.id)?.push('incomplete');
  }
}

/** Snapshots of a source that its retention policy no longer keeps. */
export function expiredSnapshots(
  snapshots: readonly Snapshot[],
  retention: Policy['retention'],
  moment?: RetentionMoment,
): Snapshot[] {
  const reasons = retentionReasons(snapshots, retention, moment);
  return snapshots.filter(
    ({ id, pins }) => (reasons.get(id)?.length ?? 0) === 0 && (pins?.length ?? 0) === 0,
  );
}
