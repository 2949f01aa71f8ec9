import { averageRate, type MovementDescription, secondsLeft } from '../../../agent/index.ts';
import { resultEntries } from '../../../archive/index.ts';
import { hasMovementFailed, isMovementWaiting } from '../../../kube/index.ts';
import {
  type DescribedVolume,
  loadStored,
  loadVolumes,
  storedVolume,
} from './described-objects.ts';
import { isRunOver, itemsOf, type Noun, phaseOf, type Run } from '../noun.ts';
import type { Session } from '../session.ts';
import { hasEnded } from '../volumes.ts';

/** A backup or restore. The field names are a contract of `describe -o json`. */
export interface DescribedRun {
  readonly kind: string;
  readonly name: string;
  readonly namespace: string;
  readonly uid: string;
  readonly phase: string;
  readonly isOver: boolean;
  readonly isDeleting: boolean;
  readonly labels: Readonly<Record<string, string>>;
  readonly annotations: Readonly<Record<string, string>>;
  readonly backup?: string;
  readonly schedule?: string;
  readonly storageLocation?: string;
  readonly requestedAt: string;
  readonly startedAt?: string;
  readonly endedAt?: string;
  readonly seconds?: number;
  readonly expiresAt?: string;
  readonly queuePosition?: number;
  readonly items: { readonly done: number; readonly total: number };
  readonly operations: {
    readonly asked: number;
    readonly completed: number;
    readonly failed: number;
  };
  readonly snapshots: { readonly asked: number; readonly completed: number };
  readonly hooks: { readonly run: number; readonly failed: number };
  readonly volumes: readonly DescribedVolume[];
  readonly errorCount: number;
  readonly warningCount: number;
  /** In the form `namespace app: …`. Undefined if they are unreadable or not stored yet. */
  readonly errors?: readonly string[];
  readonly warnings?: readonly string[];
  /** Why messages, and volumes from the bucket, are missing here. */
  readonly notRead?: string;
  readonly reasons: readonly string[];
  readonly next: readonly string[];
  readonly spec: object;
}

const TAKEN_UP_SECONDS = 30;

export async function describeRun(noun: Noun, run: Run, session: Session): Promise<DescribedRun> {
  const [movements, stored] = await Promise.all([
    loadVolumes(noun, run, session),
    loadStored(noun, run, session),
  ]);
  const { metadata, spec = {}, status = {} } = run;
  const nowMs = Number(session.client.clock.nowNs() / 1_000_000n);
  const files = typeof stored === 'object' ? stored : undefined;
  const inFiles = (files?.volumeInfos ?? []).map(storedVolume);
  const decisions = new Map(inFiles.map(({ volume, decidedBy }) => [volume, decidedBy]));
  const moved = movements.map((row) => {
    const volume = movedVolume(row);
    const decidedBy = decisions.get(volume.volume);
    return { ...volume, ...(decidedBy !== undefined && { decidedBy }) };
  });
  const known = new Set(moved.map(({ volume }) => volume));
  const others = inFiles.filter(({ volume }) => !known.has(volume));
  const phase = phaseOf(run);
  const startMs = Date.parse(status.startTimestamp ?? '');
  const endMs = status.completionTimestamp ? Date.parse(status.completionTimestamp) : nowMs;
  const reasons = [status.failureReason ?? '', ...(status.validationErrors ?? [])];
  const volumes = [...moved, ...others];
  return {
    kind: noun.resource.kind,
    name: metadata.name,
    namespace: metadata.namespace ?? '',
    uid: metadata.uid,
    phase,
    isOver: isRunOver(run),
    isDeleting: metadata.deletionTimestamp !== undefined,
    labels: metadata.labels ?? {},
    annotations: metadata.annotations ?? {},
    ...(spec.backupName && { backup: spec.backupName }),
    ...scheduleOf(run),
    ...(spec.storageLocation && { storageLocation: spec.storageLocation }),
    requestedAt: metadata.creationTimestamp,
    ...(status.startTimestamp && { startedAt: status.startTimestamp }),
    ...(status.completionTimestamp && { endedAt: status.completionTimestamp }),
    ...(!Number.isNaN(startMs) && { seconds: Math.max(0, Math.round((endMs - startMs) / 1000)) }),
    ...(status.expiration && { expiresAt: status.expiration }),
    ...(status.queuePosition && { queuePosition: status.queuePosition }),
    items: itemsOf(run),
    operations: {
      asked: status.backupItemOperationsAttempted ?? status.restoreItemOperationsAttempted ?? 0,
      completed: status.backupItemOperationsCompleted ?? status.restoreItemOperationsCompleted ?? 0,
      failed: status.backupItemOperationsFailed ?? status.restoreItemOperationsFailed ?? 0,
    },
    snapshots: {
      asked: (status.volumeSnapshotsAttempted ?? 0) + (status.csiVolumeSnapshotsAttempted ?? 0),
      completed: (status.volumeSnapshotsCompleted ?? 0) + (status.csiVolumeSnapshotsCompleted ?? 0),
    },
    hooks: {
      run: status.hookStatus?.hooksAttempted ?? 0,
      failed: status.hookStatus?.hooksFailed ?? 0,
    },
    volumes,
    errorCount: status.errors ?? 0,
    warningCount: status.warnings ?? 0,
    ...(files && { errors: resultEntries(files.results.errors) }),
    ...(files && { warnings: resultEntries(files.results.warnings) }),
    ...(typeof stored === 'string' && { notRead: stored }),
    reasons: reasons.filter((reason) => reason !== ''),
    next: adviceOf(noun, run, volumes, nowMs),
    spec,
  };
}

function scheduleOf({ metadata, spec = {} }: Run): { schedule?: string } {
  const schedule = spec.scheduleName || metadata.labels?.['velero.io/schedule-name'];
  return schedule ? { schedule } : {};
}

function movedVolume(row: MovementDescription): DescribedVolume {
  const rate = row.movingSeconds === undefined ? undefined : averageRate(row);
  const left = secondsLeft(row, rate);
  return {
    volume: row.volume,
    method: row.kind,
    phase: row.phase,
    node: row.node,
    bytesDone: row.bytesDone,
    totalBytes: row.totalBytes,
    ...(rate !== undefined && { bytesPerSecond: Math.round(rate) }),
    ...(left !== undefined && { secondsLeft: Math.round(left) }),
    note: noteOf(row),
  };
}

/** The result of the move, or its wait reason. The remaining bytes are in another column. */
function noteOf(row: MovementDescription): string {
  const { waitsFor } = row;
  if (hasEnded(row) || waitsFor === '') return waitsFor;
  if (!waitsFor.startsWith('its data: ')) return `waits for ${waitsFor}`;
  const more = waitsFor.indexOf(';');
  return more < 0 ? '' : waitsFor.slice(more + 1).trim();
}

function againText({ spec }: Run): string {
  const { existingVolumeDataPolicy: policy = 'none' } = (spec ?? {}) as {
    existingVolumeDataPolicy?: string | null;
  };
  return ['full', 'incremental'].includes(policy ?? '')
    ? 'restore again: volumes that are there are compared anew, and other objects that are there are left alone'
    : 'restore again, what is there already is left alone';
}

/** Advice for the user; empty if there is nothing to do. */
function adviceOf(
  { word }: Noun,
  run: Run,
  volumes: readonly DescribedVolume[],
  nowMs: number,
): string[] {
  const { name, creationTimestamp } = run.metadata;
  const failed = volumes.filter(({ phase }) => hasMovementFailed(phase)).length;
  const waiting = volumes.find(
    ({ phase, note }) => phase !== '' && isMovementWaiting(phase) && note !== '',
  );
  switch (phaseOf(run)) {
    case 'New':
      return nowMs - Date.parse(creationTimestamp) > TAKEN_UP_SECONDS * 1000
        ? [
            `no server has taken it up yet; look whether one runs that makes ${word}s (longshore server, or Velero's)`,
          ]
        : [];
    case 'FailedValidation':
      return [
        `nothing was done; correct what is said above, delete this ${word}, and create it again`,
      ];
    case 'Failed':
      return [
        `"longshore ${word} logs ${name}" tells what came before`,
        word === 'backup'
          ? 'nothing can be restored from it; make another one'
          : 'what is restored so far is in the cluster; correct the reason and restore again',
      ];
    case 'PartiallyFailed':
      return [
        word === 'backup'
          ? 'what it has can be restored; what the errors name is missing or not whole'
          : 'what the errors name is missing in the cluster, or not whole',
        ...(failed > 0
          ? [
              `volumes that failed: ${failed}; "longshore ${word} logs ${name}" has the logs of their data movers`,
            ]
          : []),
        `correct the reasons, and ${word === 'backup' ? 'make another one' : againText(run)}`,
      ];
    default:
      return waiting && !isRunOver(run)
        ? [`look after what its volumes wait for: ${waiting.volume} ${waiting.note}`]
        : [];
  }
}
