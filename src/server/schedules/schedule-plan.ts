import {
  isCode,
  labelsProblem,
  messageOf,
  type Nanoseconds,
  rfc3339Seconds,
  SECOND_NS,
  unixSeconds,
} from '../../base/index.ts';
import { type Cron, latestTime, parseCron, type Zone } from '../../cron/index.ts';
import type { Schedule, ScheduleStatus } from './schedule.ts';

export interface PlanOptions {
  /** From the API server's clock. */
  readonly nowNs: Nanoseconds;
  /** The server's default for schedules that do not say whether to skip their first time. */
  readonly skipsImmediately: boolean;
  /** Time zone for expressions without one. */
  readonly zone: Zone;
  /** When this process first saw times ahead, from a wrong clock. Seconds since 1970. */
  readonly aheadSince?: number | undefined;
}

/** The next steps for a schedule. */
export interface SchedulePlan {
  /** Merge patch of the fields that Velero writes; undefined if nothing changes. */
  readonly patch: { readonly spec?: object; readonly status?: object } | undefined;
  readonly problems: readonly string[];
  /** The time of a due backup, in seconds since 1970. */
  readonly dueFor: number | undefined;
  /** The next time when a backup may be due. */
  readonly next: number | undefined;
  /** Its last time is more than a day in the future. */
  readonly isAhead: boolean;
  /** Seconds between the next two times. */
  readonly interval: number | undefined;
  /** The expression names both kinds of days: a day has to match both. */
  readonly hasBothDays: boolean;
}

/** Velero: pkg/controller/schedule_controller.go, parseCronSchedule. */
const EMPTY = 'Schedule must be a non-empty valid Cron expression';
/** Tolerance for a clock that was set back: no backup is made twice. Our choice. */
const AHEAD_SECONDS = 86_400;
/** The limit for names of most kinds in Kubernetes. */
const NAME_CHARS_MAX = 253;
const STAMP = 'YYYYMMDDhhmmss';

/**
 * Decides like Velero 1.18.3. A backup is due when a time of the expression has passed since the
 * last backup, the creation or the last skip. Several missed times make one backup. Undefined for a
 * paused schedule, which Velero ignores. Unlike Velero it refuses an expression without a time in
 * the next five years; in Velero such a schedule is always due. A pure function.
 */
export function planSchedule(schedule: Schedule, options: PlanOptions): SchedulePlan | undefined {
  const { spec = {}, status = {} } = schedule;
  if (spec.paused === true) return undefined;
  const { nowNs, zone } = options;
  const now = unixSeconds(nowNs);
  const skips = spec.skipImmediately ?? options.skipsImmediately;
  const lastSkipped = skips ? now : secondsOf(status.lastSkipped);
  const since = sinceOf(schedule, lastSkipped);
  const isAhead = since > now + AHEAD_SECONDS;
  const from = isAhead ? (options.aheadSince ?? now) : since;

  const read = readCron(spec.schedule ?? '', zone, from);
  const problems = [...read.problems, ...backupProblems(schedule)];
  const cron = problems.length === 0 ? read.cron : undefined;
  const changed = {
    ...(spec.skipImmediately == null || skips ? { spec: { skipImmediately: false } } : {}),
    ...statusChange(status, problems, skips ? rfc3339Seconds(nowNs) : undefined),
  };
  // The current second is not over yet.
  const passed = unixSeconds(nowNs - 1n);
  const next = cron?.nextAfter(Math.max(from, passed));
  const afterNext = next === undefined ? undefined : cron?.nextAfter(next);
  return {
    patch: Object.keys(changed).length > 0 ? changed : undefined,
    problems,
    dueFor: cron && latestTime(cron, from, passed),
    next,
    isAhead,
    interval: next === undefined || afterNext === undefined ? undefined : afterNext - next,
    hasBothDays: cron?.hasBothDays === true,
  };
}

/** The last backup, or else the creation; a later skip wins. */
function sinceOf({ metadata, status = {} }: Schedule, lastSkipped = -Infinity): number {
  const made = secondsOf(status.lastBackup) ?? secondsOf(metadata.creationTimestamp) ?? 0;
  return Math.max(made, lastSkipped);
}

/** Problems that make the API server refuse each backup. Otherwise users notice too late. */
function backupProblems({ metadata: { name }, spec }: Schedule): string[] {
  const chars = `${name}-${STAMP}`.length;
  const label = labelsProblem(spec?.template?.metadata?.labels ?? {});
  return [
    ...(chars > NAME_CHARS_MAX
      ? [
          `invalid name: backups are called NAME-${STAMP}, which has ${chars} characters here, and may have ${NAME_CHARS_MAX}`,
        ]
      : []),
    ...(label === undefined ? [] : [`invalid labels of the template: ${label}`]),
  ];
}

function readCron(
  text: string,
  zone: Zone,
  from: number,
): { readonly cron?: Cron; readonly problems: readonly string[] } {
  if (text === '') return { problems: [EMPTY] };
  try {
    const cron = parseCron(text, zone);
    const hasTime = cron.isManual || cron.nextAfter(from) !== undefined;
    if (hasTime) return { cron, problems: [] };
    const never = `invalid schedule: ${JSON.stringify(text)} has no time within five years`;
    return { problems: [never] };
  } catch (error) {
    if (!isCode(error, 'BAD_CRON')) throw error;
    return { problems: [`invalid schedule: ${messageOf(error)}`] };
  }
}

function statusChange(
  before: ScheduleStatus,
  problems: readonly string[],
  skippedAt: string | undefined,
): { readonly status?: object } {
  const phase = problems.length > 0 ? 'FailedValidation' : 'Enabled';
  const hasSame = JSON.stringify(before.validationErrors ?? []) === JSON.stringify(problems);
  const status = {
    ...(before.phase !== phase && { phase }),
    ...(!hasSame && { validationErrors: problems.length > 0 ? problems : null }),
    ...(skippedAt !== undefined && { lastSkipped: skippedAt }),
  };
  return Object.keys(status).length > 0 ? { status } : {};
}

/** Undefined for an invalid time. */
export function secondsOf(text: string | null | undefined): number | undefined {
  const ms = Date.parse(text ?? '');
  return Number.isNaN(ms) ? undefined : Math.floor(ms / 1000);
}

/** The time in names, in UTC: `YYYYMMDDhhmmss`, as in `velero backup create --from-schedule`. */
export const stampOf = (seconds: number): string =>
  rfc3339Seconds(BigInt(seconds) * SECOND_NS).replaceAll(/\D/g, '');
