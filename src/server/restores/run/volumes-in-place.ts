import { setTimeout as sleep } from 'node:timers/promises';
import type { BackupLog } from '../../../backup/index.ts';
import { isRunning, type Round } from '../../../item-operations/index.ts';
import { isInPlaceOperation } from '../../../plugin/index.ts';
import type { StartedRestoreOperation, VolumesInPlace } from '../../../restore/index.ts';

export interface RestoredInPlaceOptions {
  /** Asks about all operations of the restore, and ends those whose time is over. */
  readonly poll: () => Promise<Pick<Round, 'operations'>>;
  /** Around the wait: other restores may go on meanwhile. */
  readonly whileWaiting: (task: () => Promise<void>) => Promise<void>;
  readonly log: Pick<BackupLog, 'info'>;
  readonly signal: AbortSignal;
  readonly pollMs?: number | undefined;
}

/** Data movers report that often at most. Our choice. */
const POLL_MS = 2000;
/** Claims that a message names. */
const NAMED_MAX = 5;

type Claim = Pick<StartedRestoreOperation['item'], 'namespace' | 'name'>;

/** Volumes that a restore brings back in place, by their operations: those of this try and of earlier ones. */
export class RestoredInPlace implements VolumesInPlace {
  readonly #options: RestoredInPlaceOptions;
  /** By the ID of the operation. */
  readonly #open = new Map<string, Claim>();
  readonly #failed = new Map<string, Claim[]>();

  constructor(options: RestoredInPlaceOptions) {
    this.#options = options;
  }

  note(operations: readonly StartedRestoreOperation[]): void {
    for (const { operationId, item } of operations) {
      if (isInPlaceOperation(operationId)) this.#open.set(operationId, item);
    }
  }

  async settled(): Promise<void> {
    if (this.#open.size === 0) return;
    const { log, whileWaiting } = this.#options;
    const names = namesOf([...this.#open.values()]);
    log.info(`what may use volumes waits until these are brought back in place: ${names}`);
    await whileWaiting(() => this.#untilSettled());
    log.info('volumes are settled, and the restore goes on');
  }

  async #untilSettled(): Promise<void> {
    const { poll, signal, pollMs = POLL_MS } = this.#options;
    for (;;) {
      signal.throwIfAborted();
      for (const operation of (await poll()).operations) {
        const claim = this.#open.get(operation.spec.operationID);
        if (!claim || isRunning(operation)) continue;
        this.#open.delete(operation.spec.operationID);
        if (operation.status.phase === 'Completed') continue;
        this.#failed.set(claim.namespace, [...(this.#failed.get(claim.namespace) ?? []), claim]);
      }
      if (this.#open.size === 0) return;
      await sleep(pollMs, undefined, { signal });
    }
  }

  problemOf(namespace: string): string | undefined {
    const failed = this.#failed.get(namespace);
    if (!failed) return undefined;
    const some = failed.length === 1 ? 'a volume of it was' : 'volumes of it were';
    return `what may use volumes is not restored in namespace ${namespace}, since ${some} not brought back whole: ${namesOf(failed)}; restore the backup again, which goes on with them`;
  }
}

function namesOf(claims: readonly Claim[]): string {
  const named = claims.slice(0, NAMED_MAX).map(({ namespace, name }) => `${namespace}/${name}`);
  const more = claims.length > named.length ? ` and ${claims.length - named.length} more` : '';
  return `${named.join(', ')}${more}`;
}
