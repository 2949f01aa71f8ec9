import { messageOf, redactAndCut } from '../../../base/index.ts';
import { Controller, EventRecorder, type KubeClient, keyOf, refOf } from '../../../kube/index.ts';
import type { ServerController } from '../../server.ts';
import { isFinalizing, phaseOf } from '../phases.ts';
import type { SharedBackups } from '../shared-backups.ts';
import { finalize, type FinalizeOptions } from './finalize.ts';

export interface FinalizerControllerOptions extends Omit<
  FinalizeOptions,
  'client' | 'assertLeading' | 'signal'
> {
  readonly client: KubeClient;
  readonly host: string;
  readonly backups: SharedBackups;
}

/** Backups ended side by side. They have nothing in common with those that run. Our choice. */
const WORKERS = 10;
/** Of one location: where it hangs, others go on. Our choice. */
const OF_LOCATION_MAX = 2;
const AGAIN_MS = 1000;

/** Ends Backups whose operations are over. Velero's controller of that name. */
export class FinalizerController implements ServerController {
  readonly name = 'backup-finalizer';
  readonly #options: FinalizerControllerOptions;

  constructor(options: FinalizerControllerOptions) {
    this.#options = options;
  }

  get failure(): string | undefined {
    return this.#options.backups.failure;
  }

  async run(signal: AbortSignal, assertLeading: () => void): Promise<void> {
    const { client, logger, host, backups } = this.#options;
    await using watched = await backups.open(signal);
    const { cache } = watched;
    const component = 'longshore-server';
    const events = new EventRecorder({ client, logger, host, component, clock: client.clock });
    /** Backups of each location. */
    const atWork = new Map<string, number>();
    const controller = new Controller({
      ...{ name: this.name, workers: WORKERS, logger },
      reconcile: async (key) => {
        const backup = cache.get(refOf(key));
        if (!backup || !isFinalizing(phaseOf(backup))) return undefined;
        const { storageLocation = '' } = backup.spec;
        const busy = atWork.get(storageLocation) ?? 0;
        if (busy >= OF_LOCATION_MAX) return { requeueAfterMs: AGAIN_MS };
        atWork.set(storageLocation, busy + 1);
        try {
          await finalize(refOf(key), { ...this.#options, assertLeading, signal });
        } catch (error) {
          // Tried again by the controller, more and more seldom; the user can see why it is not over.
          if (!signal.aborted) {
            const text = `it cannot be completed yet: ${redactAndCut(messageOf(error))}`;
            events.record(backup, 'NotFinalized', text, 'Warning');
          }
          throw error;
        } finally {
          atWork.set(storageLocation, (atWork.get(storageLocation) ?? 1) - 1);
        }
        return undefined;
      },
    });
    const working = controller.run(signal);
    cache.onChange((after) => {
      if (after && isFinalizing(phaseOf(after))) controller.queue.add(keyOf(after.metadata));
    });
    await working;
    await events.flush();
  }
}
