import { BACKUPS, isSynced, toneOf, validLabel } from '../../../kube/index.ts';
import { expiryCell, timeCell } from '../columns.ts';
import { fieldLines, listLines, specTexts } from './describe-text.ts';
import { phaseOf } from '../noun.ts';
import type { Session } from '../session.ts';
import type { Schedule } from '../create/specs.ts';

interface DescribedSchedule {
  readonly kind: 'Schedule';
  readonly name: string;
  readonly namespace: string;
  readonly phase: string;
  readonly paused: boolean;
  readonly schedule: string;
  readonly createdAt: string;
  readonly lastBackupAt?: string;
  readonly lastSkippedAt?: string;
  readonly validationErrors: readonly string[];
  readonly template: object;
  /** Newest first. */
  readonly backups: readonly {
    readonly name: string;
    readonly phase: string;
    readonly createdAt: string;
  }[];
}

const BACKUPS_SHOWN = 5;

/** Includes the newest backups of the schedule. */
export async function describeSchedule(
  { metadata, spec = {}, status = {} }: Schedule,
  { client, namespace, signal }: Session,
): Promise<DescribedSchedule> {
  const { name } = metadata;
  const labelSelector = `velero.io/schedule-name=${validLabel(name)}`;
  const backups = await client.collect(BACKUPS, { namespace, labelSelector, signal }, (backup) => {
    if (isSynced(backup)) return [];
    const { name: backupName, creationTimestamp: createdAt } = backup.metadata;
    return [{ name: backupName, phase: phaseOf(backup), createdAt }];
  });
  return {
    kind: 'Schedule',
    name,
    namespace: metadata.namespace ?? '',
    phase: status.phase || 'New',
    paused: spec.paused === true,
    schedule: spec.schedule ?? '',
    createdAt: metadata.creationTimestamp,
    ...(status.lastBackup && { lastBackupAt: status.lastBackup }),
    ...(status.lastSkipped && { lastSkippedAt: status.lastSkipped }),
    validationErrors: status.validationErrors ?? [],
    template: spec.template ?? {},
    backups: backups.sort((a, b) => (a.createdAt < b.createdAt ? 1 : -1)).slice(0, BACKUPS_SHOWN),
  };
}

/** A zone in the expression is known here. The default zone is known only to the server. */
const whenText = (cron: string): string =>
  /^(CRON_)?TZ=|^@every /.test(cron) ? cron : `${cron} (in the server's time zone, UTC by default)`;

export function scheduleLines(schedule: DescribedSchedule, nowMs: number): string[] {
  const { phase, template, backups, validationErrors, name } = schedule;
  const when = (text: string | undefined): string =>
    text ? `${timeCell(text)} (${expiryCell(text, nowMs)})` : '';
  return [
    ...fieldLines([
      ['Schedule', name],
      ['Namespace', schedule.namespace],
      ['Phase', phase, toneOf(phase)],
      ['Paused', schedule.paused ? `yes; "longshore schedule unpause ${name}" ends that` : 'no'],
      ['When', whenText(schedule.schedule)],
      ['Created', timeCell(schedule.createdAt)],
      ['Last backup', when(schedule.lastBackupAt) || 'none yet'],
      ['Last skipped', when(schedule.lastSkippedAt)],
    ]),
    ...listLines('Template', specTexts(template), Infinity),
    ...listLines('Why', validationErrors, Infinity, 'bad'),
    ...listLines(
      'Newest backups',
      backups.map((each) => `${each.name}  ${each.phase}  ${timeCell(each.createdAt)}`),
      Infinity,
    ),
  ];
}
