import type { Backup } from '../../../kube/index.ts';
import {
  FollowedOperations,
  type OperationsSettings,
} from '../../operations/followed-operations.ts';
import type { ServerController } from '../../server.ts';
import { BACKUP_RUNS } from '../backup-kind.ts';
import type { ActionSessions, Buckets } from '../contract.ts';
import type { SharedBackups } from '../shared-backups.ts';
import { operationsStep } from './operations-step.ts';

export interface OperationsControllerOptions extends OperationsSettings<Backup> {
  readonly backups: SharedBackups;
  readonly buckets: Buckets;
  readonly sessions: ActionSessions;
  readonly scratch: string;
}

/** Velero's controller of the same name: follows operations of waiting Backups. */
export class OperationsController implements ServerController {
  readonly name = 'backup-operations';
  readonly #options: OperationsControllerOptions;

  constructor(options: OperationsControllerOptions) {
    this.#options = options;
  }

  get failure(): string | undefined {
    return this.#options.backups.failure;
  }

  async run(signal: AbortSignal, assertLeading: () => void): Promise<void> {
    const { backups, client, map, buckets, scratch, sessions, logger } = this.#options;
    await using watched = await backups.open(signal);
    const followed = new FollowedOperations(
      {
        ...this.#options,
        kind: BACKUP_RUNS,
        open: (backup) => sessions.open(backup, logger),
        locationOf: ({ spec }) => Promise.resolve(spec.storageLocation ?? ''),
        step: (backup, options) =>
          operationsStep(backup, {
            ...options,
            client,
            map,
            buckets,
            scratch,
            writers: backups.writers,
          }),
      },
      watched,
      { signal, assertLeading },
    );
    await followed.run();
  }
}
