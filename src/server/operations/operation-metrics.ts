import { Counter, Gauge, type Registry } from 'prom-client';
import { type Clock, parseGoTime, SECOND_NS } from '../../base/index.ts';
import { actionOf, isRunning, type Operation } from '../../item-operations/index.ts';

/** Labels for operations that are not read yet: only the status of their object counts them. */
const UNKNOWN = { plugin: '', phase: 'Unknown' };

/**
 * Metrics of running operations. A scrape sends no requests. Without complete data there is no
 * value, because 0 would end alerts.
 */
export class OperationMetrics {
  /** Gauges of the controllers that follow operations in this process. */
  readonly #followers = new Set<OperationGauge>();
  readonly #failures: Counter<'plugin'>;

  constructor({ registry, clock }: { readonly registry: Registry; readonly clock: Clock }) {
    const registers = [registry];
    const followers = this.#followers;
    const running = (): Operation[] => [...followers].flatMap((each) => each.running);
    const isComplete = (): boolean =>
      followers.size > 0 && [...followers].every((each) => each.unread.length === 0);
    new Gauge({
      name: 'longshore_item_operations_oldest_age_seconds',
      help: 'Age of the oldest operation that runs; 0 where none does',
      registers,
      collect() {
        const nowNs = clock.nowNs();
        const ages = running().map((operation) => ageSecondsOf(operation, nowNs));
        // Unread operations may be even older.
        if (isComplete() || ages.length > 0) this.set(ages.reduce((a, b) => Math.max(a, b), 0));
        else this.remove();
      },
    });
    new Gauge({
      name: 'longshore_item_operations_left_bytes',
      help: 'Bytes that running operations have still to move, as far as their plugins say so',
      registers,
      collect() {
        const left = running().reduce((sum, operation) => sum + bytesLeftOf(operation), 0);
        if (isComplete()) this.set(left);
        else this.remove();
      },
    });
    new Gauge({
      name: 'longshore_item_operations',
      help: 'Operations that run, by plugin and phase',
      labelNames: ['plugin', 'phase'],
      registers,
      collect() {
        this.reset();
        for (const operation of running()) {
          this.inc({ plugin: actionOf(operation), phase: operation.status.phase ?? '' });
        }
        for (const number of [...followers].flatMap((each) => each.unread)) {
          this.inc(UNKNOWN, number);
        }
      },
    });
    this.#failures = new Counter({
      name: 'longshore_item_operation_failures_total',
      help: 'Operations that this process saw fail, by plugin',
      labelNames: ['plugin'],
      registers,
    });
  }

  /** Called by a controller that begins to follow operations. The caller disposes the result. */
  follow(): OperationGauge {
    const gauge: OperationGauge = new OperationGauge(this.#failures, () => {
      this.#followers.delete(gauge);
    });
    this.#followers.add(gauge);
    return gauge;
  }
}

/** The values of a single controller. */
export class OperationGauge implements Disposable {
  readonly #running = new Map<string, readonly Operation[]>();
  readonly #unread = new Map<string, number>();
  readonly #failures: Counter<'plugin'>;
  readonly #onEnd: () => void;

  constructor(failures: Counter<'plugin'>, onEnd: () => void) {
    this.#failures = failures;
    this.#onEnd = onEnd;
  }

  get running(): Operation[] {
    return [...this.#running.values()].flat();
  }

  /** Numbers of running operations of the objects that are not read yet. */
  get unread(): number[] {
    return [...this.#unread.values()];
  }

  /** Registers an object with its number of running operations according to its status. */
  expect(uid: string, number: number): void {
    if (!this.#running.has(uid)) this.#unread.set(uid, number);
  }

  note(
    uid: string,
    round: { operations: readonly Operation[]; ended: readonly Operation[] },
  ): void {
    this.#unread.delete(uid);
    this.#running.set(uid, round.operations.filter(isRunning));
    for (const operation of round.ended) {
      if (operation.status.phase === 'Failed') this.#failures.inc({ plugin: actionOf(operation) });
    }
  }

  forget(uid: string): void {
    this.#unread.delete(uid);
    this.#running.delete(uid);
  }

  [Symbol.dispose](): void {
    this.#onEnd();
  }
}

function ageSecondsOf({ status: { created } }: Operation, nowNs: bigint): number {
  try {
    return typeof created === 'string' ? Number((nowNs - parseGoTime(created)) / SECOND_NS) : 0;
  } catch {
    return 0;
  }
}

function bytesLeftOf({ status }: Operation): number {
  if (status.operationUnits?.toLowerCase() !== 'bytes') return 0;
  return Math.max(0, Number(status.nTotal ?? 0) - Number(status.nCompleted ?? 0));
}
