import { isCode, type Logger, rfc3339Seconds } from '../base/index.ts';
import {
  Cache,
  Controller,
  type KubeClient,
  keyOf,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  type PodVolume,
  type Resource,
  type Result,
  refOf,
} from '../kube/index.ts';
import { Roster } from './roster.ts';

export interface PodVolumesOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly node: string;
  readonly roster: Roster;
  /** {@link PATIENCE_MS}, or less in tests. */
  readonly patienceMs?: number;
}

const FINALIZER = 'velero.io/pod-volume-finalizer';
const FINAL = ['Completed', 'Failed', 'Canceled'];
const WORKERS = 2;
/** During a rolling update Velero's own agent on the node of the pod may still serve it. Our choice. */
const PATIENCE_MS = 30_000;
const AGAIN_MS = 60_000;
/** Shown to the users of file-system backups. */
export const NOT_SERVED =
  'this node-agent does not serve file-system backups yet: back this volume up by a CSI snapshot, or leave it out ' +
  "(docs/operating.md); Velero's own node-agent serves them";

/**
 * Ends PodVolumeBackups and PodVolumeRestores in place of Velero's node-agent: nobody serves them there, and the server would
 * wait for hours. What other agents ended loses its finalizer, so that backups can be deleted.
 */
export class PodVolumes {
  readonly #options: PodVolumesOptions;

  constructor(options: PodVolumesOptions) {
    this.#options = options;
  }

  /** Runs until aborted. */
  async run(signal: AbortSignal): Promise<void> {
    const kinds = [POD_VOLUME_BACKUPS, POD_VOLUME_RESTORES];
    await Promise.all(kinds.map((resource) => this.#serve(resource, signal)));
  }

  async #serve(resource: Resource<PodVolume>, signal: AbortSignal): Promise<void> {
    const { client, logger, namespace } = this.#options;
    const cache = new Cache({ client, logger, resource, scope: { namespace }, trim: trimmed });
    const seenMs = new Map<string, number>();
    const controller = new Controller({
      name: resource.kind,
      workers: WORKERS,
      logger,
      reconcile: (key) => this.#look(resource, cache, seenMs, key),
    });
    cache.onChange((after, before) => {
      if (after) controller.queue.add(keyOf(after.metadata));
      else if (before) seenMs.delete(before.metadata.uid);
    });
    await Promise.all([cache.run(signal), controller.run(signal)]);
  }

  async #look(
    resource: Resource<PodVolume>,
    cache: Cache<PodVolume>,
    seenMs: Map<string, number>,
    key: string,
  ): Promise<Result | undefined> {
    const volume = cache.get(refOf(key));
    if (!volume || isOver(volume)) return undefined;
    const { node, roster, patienceMs = PATIENCE_MS } = this.#options;
    const owner = volume.spec.node ?? volume.status?.node;
    if (owner !== node) {
      if (owner !== undefined && roster.isAlive(owner)) return { requeueAfterMs: AGAIN_MS };
      const { uid } = volume.metadata;
      const now = performance.now();
      const first = seenMs.get(uid) ?? now;
      seenMs.set(uid, first);
      const waitMs = first + patienceMs + Roster.turnMs(roster.rank(uid)) - now;
      if (waitMs > 0) return { requeueAfterMs: waitMs };
    }
    await this.#end(resource, volume);
    return undefined;
  }

  async #end(resource: Resource<PodVolume>, { metadata }: PodVolume): Promise<void> {
    const { client, logger } = this.#options;
    // All of it: the cache keeps only what is looked at here.
    const volume = await client.find(resource, metadata);
    if (volume?.metadata.uid !== metadata.uid || isOver(volume)) return;
    const isFinal = FINAL.includes(volume.status?.phase ?? '');
    if (!isFinal) {
      const time = rfc3339Seconds(client.clock.nowNs());
      volume.status = {
        ...volume.status,
        phase: 'Failed',
        message: NOT_SERVED,
        startTimestamp: volume.status?.startTimestamp ?? time,
        completionTimestamp: time,
      };
    }
    const finalizers = volume.metadata.finalizers ?? [];
    volume.metadata.finalizers = finalizers.filter((name) => name !== FINALIZER);
    try {
      await client.replace(resource, volume);
    } catch (error) {
      if (isCode(error, 'KUBE_NOT_FOUND')) return;
      throw error;
    }
    if (!isFinal) logger.warn({ kind: resource.kind, name: metadata.name }, NOT_SERVED);
  }
}

/** Final, and nothing keeps it from being deleted. */
const isOver = ({ metadata, status }: PodVolume): boolean =>
  FINAL.includes(status?.phase ?? '') && metadata.finalizers?.includes(FINALIZER) !== true;

function trimmed({ apiVersion, kind, metadata, spec, status }: PodVolume): PodVolume {
  const { name, namespace, uid, resourceVersion, creationTimestamp, finalizers } = metadata;
  return {
    apiVersion,
    kind,
    metadata: { name, namespace, uid, resourceVersion, creationTimestamp, finalizers },
    spec: { node: spec.node },
    status: { phase: status?.phase, node: status?.node },
  } as PodVolume;
}
