import { Counter, Gauge, type Registry } from 'prom-client';
import { type Clock, parseGoTime, SECOND_NS } from '../../base/index.ts';
import { actionOf, isRunning, type Operation } from '../../item-operations/index.ts';

/** What dashboards show of operations that go on. Nothing is asked for a scrape. */
export class OperationMetrics {
  readonly #running = new Map<string, readonly Operation[]>();
  readonly #failures: Counter<'plugin'>;

  constructor({ registry, clock }: { readonly registry: Registry; readonly clock: Clock }) {
    const registers = [registry];
    const running = (): Operation[] => [...this.#running.values()].flat();
    new Gauge({
      name: 'longshore_item_operations_oldest_age_seconds',
      help: 'Age of the oldest operation that runs; 0 where none does',
      registers,
      collect() {
        const nowNs = clock.nowNs();
        const ages = running().map((operation) => ageSecondsOf(operation, nowNs));
        this.set(ages.reduce((a, b) => Math.max(a, b), 0));
      },
    });
    new Gauge({
      name: 'longshore_item_operations_left_bytes',
      help: 'Bytes that running operations have still to move, as far as their plugins say so',
      registers,
      collect() {
        this.set(running().reduce((sum, operation) => sum + bytesLeftOf(operation), 0));
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
      },
    });
    this.#failures = new Counter({
      name: 'longshore_item_operation_failures_total',
      help: 'Operations that this process saw fail, by plugin',
      labelNames: ['plugin'],
      registers,
    });
  }

  note(
    uid: string,
    round: { operations: readonly Operation[]; ended: readonly Operation[] },
  ): void {
    this.#running.set(uid, round.operations.filter(isRunning));
    for (const operation of round.ended) {
      if (operation.status.phase === 'Failed') this.#failures.inc({ plugin: actionOf(operation) });
    }
  }

  forget(uid: string): void {
    this.#running.delete(uid);
  }

  /** Of a process that leads no more. */
  clear(): void {
    this.#running.clear();
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
