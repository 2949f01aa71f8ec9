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
import { leadOf } from '../../leading-controller.ts';
import { FinalizerQueue } from '../../operations/finalized-objects.ts';
import { patientClient } from '../../runs/api-outage.ts';
import type { ServerController } from '../../server.ts';
import { MissingSources, RESOURCE_TIMEOUT_NS } from '../missing-sources.ts';
import { AfterRunFiles } from '../after-run-files.ts';
import { FollowedHooks, type FollowedHooksOptions } from '../hooks/followed-hooks.ts';
import type { FileWriters } from '../../runs/file-writers.ts';
import type { RestoreLocations } from '../locations.ts';
import { RESTORE_RUNS, phaseOf } from '../restore-kind.ts';
import type { SharedRestores } from '../shared-restores.ts';
import { TemporaryObjects } from '../temporary-objects.ts';
import { UnpublishedRestores } from '../unpublished-restores.ts';
import { type FinalizeRestoreOptions, finalizeRestore, giveUp } from './finalize.ts';
import { RetryTimes } from './retry-times.ts';

export interface RestoreFinalizerControllerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly host: string;
  readonly namespace: string;
  readonly restores: SharedRestores;
  /** Shared with the other controllers of restores. */
  readonly map: OperationMap;
  readonly buckets: Buckets;
  readonly locations: RestoreLocations;
  readonly writers: FileWriters;
  readonly scratch: string;
  /** `--resource-timeout`; 10 minutes by default. */
  readonly resourceTimeoutNs?: Nanoseconds;
  /** Time limit for hooks without a timeout; 4 hours by default. */
  readonly hookTimeoutNs?: Nanoseconds;
  /** How long files may be out of reach; shorter in tests. */
  readonly awayNs?: Nanoseconds;
  /** Tests only. */
  readonly watch?: FollowedHooksOptions['watch'];
  readonly unpublishedAgainMs?: number;
}

/** Velero waits for ever. Our choice: the default timeout of operations. */
const HOOK_TIMEOUT_NS = 4n * HOUR_NS;

/** Velero's controller of the same name. Also runs the hooks that runs have left. */
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
    const { client, logger, host, restores, buckets, locations, writers } = this.#options;
    const lead = leadOf(this.#options, signal, assertLeading);
    const { watch, resourceTimeoutNs = 0n, hookTimeoutNs = 0n } = this.#options;
    await using watched = await restores.open(signal);
    const files = new AfterRunFiles({ buckets, locations, writers });
    const waits = new RetryTimes(client.clock);
    // Treat a timeout of zero as unset.
    const boundNs = resourceTimeoutNs > 0n ? resourceTimeoutNs : RESOURCE_TIMEOUT_NS;
    const absences = new MissingSources({ client, clock: client.clock, boundNs, assertLeading });
    // Hooks must survive an outage of the API server.
    const cluster = patientClient(client, { logger, signal, assertLeading });
    const hooks = new FollowedHooks({
      lead,
      files,
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
      kind: RESTORE_RUNS,
      awayNs: this.#options.awayNs,
      signal,
      placeOf: (restore) => locations.placeOf(restore, signal),
      finalize: ({ metadata }) => writers.run(metadata.uid, () => finalizeRestore(metadata, parts)),
      giveUp: async (restore, reason) => {
        await writers.run(restore.metadata.uid, () => giveUp(restore, reason, parts));
      },
    });
    const known = (): readonly Restore[] => watched.cache.list();
    const temporary = new TemporaryObjects({ lead, restores: known });
    const unpublished = new UnpublishedRestores({
      lead,
      buckets,
      locations,
      writers,
      restores: known,
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
