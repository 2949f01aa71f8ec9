import { lookup } from '../../base/index.ts';
import type { Logger } from '../../base/index.ts';
import type { EventRecorder, EventRecorderOptions, KubeObject } from '../../kube/index.ts';
import { serverEvents } from '../server-events.ts';

/** The meaning of each phase, by its name. Velero writes no such Events. */
export type PhaseMeanings = Readonly<Record<string, (name: string, errors: number) => string>>;

export const errorsText = (errors: number): string =>
  errors === 1 ? '1 error' : `${errors} errors`;

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

export interface PhaseEventsOptions extends Omit<EventRecorderOptions, 'component'> {
  /** Used as a field of the log. */
  readonly kind: 'backup' | 'restore';
  readonly meanings: PhaseMeanings;
}

/**
 * Records phase changes of Backups or Restores as Events and log lines. Events are best effort:
 * they are lost if they cannot be written or are too many.
 */
export class PhaseEvents<T extends KubeObject> {
  readonly #options: PhaseEventsOptions;
  readonly #events: EventRecorder;

  constructor(options: PhaseEventsOptions) {
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
    const meaning = lookup(this.#options.meanings, phase)?.(name, errors);
    if (meaning === undefined) return;
    const isTrouble = TROUBLE.test(phase);
    this.#events.record(after, phase, meaning, isTrouble ? 'Warning' : 'Normal');
    const { logger, kind }: { logger: Logger; kind: string } = this.#options;
    const fields = { [kind]: name, phase, ...facts(status) };
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
