import { type Tone, toneOf } from '../../kube/index.ts';
import type { RunRow } from './rows.ts';

/** Backups of a day, in UTC. */
export interface CalendarDay {
  /** For example `2026-11-26`. */
  readonly date: string;
  readonly good: number;
  readonly doubtful: number;
  readonly bad: number;
  readonly underWay: number;
  /** The worst outcome; undefined on a day without backups. */
  readonly worst: Tone | undefined;
}

export const CALENDAR_DAYS = 30;
const DAY_MS = 86_400_000;

/** For example `2026-11-26`, in UTC. */
export const dateOf = (ms: number): string => new Date(ms).toISOString().slice(0, 10);

/** The last days, oldest first, including today. A backup counts on the day of its start. */
export function calendarOf(backups: readonly RunRow[], nowMs: number): CalendarDay[] {
  const today = Math.floor(nowMs / DAY_MS);
  const first = today - CALENDAR_DAYS + 1;
  const counts = Array.from({ length: CALENDAR_DAYS }, () => ({
    good: 0,
    doubtful: 0,
    bad: 0,
    plain: 0,
  }));
  for (const { beganMs, phase } of backups) {
    const day = counts[Math.floor(beganMs / DAY_MS) - first];
    if (day) day[toneOf(phase)]++;
  }
  return counts.map(({ good, doubtful, bad, plain: underWay }, at) => ({
    date: dateOf((first + at) * DAY_MS),
    good,
    doubtful,
    bad,
    underWay,
    worst: worstOf({ good, doubtful, bad, plain: underWay }),
  }));
}

const WORST_FIRST = ['bad', 'doubtful', 'plain', 'good'] as const;

const worstOf = (counts: Readonly<Record<Tone, number>>): Tone | undefined =>
  WORST_FIRST.find((tone) => counts[tone] > 0);
