import { validLabel } from '../../kube/index.ts';
import { ageText } from '../../base/index.ts';
import { WELL_KNOWN_REMEDY } from '../repositories/password-secret.ts';
import type { RunRow } from './rows.ts';
import type { World } from './view.ts';
import type { PageVolume } from './volumes.ts';

/** A problem that needs attention. */
export interface Problem {
  readonly tone: 'bad' | 'doubtful';
  /** For example `Backup nightly-1`. */
  readonly subject: string;
  /** The backup or restore with more details. */
  readonly run?: Pick<RunRow, 'kind' | 'name'>;
  /** The original message. */
  readonly what: string;
  /** Advice in a sentence. */
  readonly remedy: string;
  /** Undefined for a lasting problem. */
  readonly atMs: number | undefined;
}

const DAY_MS = 86_400_000;
/** Older problems are in the calendar and the tables. Our choice. */
const RECENT_MS = 7 * DAY_MS;
/** Servers check schedules every minute, and may restart meanwhile. Our choice. */
const OVERDUE_MS = 15 * 60_000;

/** Lasting problems first, then events, newest first. */
export function problemsOf(world: World): Problem[] {
  const lasting = [
    ...locationProblems(world),
    ...trustProblems(world),
    ...coverageProblems(world),
    ...passwordProblems(world),
    ...repositoryProblems(world),
    ...scheduleProblems(world),
  ];
  const happened = [
    ...runProblems(world.backups, world.nowMs),
    ...runProblems(world.restores, world.nowMs),
    ...volumeProblems(world),
  ].sort((a, b) => (b.atMs ?? 0) - (a.atMs ?? 0));
  return [...lasting, ...happened];
}

function locationProblems({ locations, unread }: World): Problem[] {
  if (locations.length === 0 && !unread.has('backupstoragelocations')) {
    return [
      {
        tone: 'bad',
        subject: 'No location',
        atMs: undefined,
        what: 'there is no BackupStorageLocation, so that no backup can be made',
        remedy:
          'Make one that names your bucket: longshore install --help, or velero backup-location create',
      },
    ];
  }
  return locations
    .filter(({ phase }) => phase === 'Unavailable')
    .map(({ name, why }) => ({
      tone: 'bad',
      subject: `Location ${name}`,
      what: why || 'it is unavailable, and no reason was noted',
      remedy: `No backup can be stored there. Check its credentials, bucket and network: longshore backup-location check ${name}`,
      atMs: undefined,
    }));
}

/** The absence of failures means little if no backup ran. */
function coverageProblems({ newestWhole, schedules, unread, nowMs }: World): Problem[] {
  if (newestWhole && nowMs - newestWhole.beganMs < RECENT_MS) return [];
  const works = schedules.some(({ isPaused, phase }) => !isPaused && phase === 'Enabled');
  const isByHand = !works && !unread.has('schedules');
  const schedule = isByHand
    ? ', and a schedule, since none makes backups: longshore schedule create nightly --schedule "0 2 * * *" --snapshot-move-data'
    : '';
  return [
    {
      tone: newestWhole ? 'doubtful' : 'bad',
      atMs: newestWhole?.beganMs,
      subject: newestWhole ? 'No new backup' : 'No backup',
      what: newestWhole
        ? `the newest backup that is Completed began ${ageText((nowMs - newestWhole.beganMs) / 1000)} ago`
        : 'no backup is Completed: after a loss nothing could be restored whole',
      remedy: `Make one: longshore backup create --help${schedule}`,
    },
  ];
}

/** Backups that were changed or removed in a bucket. */
function trustProblems({ trust }: World): Problem[] {
  return [...trust].flatMap(([location, { wrong }]) =>
    wrong.map(({ name, text }) => ({
      tone: 'bad' as const,
      subject: `Backup ${name}`,
      what: `location ${location}: ${text}`,
      remedy: `Find out who writes to the bucket: longshore backup-location check ${location}`,
      atMs: undefined,
    })),
  );
}

function passwordProblems({ hasWellKnownPassword }: World): Problem[] {
  if (!hasWellKnownPassword) return [];
  return [
    {
      tone: 'doubtful',
      subject: 'Repository password',
      atMs: undefined,
      what: "it is Velero's default, which everybody knows: whoever reads the bucket can read all volumes",
      remedy: WELL_KNOWN_REMEDY,
    },
  ];
}

function repositoryProblems({ repositories }: World): Problem[] {
  return repositories.flatMap((repository) => {
    const { name, phase, why, damagedContents, problem, lastMaintenanceFailed } = repository;
    const subject = `Repository ${name}`;
    const found: Problem[] = [];
    if (damagedContents > 0) {
      const what = problem || `the last verification found ${damagedContents} damaged contents`;
      const remedy =
        'Snapshots that need them cannot be restored completely; longshore node-agent status names what is damaged. Back up its volumes anew, and find out what the storage lost.';
      found.push({ tone: 'bad', subject, what, remedy, atMs: undefined });
    }
    if (phase === 'NotReady') {
      const what = why || 'it is not ready, and no reason was noted';
      const remedy =
        'No volume of its namespace can be moved until it is ready. It is tried again by itself once the reason is gone.';
      found.push({ tone: 'bad', subject, what, remedy, atMs: undefined });
    }
    if (lastMaintenanceFailed !== undefined) {
      const what = `its last maintenance failed${lastMaintenanceFailed === '' ? '' : `: ${lastMaintenanceFailed}`}`;
      const remedy =
        'Data is safe, but space of deleted backups is not freed. It is tried again when it is next due; the log of its Job says more.';
      found.push({ tone: 'doubtful', subject, what, remedy, atMs: undefined });
    }
    return found;
  });
}

function scheduleProblems({ schedules, backups, nowMs, namespace }: World): Problem[] {
  const busy = new Set(backups.flatMap((row) => (row.isOver ? [] : [row.schedule])));
  return schedules.flatMap(
    ({ name, phase, why, isPaused, nextMs, isManual, cron, cronProblem }): Problem[] => {
      const subject = `Schedule ${name}`;
      if (phase === 'FailedValidation') {
        const remedy = `It makes no backups. Correct it: kubectl -n ${namespace} edit schedules.velero.io ${name}`;
        return [{ tone: 'bad', subject, what: why || 'it is not valid', remedy, atMs: undefined }];
      }
      if (isPaused || isManual || busy.has(validLabel(name))) return [];
      if (nextMs === undefined) {
        const what = `no next run follows from "${cron}": ${cronProblem}`;
        const remedy = `It makes no backups as it should. Correct it: kubectl -n ${namespace} edit schedules.velero.io ${name}`;
        return [{ tone: 'doubtful', subject, what, remedy, atMs: undefined }];
      }
      if (nowMs - nextMs < OVERDUE_MS) return [];
      const what = 'a backup is overdue';
      const remedy = `Look whether a server that makes scheduled backups is running, and at its log: kubectl -n ${namespace} get deployments`;
      return [{ tone: 'bad', subject, what, remedy, atMs: nextMs }];
    },
  );
}

function runProblems(rows: readonly RunRow[], nowMs: number): Problem[] {
  const found: Problem[] = [];
  for (const row of rows) {
    // Rows are sorted, newest first.
    if (nowMs - row.beganMs > RECENT_MS) break;
    const { phase, name, kind, why, errors } = row;
    if (!row.isOver || phase === 'Completed') continue;
    const word = kind === 'Backup' ? 'backup' : 'restore';
    const isInvalid = phase === 'FailedValidation';
    const counted = errors > 0 ? `${errors} ${errors === 1 ? 'error' : 'errors'}` : phase;
    const remedy = isInvalid
      ? `Nothing was done. Correct what is named, and make a new ${word}.`
      : `What is missing, and what to do: longshore ${word} describe ${name}`;
    found.push({
      tone: phase === 'PartiallyFailed' ? 'doubtful' : 'bad',
      subject: `${kind} ${name}`,
      run: { kind, name },
      what: why || counted,
      remedy,
      atMs: row.endedMs ?? row.beganMs,
    });
  }
  return found;
}

function volumeProblems(world: World): Problem[] {
  const { volumes, nowMs } = world;
  return (volumes?.failed ?? [])
    .filter(({ endedMs }) => endedMs !== undefined && nowMs - endedMs < RECENT_MS)
    .map((volume) => ({
      run: { kind: volume.owner.kind, name: ownerNameOf(world, volume) },
      tone: volume.phase === 'Canceled' ? 'doubtful' : 'bad',
      subject: `Volume ${volume.volume}`,
      what: `${volume.kind} ${volume.name}: ${volume.waitsFor || volume.phase}`,
      remedy:
        volume.owner.kind === 'Backup'
          ? 'The volume is not in that backup. Once the reason is gone, make a new one.'
          : 'The volume was not restored. Once the reason is gone, restore it again.',
      atMs: volume.endedMs,
    }));
}

/** The full name if the run still exists; otherwise the label, which may be cut. */
export const ownerNameOf = ({ runsByUid }: World, { owner }: PageVolume): string =>
  runsByUid.get(owner.uid)?.name ?? owner.name;
