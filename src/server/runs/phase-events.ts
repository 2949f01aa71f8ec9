import { lookup } from '../../base/index.ts';
import type { EventRecorder, EventRecorderOptions, KubeObject } from '../../kube/index.ts';
import { serverEvents } from '../server-events.ts';
import type { Run, RunKind } from './run-kind.ts';

const TROUBLE = /Failed/;

interface Status {
  readonly phase?: string;
  readonly errors?: number;
  readonly warnings?: number;
  readonly failureReason?: string;
  readonly validationErrors?: readonly string[];
  readonly progress?: { readonly totalItems?: number };
  readonly startTimestamp?: string | null;
  readonly completionTimestamp?: string | null;
}

export interface PhaseEventsOptions<T extends Run> extends Omit<EventRecorderOptions, 'component'> {
  readonly kind: RunKind<T>;
}

/**
 * Records phase changes of Backups or Restores as Events and log lines. Events are best effort:
 * they are lost if they cannot be written or are too many.
 */
export class PhaseEvents<T extends Run> {
  readonly #options: PhaseEventsOptions<T>;
  readonly #events: EventRecorder;

  constructor(options: PhaseEventsOptions<T>) {
    this.#options = options;
    this.#events = serverEvents(options);
  }

  /** Ignores objects that are new to the watch, for example at its start. */
  changed(after: T | undefined, before: T | undefined): void {
    if (!after || before?.metadata.uid !== after.metadata.uid) return;
    const status = statusOf(after);
    const { phase = '', errors = 0 } = status;
    if (phase === (statusOf(before).phase ?? '')) return;
    const { name } = after.metadata;
    const { logger, kind } = this.#options;
    const meaning = lookup(kind.meanings, phase)?.(name, errors);
    if (meaning === undefined) return;
    const isTrouble = TROUBLE.test(phase);
    this.#events.record(after, phase, meaning, isTrouble ? 'Warning' : 'Normal');
    const fields = { [kind.word]: name, phase, ...facts(status) };
    if (isTrouble) logger.warn(fields, meaning);
    else logger.info(fields, meaning);
  }

  flush(): Promise<void> {
    return this.#events.flush();
  }
}

const statusOf = (object: KubeObject): Status => (object as { status?: Status }).status ?? {};

/** Fields of the log for an ended object. */
function facts(status: Status): object {
  const { completionTimestamp: end, startTimestamp: start, validationErrors = [] } = status;
  const reason = status.failureReason ?? validationErrors.join('; ');
  return {
    ...(reason !== '' && { reason }),
    ...(end && {
      items: status.progress?.totalItems ?? 0,
      errors: status.errors ?? 0,
      warnings: status.warnings ?? 0,
      ...(start && { seconds: (Date.parse(end) - Date.parse(start)) / 1000 }),
    }),
  };
}
