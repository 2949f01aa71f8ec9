import { messageOf, redactAndCut } from '../../base/index.ts';
import { encryptsArchive, requiresSignature } from '../../config/index.ts';
import { parseCron } from '../../cron/index.ts';
import {
  type BackupRepository,
  type BackupStorageLocation,
  isOver,
  isSynced,
  type KubeObject,
} from '../../kube/index.ts';
import { verificationOf } from '../../repository-access/index.ts';

/** A cached Backup or Restore; there may be ten thousand. Times are in ms since 1970. */
export interface RunRow {
  readonly kind: 'Backup' | 'Restore';
  readonly name: string;
  readonly uid: string;
  readonly phase: string;
  readonly isOver: boolean;
  readonly isDeleting: boolean;
  /** The start; before that, the creation. */
  readonly beganMs: number;
  readonly endedMs: number | undefined;
  readonly expiresMs: number | undefined;
  readonly errors: number;
  readonly warnings: number;
  readonly itemsDone: number;
  readonly itemsTotal: number;
  /** For a restore: the name of its backup. */
  readonly of: string;
  /** The Schedule's label. */
  readonly schedule: string;
  /** For a Backup from the bucket: its label does not prove that the Schedule created it. */
  readonly isSynced: boolean;
  readonly location: string;
  readonly queuePosition: number;
  readonly snapshots: Counts;
  readonly operations: Counts;
  /** The original message of its failure. */
  readonly why: string;
}

export interface Counts {
  readonly attempted: number;
  readonly completed: number;
  readonly failed: number;
}

export interface ScheduleRow {
  readonly name: string;
  readonly cron: string;
  readonly phase: string;
  readonly isPaused: boolean;
  readonly why: string;
  readonly lastBackupMs: number | undefined;
  /** Undefined if there is none, or the expression is invalid. A past time means: due. */
  readonly nextMs: number | undefined;
  /** The expression allows only manual backups. */
  readonly isManual: boolean;
  /** Why an expected next run is missing. */
  readonly cronProblem: string;
}

export interface RepositoryRow {
  readonly name: string;
  readonly namespace: string;
  readonly location: string;
  readonly type: string;
  readonly phase: string;
  readonly why: string;
  readonly lastMaintenanceMs: number | undefined;
  readonly lastMaintenanceFailed: string | undefined;
  readonly verifiedMs: number | undefined;
  /** Bytes in the bucket at the last verification; undefined if never measured. */
  readonly packBytes: number | undefined;
  readonly damagedContents: number;
  /** From 0 to 1. */
  readonly readShare: number;
  readonly problem: string;
}

export interface LocationRow {
  readonly name: string;
  readonly isDefault: boolean;
  readonly isReadOnly: boolean;
  readonly isSignatureRequired: boolean;
  readonly isEncrypting: boolean;
  readonly provider: string;
  readonly bucket: string;
  readonly phase: string;
  readonly why: string;
  readonly validatedMs: number | undefined;
}

/** The cached part of an object. */
export interface Kept<R> extends KubeObject {
  readonly row: R;
}

/** Fields may have any type, because users can write them. */
type Loose = Readonly<Record<string, unknown>>;
interface LooseObject extends KubeObject {
  readonly spec?: Loose | null;
  readonly status?: Loose | null;
}

const WHY_PARTS_MAX = 5;

const textIn = (value: unknown): string => (typeof value === 'string' ? redactAndCut(value) : '');
const countIn = (value: unknown): number =>
  typeof value === 'number' && Number.isFinite(value) && value > 0 ? Math.floor(value) : 0;
const looseIn = (value: unknown): Loose =>
  typeof value === 'object' && value !== null ? (value as Loose) : {};

export function timeIn(value: unknown): number | undefined {
  const ms = typeof value === 'string' ? Date.parse(value) : Number.NaN;
  return Number.isNaN(ms) ? undefined : ms;
}

const sentencesIn = (value: unknown): string =>
  Array.isArray(value) ? redactAndCut(value.slice(0, WHY_PARTS_MAX).map(textIn).join('; ')) : '';

/** Keeps the metadata that a cache needs. */
function kept<R>({ metadata }: KubeObject, row: R): Kept<R> {
  const { name, namespace, uid, resourceVersion, creationTimestamp } = metadata;
  return {
    metadata: {
      name,
      uid,
      resourceVersion,
      creationTimestamp,
      ...(namespace !== undefined && { namespace }),
    },
    row,
  };
}

export function keptRun(kind: RunRow['kind'], object: LooseObject): Kept<RunRow> {
  const { metadata } = object;
  const spec = looseIn(object.spec);
  const status = looseIn(object.status);
  const progress = looseIn(status.progress);
  const phase = textIn(status.phase) || 'New';
  const word = kind === 'Backup' ? 'backup' : 'restore';
  return kept(object, {
    kind,
    name: metadata.name,
    uid: metadata.uid,
    phase,
    isOver: isOver(phase),
    isDeleting: metadata.deletionTimestamp !== undefined,
    beganMs: timeIn(status.startTimestamp) ?? timeIn(metadata.creationTimestamp) ?? 0,
    endedMs: timeIn(status.completionTimestamp),
    expiresMs: timeIn(status.expiration),
    errors: countIn(status.errors),
    warnings: countIn(status.warnings),
    itemsDone: countIn(progress.itemsBackedUp ?? progress.itemsRestored),
    itemsTotal: countIn(progress.totalItems),
    of: textIn(spec.backupName),
    schedule: metadata.labels?.['velero.io/schedule-name'] ?? textIn(spec.scheduleName),
    isSynced: isSynced(object),
    location: textIn(spec.storageLocation),
    queuePosition: countIn(status.queuePosition),
    snapshots: {
      attempted:
        countIn(status.csiVolumeSnapshotsAttempted) + countIn(status.volumeSnapshotsAttempted),
      completed:
        countIn(status.csiVolumeSnapshotsCompleted) + countIn(status.volumeSnapshotsCompleted),
      failed: 0,
    },
    operations: {
      attempted: countIn(status[`${word}ItemOperationsAttempted`]),
      completed: countIn(status[`${word}ItemOperationsCompleted`]),
      failed: countIn(status[`${word}ItemOperationsFailed`]),
    },
    why: sentencesIn([
      ...(status.failureReason ? [status.failureReason] : []),
      ...(Array.isArray(status.validationErrors) ? (status.validationErrors as unknown[]) : []),
    ]),
  });
}

export function keptSchedule(object: LooseObject): Kept<ScheduleRow> {
  const spec = looseIn(object.spec);
  const status = looseIn(object.status);
  const cron = typeof spec.schedule === 'string' ? spec.schedule : '';
  const lastBackupMs = timeIn(status.lastBackup);
  // Velero: schedule_controller.go, getNextRunTime.
  const baseMs = Math.max(
    lastBackupMs ?? timeIn(object.metadata.creationTimestamp) ?? 0,
    timeIn(status.lastSkipped) ?? 0,
  );
  return kept(object, {
    name: object.metadata.name,
    cron: redactAndCut(cron),
    phase: textIn(status.phase) || 'New',
    isPaused: spec.paused === true,
    why: sentencesIn(status.validationErrors),
    lastBackupMs,
    ...nextRunOf(cron, baseMs),
  });
}

type NextRun = Pick<ScheduleRow, 'nextMs' | 'isManual' | 'cronProblem'>;

/**
 * Limits of the search: Velero is no older, and years have four digits. Users may write any time
 * into a Schedule, and a far time would make the search long.
 */
const FIRST_MS = Date.UTC(2017, 0, 1);
const LAST_MS = Date.UTC(9999, 0, 1);

/** The next run after `afterMs` as Velero's server computes it, in this process's time zone. */
function nextRunOf(text: string, afterMs: number): NextRun {
  try {
    const cron = parseCron(text);
    const { isManual } = cron;
    const seconds = cron.nextAfter(Math.min(LAST_MS, Math.max(FIRST_MS, afterMs)) / 1000);
    const isNever = seconds === undefined && !isManual;
    const cronProblem = isNever ? 'it is not due within five years' : '';
    return { isManual, cronProblem, nextMs: seconds === undefined ? undefined : seconds * 1000 };
  } catch (error) {
    const cronProblem = redactAndCut(messageOf(error));
    return { isManual: false, cronProblem, nextMs: undefined };
  }
}

export function keptRepository(repository: BackupRepository): Kept<RepositoryRow> {
  const spec = looseIn(repository.spec);
  const status = looseIn(repository.status);
  const noted = verificationOf(repository);
  const history: unknown[] = Array.isArray(status.recentMaintenance)
    ? status.recentMaintenance
    : [];
  const last = looseIn(history.at(-1));
  return kept(repository, {
    name: repository.metadata.name,
    namespace: textIn(spec.volumeNamespace),
    location: textIn(spec.backupStorageLocation),
    type: textIn(spec.repositoryType) || 'kopia',
    phase: textIn(status.phase) || 'New',
    why: textIn(status.message),
    lastMaintenanceMs: timeIn(status.lastMaintenanceTime),
    lastMaintenanceFailed: last.result === 'Failed' ? textIn(last.message) || '' : undefined,
    verifiedMs: timeIn(noted?.time),
    packBytes: typeof noted?.packBytes === 'number' ? countIn(noted.packBytes) : undefined,
    damagedContents: countIn(noted?.damagedContents),
    readShare: typeof noted?.readShare === 'number' ? noted.readShare : 0,
    problem: textIn(noted?.problem),
  });
}

export function keptLocation(location: BackupStorageLocation): Kept<LocationRow> {
  const spec = looseIn(location.spec);
  const status = looseIn(location.status);
  return kept(location, {
    name: location.metadata.name,
    isDefault: spec.default === true,
    isReadOnly: spec.accessMode === 'ReadOnly',
    isSignatureRequired: requiresSignature(location),
    isEncrypting: encryptsArchive(location),
    provider: textIn(spec.provider),
    bucket: textIn(looseIn(spec.objectStorage).bucket),
    phase: textIn(status.phase) || 'New',
    why: textIn(status.message),
    validatedMs: timeIn(status.lastValidationTime),
  });
}
