import {
  isCode,
  type Logger,
  messageOf,
  type Nanoseconds,
  redactAndCut,
} from '../../../base/index.ts';
import type { OperationAsker, OperationMap } from '../../../item-operations/index.ts';
import type { KubeClient, Restore } from '../../../kube/index.ts';
import type { Buckets } from '../../backups/contract.ts';
import { cancelOperations } from '../../operations/cancel-operations.ts';
import {
  FollowedOperations,
  type OperationsSettings,
} from '../../operations/followed-operations.ts';
import type { AskingSession } from '../../operations/plugin-progress.ts';
import { isCanceled } from '../../runs/run-kind.ts';
import type { ServerController } from '../../server.ts';
import {
  ABSENT_SINCE,
  MissingSources,
  isPlaceAbsent,
  LACKS,
  RESOURCE_TIMEOUT_NS,
} from '../missing-sources.ts';
import type { FileWriters } from '../../runs/file-writers.ts';
import type { RestoreLocations } from '../locations.ts';
import { RESTORE_RUNS, subjectOf, UNPUBLISHED } from '../restore-kind.ts';
import type { SharedRestores } from '../shared-restores.ts';
import { removeTemporaryObjects } from '../temporary-objects.ts';
import { restoreOperationsStep } from './operations-step.ts';

/** Opens the restore item actions of plugins. */
export interface RestoreAskers {
  /** `logger` gets the log of the plugins. */
  open(restore: Restore, logger: Logger): Promise<AskingSession>;
}

/** Without `isReadOnly`: Velero, too, writes files of a restore into read-only locations. */
export interface RestoreOperationsControllerOptions extends Omit<
  OperationsSettings<Restore>,
  'isReadOnly'
> {
  readonly restores: SharedRestores;
  readonly locations: RestoreLocations;
  readonly writers: FileWriters;
  readonly buckets: Buckets;
  readonly sessions: RestoreAskers;
  readonly scratch: string;
  /** `--resource-timeout`; 10 minutes by default. */
  readonly resourceTimeoutNs?: Nanoseconds;
}

/** Velero's controller of the same name: follows operations of waiting Restores. */
export class RestoreOperationsController implements ServerController {
  readonly name = 'restore-operations';
  readonly #options: RestoreOperationsControllerOptions;

  constructor(options: RestoreOperationsControllerOptions) {
    this.#options = options;
  }

  get failure(): string | undefined {
    return this.#options.restores.failure;
  }

  async run(signal: AbortSignal, assertLeading: () => void): Promise<void> {
    const options = this.#options;
    const { restores, client, map, buckets, locations, writers, scratch, sessions, logger } =
      options;
    const { resourceTimeoutNs = 0n } = options;
    const boundNs = resourceTimeoutNs > 0n ? resourceTimeoutNs : RESOURCE_TIMEOUT_NS;
    const absences = new MissingSources({ client, clock: client.clock, boundNs, assertLeading });
    await using watched = await restores.open(signal);
    const followed = new FollowedOperations(
      {
        ...options,
        kind: RESTORE_RUNS,
        isReadOnly: () => Promise.resolve(false),
        open: (restore) => sessions.open(restore, logger),
        locationOf: (restore) => locations.of(restore, signal),
        step: (restore, step) =>
          restoreOperationsStep(restore, {
            ...step,
            client,
            map,
            buckets,
            locations,
            writers,
            scratch,
            absences,
          }),
        isCanceled,
        whenDeleted: async (restore, asker) => {
          const end = { client, logger, map, asker, assertLeading, signal };
          const untold = await endRestore(restore, end);
          const fields = { restore: restore.metadata.name, untold };
          logger.info(fields, 'operations of a restore that is deleted are told to stop');
        },
        whenGivenUp: async (restore) => {
          await removeTemporaryObjects(client, restore, { signal, assertLeading });
          return `; ${LACKS}`;
        },
        givenUpAnnotations: { [UNPUBLISHED]: 'true', [ABSENT_SINCE]: null },
        absences: {
          isOne: isPlaceAbsent,
          boundSeconds: absences.boundSeconds,
          isOver: (restore) => absences.isOver(restore, signal),
          ended: (restore) => absences.ended(restore, signal),
        },
      },
      watched,
      { signal, assertLeading },
    );
    await followed.run();
  }
}

interface EndedRestoreOptions {
  readonly client: Pick<KubeClient, 'list' | 'delete'>;
  readonly logger: Logger;
  readonly map: Pick<OperationMap, 'cancel'>;
  readonly asker: OperationAsker;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

/**
 * Ends a deleted or canceled Restore that waits: cancels operations and removes temporary objects.
 * Call it before its files are deleted, because they name the operations. May be repeated. Returns
 * a sentence about operations that could not be canceled. Throws errors that are worth a retry.
 */
export async function endRestore(
  restore: Restore,
  { client, logger, map, asker, assertLeading, signal }: EndedRestoreOptions,
): Promise<string | undefined> {
  await removeTemporaryObjects(client, restore, { signal, assertLeading });
  try {
    return await cancelOperations(map, subjectOf(restore), { asker, signal });
  } catch (error) {
    signal.throwIfAborted();
    // The operations are unknown without the backup or the location.
    if (!isCode(error, 'NO_BACKUP', 'NO_LOCATION')) throw error;
    const because = redactAndCut(messageOf(error));
    logger.warn({ restore: restore.metadata.name, error: because }, 'operations are not known');
    return because;
  }
}
