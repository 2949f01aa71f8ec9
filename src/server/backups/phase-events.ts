import type { Backup } from '../../backup/index.ts';
import { EventRecorder, type EventRecorderOptions } from '../../kube/index.ts';
import { phaseOf } from './phases.ts';

/** What a phase means, by its name; `n` is the number of errors. Velero writes no such Events. */
const MEANINGS: Readonly<Record<string, (name: string, errors: number) => string>> = {
  New: () => 'the backup is asked for',
  Queued: () => 'it waits until fewer backups run, or until none of its namespaces is backed up',
  ReadyToStart: () => 'it is its turn',
  InProgress: () => 'its items are being backed up',
  WaitingForPluginOperations: () => 'its items are backed up, and operations for them go on',
  WaitingForPluginOperationsPartiallyFailed: (_, errors) =>
    `its items are backed up, with ${errorsText(errors)}, and operations for them go on`,
  Finalizing: () => 'its operations are over, and its files are being completed',
  FinalizingPartiallyFailed: (_, errors) =>
    `its operations are over, and its files are being completed, with ${errorsText(errors)}`,
  Completed: () => 'the backup is complete',
  PartiallyFailed: (name, errors) =>
    `the backup has ended with ${errorsText(errors)}, which "longshore backup describe ${name} --details" shows`,
  Failed: (name) => `the backup has failed; "longshore backup describe ${name}" tells why`,
  FailedValidation: (name) =>
    `the backup cannot be made as it is asked for; "longshore backup describe ${name}" tells why`,
  Deleting: () => 'the backup is being deleted, with its files and snapshots',
};

const errorsText = (errors: number): string => (errors === 1 ? '1 error' : `${errors} errors`);

const TROUBLE = /Failed/;

/**
 * An Event on a Backup at each change of its phase, for `kubectl describe` and `kubectl get events -w`. They are recorded by the way: nothing waits for
 * them, and where they cannot be written, or are too many, they are lost.
 */
export class PhaseEvents {
  readonly #events: EventRecorder;

  constructor(options: Omit<EventRecorderOptions, 'component'>) {
    this.#events = new EventRecorder({ ...options, component: 'longshore-server' });
  }

  /** What the watch tells. One that is there from the start, or was brought by another cluster, has changed nothing. */
  changed(after: Backup | undefined, before: Backup | undefined): void {
    if (!after || before?.metadata.uid !== after.metadata.uid) return;
    const phase = phaseOf(after);
    if (phase === phaseOf(before)) return;
    const { errors = 0 } = (after.status ?? {}) as { errors?: number };
    const meaning = MEANINGS[phase]?.(after.metadata.name, errors);
    if (meaning === undefined) return;
    this.#events.record(after, phase, meaning, TROUBLE.test(phase) ? 'Warning' : 'Normal');
  }

  flush(): Promise<void> {
    return this.#events.flush();
  }
}
