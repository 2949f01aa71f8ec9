import type { Nanoseconds } from '../../../base/index.ts';
import type { KubeClient } from '../../../kube/index.ts';
import { FinalizerQueue } from '../../operations/finalized-objects.ts';
import type { ServerController } from '../../server.ts';
import { BACKUP_RUNS } from '../backup-kind.ts';
import type { SharedBackups } from '../shared-backups.ts';
import { finalize, type FinalizeOptions, giveUp } from './finalize.ts';

export interface FinalizerControllerOptions extends Omit<
  FinalizeOptions,
  'client' | 'assertLeading' | 'signal'
> {
  readonly client: KubeClient;
  readonly host: string;
  readonly backups: SharedBackups;
  /** How long files may be out of reach; shorter in tests. */
  readonly awayNs?: Nanoseconds;
}

/** Velero's controller of the same name: finalizes Backups. */
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
    const { client, logger, host, backups, awayNs } = this.#options;
    const { writers } = backups;
    await using watched = await backups.open(signal);
    const finalizer = new FinalizerQueue({
      client,
      logger,
      host,
      kind: BACKUP_RUNS,
      awayNs,
      signal,
      placeOf: ({ spec }) => spec.storageLocation ?? '',
      giveUp: async (backup, reason) => {
        const options = { ...this.#options, assertLeading, signal };
        await writers.run(backup.metadata.uid, () => giveUp(backup, reason, options));
      },
      finalize: async ({ metadata }) => {
        await writers.run(metadata.uid, async (closing) => {
          const own = AbortSignal.any([signal, closing]);
          try {
            await finalize(metadata, { ...this.#options, assertLeading, signal: own });
          } catch (error) {
            // The deletion controller ends it.
            if (!closing.aborted) throw error;
          }
        });
        return undefined;
      },
    });
    await finalizer.run(watched);
  }
}
