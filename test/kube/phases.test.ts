import { expect, it } from 'vitest';
import {
  hasEnded,
  hasHadRun,
  hasMovementFailed,
  hasPlace,
  hasVolumes,
  isFailed,
  isFinalizing,
  isGathering,
  isInLine,
  isMovementOver,
  isMovementRunning,
  isMovementWaiting,
  isNew,
  isOver,
  isPartial,
  isQueued,
  isUnderWay,
  isUnstored,
  isUsable,
  isWaiting,
  partialPhase,
  phaseAfterRun,
  toneOf,
} from '../../src/kube/index.ts';

const WAITING = 'WaitingForPluginOperations';
const RUN_PHASES = [
  ...['New', 'Queued', 'ReadyToStart', 'InProgress', WAITING, `${WAITING}PartiallyFailed`],
  ...['Finalizing', 'FinalizingPartiallyFailed'],
  ...['Completed', 'PartiallyFailed', 'Failed', 'FailedValidation', 'Deleting'],
];
const MOVEMENT_PHASES = [
  ...['New', 'Accepted', 'Prepared', 'InProgress', 'Canceling', 'Canceled', 'Completed', 'Failed'],
];

it.each([
  [isNew, ['New']],
  [isInLine, ['New', 'Queued']],
  [hasPlace, ['ReadyToStart', 'InProgress']],
  [isQueued, ['New', 'Queued', 'ReadyToStart']],
  [isGathering, ['New', 'Queued', 'ReadyToStart', 'InProgress']],
  [isUnstored, ['New', 'Queued', 'ReadyToStart', 'InProgress', 'FailedValidation']],
  [
    isUnderWay,
    [
      ...['InProgress', WAITING, `${WAITING}PartiallyFailed`],
      ...['Finalizing', 'FinalizingPartiallyFailed'],
    ],
  ],
  [isWaiting, [WAITING, `${WAITING}PartiallyFailed`]],
  [isFinalizing, ['Finalizing', 'FinalizingPartiallyFailed']],
  [hasEnded, ['Completed', 'PartiallyFailed', 'Failed']],
  [isOver, ['Completed', 'PartiallyFailed', 'Failed', 'FailedValidation']],
  [hasHadRun, ['Completed', 'PartiallyFailed', 'Failed', 'FailedValidation', 'Deleting']],
  [isUsable, ['Completed', 'PartiallyFailed']],
  [hasVolumes, ['Finalizing', 'FinalizingPartiallyFailed', 'Completed', 'PartiallyFailed']],
  [isFailed, ['Failed', 'FailedValidation']],
  [isPartial, RUN_PHASES.filter((phase) => phase.endsWith('PartiallyFailed'))],
])('%o holds for these phases of Backups and Restores', (predicate, phases) => {
  expect(RUN_PHASES.filter((phase) => predicate(phase))).toEqual(phases);
});

it.each([
  [isMovementWaiting, ['New', 'Accepted', 'Prepared']],
  [isMovementRunning, ['InProgress', 'Canceling']],
  [isMovementOver, ['Canceled', 'Completed', 'Failed']],
  [hasMovementFailed, ['Canceled', 'Failed']],
])('%o holds for these phases of volumes that are moved', (predicate, phases) => {
  expect(MOVEMENT_PHASES.filter((phase) => predicate(phase))).toEqual(phases);
});

it('an empty phase is New, and nothing holds for a phase of a newer Velero', () => {
  const ofNew = [isNew, isInLine, isQueued, isGathering, isUnstored, isMovementWaiting];
  const others = [isOver, hasHadRun, isUsable, isUnderWay, isMovementOver, isMovementRunning];
  for (const phase of ['', undefined]) {
    expect(ofNew.map((predicate) => predicate(phase))).toEqual(ofNew.map(() => true));
    expect(others.some((predicate) => predicate(phase))).toBe(false);
  }
  for (const phase of ['Archived', 'constructor', 'CompletedPartiallyFailed']) {
    expect([...ofNew, ...others].some((predicate) => predicate(phase))).toBe(false);
    expect(toneOf(phase)).toBe('plain');
  }
});

it('the phase after a run tells of errors, and keeps telling', () => {
  expect(phaseAfterRun({ waiting: true, partial: false })).toBe(WAITING);
  expect(phaseAfterRun({ waiting: true, partial: true })).toBe(`${WAITING}PartiallyFailed`);
  expect(phaseAfterRun({ waiting: false, partial: false })).toBe('Finalizing');
  expect(phaseAfterRun({ waiting: false, partial: true })).toBe('FinalizingPartiallyFailed');
  expect(partialPhase('FinalizingPartiallyFailed')).toBe('FinalizingPartiallyFailed');
});

it('a phase reads the same in a terminal and on the status page', () => {
  const tones = ['Completed', 'Available', 'Canceled', 'FinalizingPartiallyFailed', 'NotReady'];
  expect(tones.map(toneOf)).toEqual(['good', 'good', 'doubtful', 'doubtful', 'bad']);
  expect(['Failed', 'FailedValidation', 'InProgress'].map(toneOf)).toEqual(['bad', 'bad', 'plain']);
});
