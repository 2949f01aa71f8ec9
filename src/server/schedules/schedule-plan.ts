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
  /** By the API server's clock. */
  readonly nowNs: Nanoseconds;
  /** Of the server, for schedules that do not say whether the first time is skipped. */
  readonly skipsImmediately: boolean;
  /** In which expressions are that name none. */
  readonly zone: Zone;
  /**
   * When this process first saw that the times of the schedule lie far ahead of now, which only a
   * wrong clock writes. Seconds since 1970.
   */
  readonly aheadSince?: number | undefined;
}

/** What is to be done about a schedule now. */
export interface SchedulePlan {
  /** Merge patch of what Velero writes; undefined where it is there already. */
  readonly patch: { readonly spec?: object; readonly status?: object } | undefined;
  readonly problems: readonly string[];
  /** The time that a backup is to be made for, in seconds since 1970. */
  readonly dueFor: number | undefined;
  /** The next time after now at which one may be due. */
  readonly next: number | undefined;
  /** Its times lie more than a day ahead of now. */
  readonly isAhead: boolean;
  /** Seconds between the next two times. */
  readonly interval: number | undefined;
  /** Both kinds of days are named: a day has to match both. */
  readonly hasBothDays: boolean;
}

/** Velero: pkg/controller/schedule_controller.go, parseCronSchedule. */
const EMPTY = 'Schedule must be a non-empty valid Cron expression';
/**
 * By which times may be ahead, as after a clock was set back: nothing is made twice then. Our
 * choice.
 */
const AHEAD_SECONDS = 86_400;
/** Of a name of any object in Kubernetes, but for some kinds. */
const NAME_CHARS_MAX = 253;
const STAMP = 'YYYYMMDDhhmmss';

/**
 * Decides as Velero 1.18.3 does: a backup is due when a time of the expression has passed since the
 * last backup, or since the schedule was made or told to skip; of several such times one backup is
 * made. Undefined for one that is paused, about which Velero does and writes nothing. Other than
 * with Velero an expression that has no time within five years is refused: there, it is always due.
 * Changes nothing.
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
  // A time is over when it is past, and not when it is now.
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

/** The last backup, or when the schedule was made; or when it skipped, if that was later. */
function sinceOf({ metadata, status = {} }: Schedule, lastSkipped = -Infinity): number {
  const made = secondsOf(status.lastBackup) ?? secondsOf(metadata.creationTimestamp) ?? 0;
  return Math.max(made, lastSkipped);
}

/**
 * Why the API server would refuse each of its backups, which nobody would see before one is missed.
 */
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

/** Undefined for what is no time. */
export function secondsOf(text: string | null | undefined): number | undefined {
  const ms = Date.parse(text ?? '');
  return Number.isNaN(ms) ? undefined : Math.floor(ms / 1000);
}

/**
 * A time as the names of backups have it: `YYYYMMDDhhmmss`, in UTC as for
 * `velero backup create --from-schedule`.
 */
export const stampOf = (seconds: number): string =>
  rfc3339Seconds(BigInt(seconds) * SECOND_NS).replaceAll(/\D/g, '');
