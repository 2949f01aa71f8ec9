/**
 * The phases of Velero's objects, and the meaning of each phase. No other file lists phases.
 * An empty phase is `New`, as in Velero. No predicate holds for an unknown phase of a newer Velero.
 */

/** The progress of a Backup or Restore. `refused`: it ended without a run. */
type RunStage = 'queued' | 'running' | 'waiting' | 'finalizing' | 'ended' | 'refused' | 'deleting';

interface RunTraits {
  readonly stage: RunStage;
  /** Whether the run has errors so far. */
  readonly isPartial?: true;
  /** Whether a Backup can be restored. */
  readonly isUsable?: true;
}

/** Velero: pkg/apis/velero/v1/backup_types.go and restore_types.go (v1.18.3). */
const RUN_PHASES = {
  New: { stage: 'queued' },
  Queued: { stage: 'queued' },
  ReadyToStart: { stage: 'queued' },
  InProgress: { stage: 'running' },
  WaitingForPluginOperations: { stage: 'waiting' },
  WaitingForPluginOperationsPartiallyFailed: { stage: 'waiting', isPartial: true },
  Finalizing: { stage: 'finalizing' },
  FinalizingPartiallyFailed: { stage: 'finalizing', isPartial: true },
  Completed: { stage: 'ended', isUsable: true },
  PartiallyFailed: { stage: 'ended', isPartial: true, isUsable: true },
  Failed: { stage: 'ended' },
  FailedValidation: { stage: 'refused' },
  Deleting: { stage: 'deleting' },
} as const satisfies Readonly<Record<string, RunTraits>>;

export type RunPhase = keyof typeof RUN_PHASES;
type AnyPhase = string | undefined;

const isRunPhase = (phase: string): phase is RunPhase => Object.hasOwn(RUN_PHASES, phase);

function traitsOf(phase: AnyPhase): RunTraits | undefined {
  const known = phase || 'New';
  return isRunPhase(known) ? RUN_PHASES[known] : undefined;
}

const isIn =
  (...stages: readonly RunStage[]) =>
  (phase: AnyPhase): boolean => {
    const traits = traitsOf(phase);
    return traits !== undefined && stages.includes(traits.stage);
  };

/** Any kind: no controller has started on it. */
export const isNew = (phase: AnyPhase): boolean => (phase || 'New') === 'New';
/** A Backup or Restore has not begun. */
export const isQueued = isIn('queued');
/** A Backup waits for a slot. */
export const isInLine = (phase: AnyPhase): boolean => isNew(phase) || phase === 'Queued';
/** A Backup has a slot. */
export const hasPlace = (phase: AnyPhase): boolean =>
  phase === 'ReadyToStart' || phase === 'InProgress';
/** A Backup may still get items. A Backup in a later phase has all of them. */
export const isGathering = isIn('queued', 'running');
/** A Backup has nothing to restore. */
export const isUnstored = isIn('queued', 'running', 'refused');
const isBeforeFiles = isIn('queued', 'refused');
/** The object has no files in the bucket. Velero takes an empty phase for unknown. */
export const hasNoFiles = (phase: AnyPhase): boolean => Boolean(phase) && isBeforeFiles(phase);
/** A run has begun, and has not ended. */
export const isUnderWay = isIn('running', 'waiting', 'finalizing');
export const isWaiting = isIn('waiting');
export const isFinalizing = isIn('finalizing');
/** A run is over, or was refused: only a deletion can follow. */
export const isOver = isIn('ended', 'refused');
/** A run is over, and it was not refused. */
export const hasEnded = isIn('ended');
/** A run is over, or its deletion has begun. */
export const hasHadRun = isIn('ended', 'refused', 'deleting');
/** The volumes of a Backup are all stored. Its other files may be missing. */
export const hasVolumes = (phase: AnyPhase): boolean => isFinalizing(phase) || isUsable(phase);
/** A Backup is over, and can be restored. */
export const isUsable = (phase: AnyPhase): boolean => traitsOf(phase)?.isUsable === true;
/** The run has errors so far, and goes on. */
export const isPartial = (phase: AnyPhase): boolean => traitsOf(phase)?.isPartial === true;
/** A run is over without a result. */
export const isFailed = (phase: AnyPhase): boolean =>
  phase === 'Failed' || phase === 'FailedValidation';

/** The same stage with errors. A phase without such a stage stays the same. */
export function partialPhase<P extends string>(phase: P): P | RunPhase {
  const partial = `${phase}PartiallyFailed`;
  return isRunPhase(partial) ? partial : phase;
}

/** The phase after a run, or while operations are polled. */
export const phaseAfterRun = (is: {
  readonly waiting: boolean;
  readonly partial: boolean;
}): RunPhase => {
  const phase = is.waiting ? 'WaitingForPluginOperations' : 'Finalizing';
  return is.partial ? partialPhase(phase) : phase;
};

/** Phases of the four kinds that move a volume, in the order of Velero's definitions. */
export const MOVEMENT_PHASES = [
  'New',
  'Accepted',
  'Prepared',
  'InProgress',
  'Canceling',
  'Canceled',
  'Completed',
  'Failed',
] as const;
export type MovementPhase = (typeof MOVEMENT_PHASES)[number];

/** The order of lists for users: moving volumes first, then the waiting ones. */
export const MOVING_FIRST = ['InProgress', 'Canceling', 'Prepared', 'Accepted', 'New'] as const;

/** Phases that are never overwritten. */
export const FINAL_MOVEMENT_PHASES = ['Completed', 'Failed', 'Canceled'] as const;
export type FinalMovementPhase = (typeof FINAL_MOVEMENT_PHASES)[number];

export const isMovementOver = (phase: AnyPhase): boolean =>
  FINAL_MOVEMENT_PHASES.some((final) => final === phase);
/** The move is over without the volume's data. */
export const hasMovementFailed = (phase: AnyPhase): boolean =>
  phase === 'Failed' || phase === 'Canceled';
/** A data mover may be at work. */
export const isMovementRunning = (phase: AnyPhase): boolean =>
  phase === 'InProgress' || phase === 'Canceling';
/** No data mover has begun. */
export const isMovementWaiting = (phase: AnyPhase): boolean =>
  isNew(phase) || phase === 'Accepted' || phase === 'Prepared';

/** DeleteBackupRequest, DownloadRequest and ServerStatusRequest: the request is answered. */
export const isAnswered = (phase: AnyPhase): boolean => phase === 'Processed' || phase === 'Failed';

/** The containers of a Pod have ended for good. */
export const isPodOver = (phase: AnyPhase): boolean => phase === 'Succeeded' || phase === 'Failed';

/** The meaning of a phase for a user. The kind does not matter. */
export type Tone = 'good' | 'doubtful' | 'bad' | 'plain';

const TONES: Readonly<Record<Exclude<Tone, 'plain'>, readonly string[]>> = {
  good: ['Completed', 'Processed', 'Enabled', 'Ready', 'Available'],
  doubtful: ['Canceled'],
  bad: ['Failed', 'FailedValidation', 'NotReady', 'Unavailable'],
};

export function toneOf(phase: string): Tone {
  if (TONES.good.includes(phase)) return 'good';
  if (TONES.bad.includes(phase)) return 'bad';
  return isPartial(phase) || TONES.doubtful.includes(phase) ? 'doubtful' : 'plain';
}
