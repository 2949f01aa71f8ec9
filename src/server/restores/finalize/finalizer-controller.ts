import { HOUR_NS, type Logger, type Nanoseconds } from '../../../base/index.ts';
import type { OperationMap } from '../../../item-operations/index.ts';
import {
  isFinalizing,
  isOver,
  isWaiting,
  type KubeClient,
  type Restore,
} from '../../../kube/index.ts';
import type { Buckets } from '../../backups/contract.ts';
import { FinalizerQueue } from '../../operations/finalized-objects.ts';
import { patientClient } from '../../runs/while-away.ts';
import type { ServerController } from '../../server.ts';
import { Absences, RESOURCE_TIMEOUT_NS } from '../absences.ts';
import { AfterRunFiles } from '../after-run-files.ts';
import { FollowedHooks, type FollowedHooksOptions } from '../hooks/followed-hooks.ts';
import type { FileWriters } from '../../runs/file-writers.ts';
import type { RestoreLocations } from '../locations.ts';
import { FOLLOWED_RESTORES, phaseOf } from '../restore-kind.ts';
import type { SharedRestores } from '../shared-restores.ts';
import { TemporaryObjects } from '../temporary-objects.ts';
import { UnpublishedRestores } from '../unpublished.ts';
import { type FinalizeRestoreOptions, finalizeRestore, giveUp } from './finalize.ts';
import { Waits } from './waits.ts';

export interface RestoreFinalizerControllerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly host: string;
  readonly namespace: string;
  readonly restores: SharedRestores;
  /** The one that the other controllers of restores use. */
  readonly map: OperationMap;
  readonly buckets: Buckets;
  readonly locations: RestoreLocations;
  readonly writers: FileWriters;
  readonly scratch: string;
  /** `--resource-timeout`; 10 minutes where nothing is said. */
  readonly resourceTimeoutNs?: Nanoseconds;
  /** How long hooks without a time of their own are waited for; 4 hours where nothing is said. */
  readonly hookTimeoutNs?: Nanoseconds;
  /** How long the files of one may be out of reach; less in tests. */
  readonly awayNs?: Nanoseconds;
  /** In tests. */
  readonly watch?: FollowedHooksOptions['watch'];
  readonly unpublishedAgainMs?: number;
}

/** Velero waits for ever. Our choice: as long as operations may take. */
const HOOK_TIMEOUT_NS = 4n * HOUR_NS;

/**
 * Ends Restores whose operations are over, and runs the hooks that their runs have left. Velero's
 * controller of that name.
 */
export class RestoreFinalizerController implements ServerController {
  readonly name = 'restore-finalizer';
  readonly #options: RestoreFinalizerControllerOptions;

  constructor(options: RestoreFinalizerControllerOptions) {
    this.#options = options;
  }

  get failure(): string | undefined {
    return this.#options.restores.failure;
  }

  async run(signal: AbortSignal, assertLeading: () => void): Promise<void> {
    const { client, logger, host, namespace, restores, buckets, locations, writers } =
      this.#options;
    const { watch, resourceTimeoutNs = 0n, hookTimeoutNs = 0n } = this.#options;
    await using watched = await restores.open(signal);
    const files = new AfterRunFiles({ buckets, locations, writers });
    const waits = new Waits(client.clock);
    // A time-out of nothing is none that anybody wants.
    const boundNs = resourceTimeoutNs > 0n ? resourceTimeoutNs : RESOURCE_TIMEOUT_NS;
    const absences = new Absences({ client, clock: client.clock, boundNs, assertLeading });
    // A hook must not be lost to an API server that is away for a while.
    const cluster = patientClient(client, { logger, signal, assertLeading });
    const hooks = new FollowedHooks({
      client,
      logger,
      files,
      signal,
      assertLeading,
      exec: (question, asked) => cluster.exec({ ...question, signal: asked }),
      ...(watch && { watch }),
      onOver: (key) => {
        finalizer.look(key);
      },
    });
    const parts: FinalizeRestoreOptions = {
      ...this.#options,
      resourceTimeoutNs: boundNs,
      hookTimeoutNs: hookTimeoutNs > 0n ? hookTimeoutNs : HOOK_TIMEOUT_NS,
      files,
      waits,
      absences,
      hooks,
      assertLeading,
      signal,
    };
    const finalizer = new FinalizerQueue<Restore>({
      client,
      logger,
      host,
      kind: FOLLOWED_RESTORES,
      awayNs: this.#options.awayNs,
      signal,
      // Of the backup: all of one location have the same, and two of different ones seldom do.
      placeOf: ({ spec }) => spec.backupName ?? '',
      finalize: ({ metadata }) => writers.run(metadata.uid, () => finalizeRestore(metadata, parts)),
      giveUp: async (restore, reason) => {
        await writers.run(restore.metadata.uid, () => giveUp(restore, reason, parts));
      },
    });
    const temporary = new TemporaryObjects({
      client,
      logger,
      namespace,
      signal,
      assertLeading,
      restores: () => watched.cache.list(),
    });
    const unpublished = new UnpublishedRestores({
      client,
      buckets,
      locations,
      writers,
      logger,
      signal,
      assertLeading,
      restores: () => watched.cache.list(),
      againMs: this.#options.unpublishedAgainMs,
    });
    watched.cache.onChange((after, before) => {
      const restore = after ?? before;
      if (!restore) return;
      const { uid, deletionTimestamp } = restore.metadata;
      const phase = after && deletionTimestamp === undefined ? phaseOf(after) : '';
      if (isWaiting(phase) || isFinalizing(phase)) hooks.begin(restore);
      else hooks.stop(uid);
      if (!after) {
        waits.forget(uid);
        absences.forget(uid);
      }
      const isEnd = before !== undefined && (!after || isOver(phaseOf(after)));
      if (isEnd && !isOver(phaseOf(before))) {
        temporary.look();
        unpublished.look();
      }
    });
    await Promise.all([finalizer.run(watched), temporary.run(), unpublished.run()]);
    await hooks.ended();
  }
}
