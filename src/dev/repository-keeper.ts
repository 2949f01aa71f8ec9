import { type Clock, type Logger, messageOf, rfc3339Seconds } from '../base/index.ts';
import {
  BACKUP_REPOSITORIES,
  type BackupRepository,
  Cache,
  Controller,
  type KubeClient,
  keyOf,
  refOf,
} from '../kube/index.ts';

export interface RepositoryKeeperOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly namespace: string;
  /** Creates the repository if it does not exist. */
  readonly prepare: (repository: BackupRepository) => Promise<void>;
}

/** Plays the backup server for BackupRepositories: makes new ones ready. */
export class RepositoryKeeper {
  readonly #options: RepositoryKeeperOptions;

  constructor(options: RepositoryKeeperOptions) {
    this.#options = options;
  }

  async run(signal: AbortSignal): Promise<void> {
    const { client, logger, namespace } = this.#options;
    const cache = new Cache({
      client,
      logger,
      resource: BACKUP_REPOSITORIES,
      scope: { namespace },
    });
    const controller = new Controller({
      name: 'backup-repositories',
      workers: 1,
      logger,
      reconcile: async (key) => {
        const repository = cache.get(refOf(key));
        if (!repository || repository.status?.phase === 'Ready') return undefined;
        const status = await this.#prepare(repository);
        await client.patch(BACKUP_REPOSITORIES, repository.metadata, { status });
        return status.phase === 'Ready' ? undefined : { requeueAfterMs: 5000 };
      },
    });
    cache.onChange((repository) => {
      if (repository) controller.queue.add(keyOf(repository.metadata));
    });
    await Promise.all([cache.run(signal), controller.run(signal)]);
  }

  async #prepare(
    repository: BackupRepository,
  ): Promise<{ phase: string; message: string; lastMaintenanceTime?: string }> {
    try {
      await this.#options.prepare(repository);
      const lastMaintenanceTime = rfc3339Seconds(this.#options.clock.nowNs());
      return { phase: 'Ready', message: '', lastMaintenanceTime };
    } catch (error) {
      return { phase: 'NotReady', message: messageOf(error) };
    }
  }
}
