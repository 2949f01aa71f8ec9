import type { KubeClient } from '../../../kube/index.ts';
import { FinalizerQueue } from '../../operations/finalized-objects.ts';
import type { ServerController } from '../../server.ts';
import { FOLLOWED_BACKUPS } from '../phases.ts';
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
    const { writers } = backups;
    await using watched = await backups.open(signal);
    const finalizer = new FinalizerQueue({
      ...{ client, logger, host, kind: FOLLOWED_BACKUPS, signal },
      placeOf: ({ spec }) => spec.storageLocation ?? '',
      finalize: async ({ metadata }) => {
        await writers.run(metadata.uid, async (closing) => {
          const own = AbortSignal.any([signal, closing]);
          try {
            await finalize(metadata, { ...this.#options, assertLeading, signal: own });
          } catch (error) {
            // Whoever deletes it ends it.
            if (!closing.aborted) throw error;
          }
        });
        return undefined;
      },
    });
    await finalizer.run(watched);
  }
}
