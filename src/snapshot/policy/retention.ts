import { HOUR_NS, type Nanoseconds, toDate } from '../../base/index.ts';
import type { Snapshot } from '../snapshot-manifest.ts';
import type { Policy } from './policy.ts';

/** Incomplete snapshots younger than this are kept, and the first few in any case (Kopia: retention_policy.go). */
const INCOMPLETE_KEPT_NS = 4n * HOUR_NS;
const INCOMPLETE_KEPT_MIN = 3;
const YEAR_NS = 365n * 24n * HOUR_NS;

interface Period {
  readonly kind: string;
  readonly keep: number | undefined;
  readonly cutoffNs: Nanoseconds | undefined;
  readonly idOf: (startNs: Nanoseconds, position: number) => string;
}

const iso = (ns: Nanoseconds): string => toDate(ns).toISOString();

/** Year and week by ISO 8601, of the UTC day. */
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

/** Go's AddDate: calendar arithmetic that normalizes overflowing days. */
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
  // Keeps 2^31 - 1, which means "for ever", from leaving the range of dates.
  return Number.isFinite(shifted)
    ? BigInt(shifted) * 1_000_000n + (ns % 1_000_000_000n)
    : -(2n ** 62n);
}

function periodsOf(retention: Policy['retention'], newestNs: Nanoseconds): Period[] {
  const { keepLatest, keepHourly, keepDaily, keepWeekly, keepMonthly, keepAnnual } = retention;
  const all = [keepLatest, keepHourly, keepDaily, keepWeekly, keepMonthly, keepAnnual];
  const none = all.every((keep) => !keep);
  const cutoff = (keep: number | undefined, at: (keep: number) => Nanoseconds): Nanoseconds =>
    keep === undefined ? newestNs + YEAR_NS : at(keep);
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
      cutoffNs: cutoff(keepAnnual, (n) => back(newestNs, n, 0, 0)),
      idOf: (ns) => iso(ns).slice(0, 4),
    },
    {
      kind: 'monthly',
      keep: keepMonthly,
      cutoffNs: cutoff(keepMonthly, (n) => back(newestNs, 0, n, 0)),
      idOf: (ns) => iso(ns).slice(0, 7),
    },
    {
      kind: 'weekly',
      keep: keepWeekly,
      cutoffNs: cutoff(keepWeekly, (n) => back(newestNs, 0, 0, 7 * n)),
      idOf: isoWeek,
    },
    {
      kind: 'daily',
      keep: keepDaily,
      cutoffNs: cutoff(keepDaily, (n) => back(newestNs, 0, 0, n)),
      idOf: (ns) => iso(ns).slice(0, 10),
    },
    {
      kind: 'hourly',
      keep: keepHourly,
      cutoffNs: cutoff(keepHourly, (n) => newestNs - BigInt(n) * HOUR_NS),
      idOf: (ns) => iso(ns).slice(0, 13),
    },
  ];
}

/** Why each snapshot of one source is kept, by id; an empty list means it has expired unless pinned. */
export function retentionReasons(
  snapshots: readonly Snapshot[],
  retention: Policy['retention'],
): Map<string, string[]> {
  const newestFirst = snapshots.toSorted((a, b) => (a.startTimeNs > b.startTimeNs ? -1 : 1));
  const newestNs = newestFirst.find(({ incomplete }) => !incomplete)?.startTimeNs ?? 0n;
  const periods = periodsOf(retention, newestNs);
  const seen = new Set<string>();
  const counters = new Map<string, number>();
  const reasons = new Map<string, string[]>();
  newestFirst.forEach((snapshot, position) => {
    const kept: string[] = [];
    reasons.set(snapshot.id, kept);
    if (snapshot.incomplete) return;
    for (const { kind, keep, cutoffNs, idOf } of periods) {
      if (keep === undefined) continue;
      if (cutoffNs !== undefined && snapshot.startTimeNs < cutoffNs) continue;
      const period = idOf(snapshot.startTimeNs, position);
      const used = counters.get(kind) ?? 0;
      if (seen.has(period) || used >= keep) continue;
      seen.add(period);
      counters.set(kind, used + 1);
      kept.push(`${kind}-${used + 1}`);
    }
  });
  keepIncomplete(newestFirst, reasons);
  return reasons;
}

function keepIncomplete(newestFirst: readonly Snapshot[], reasons: Map<string, string[]>): void {
  const newestNs = newestFirst[0]?.startTimeNs ?? 0n;
  for (const [position, snapshot] of newestFirst.entries()) {
    if (!snapshot.incomplete) return;
    const ageNs = newestNs - snapshot.startTimeNs;
    if (ageNs >= INCOMPLETE_KEPT_NS && position >= INCOMPLETE_KEPT_MIN) return;
    reasons.get(snapshot.id)?.push('incomplete');
  }
}

/** Snapshots of one source that its retention policy no longer keeps. */
export function expiredSnapshots(
  snapshots: readonly Snapshot[],
  retention: Policy['retention'],
): Snapshot[] {
  const reasons = retentionReasons(snapshots, retention);
  return snapshots.filter(
    ({ id, pins }) => (reasons.get(id)?.length ?? 0) === 0 && (pins?.length ?? 0) === 0,
  );
}
