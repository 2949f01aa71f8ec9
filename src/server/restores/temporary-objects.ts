import { HOUR_NS, isCode, messageOf, MINUTE_NS } from '../../base/index.ts';
import {
  CONFIG_MAPS,
  type ConfigMap,
  isOver,
  type KubeClient,
  type Restore,
  type Result,
  validLabel,
} from '../../kube/index.ts';
import type { Lead } from '../leading-controller.ts';
import { PeriodicPass } from '../periodic-pass.ts';
import { phaseOf } from './restore-kind.ts';

/** Velero: pkg/apis/velero/v1/labels_annotations.go. */
const RESTORE_UID = 'velero.io/restore-uid';
const USAGE = 'velero.io/resource-usage=DataUpload';

type RemovalOptions = Pick<Lead, 'signal' | 'assertLeading'>;

/**
 * Removes temporary objects of a restore: a ConfigMap for each DataUpload, which the actions of its
 * PVCs read. They are useless after the items. May be repeated. Throws `KUBE_*` errors. Velero
 * deletes them at the end of the run (pkg/restore/restore.go), and leaves them after an error or
 * kill.
 */
export async function removeTemporaryObjects(
  client: Pick<KubeClient, 'list' | 'delete'>,
  { metadata: { namespace, uid } }: Restore,
  options: RemovalOptions,
): Promise<void> {
  const { signal } = options;
  const labelSelector = `${RESTORE_UID}=${validLabel(uid)},${USAGE}`;
  for (const found of await client.list(CONFIG_MAPS, { namespace, labelSelector, signal })) {
    await remove(client, found, options);
  }
}

async function remove(
  client: Pick<KubeClient, 'delete'>,
  { metadata }: ConfigMap,
  { signal, assertLeading }: RemovalOptions,
): Promise<void> {
  assertLeading();
  try {
    await client.delete(CONFIG_MAPS, metadata, { uid: metadata.uid, signal });
  } catch (error) {
    // Already deleted or replaced.
    if (!isCode(error, 'KUBE_NOT_FOUND', 'KUBE_CONFLICT')) throw error;
  }
}

/**
 * Age at which objects of an unknown Restore are removed: a new one may not be in the watch yet.
 * Our choice.
 */
const UNKNOWN_NS = 10n * MINUTE_NS;
const SWEEP_MS = Number(HOUR_NS / 1_000_000n);

export interface TemporaryObjectsOptions {
  readonly lead: Lead;
  /** The current Restores. */
  readonly restores: () => readonly Restore[];
}

/**
 * Removes temporary objects that failed, canceled, deleted or killed runs have left. Runs every
 * hour and after each restore.
 */
export class TemporaryObjects extends PeriodicPass {
  readonly #options: TemporaryObjectsOptions;

  /** Call {@link look} when a Restore has ended or is deleted. */
  constructor(options: TemporaryObjectsOptions) {
    super('restore-leftovers', options.lead);
    this.#options = options;
  }

  protected async sweep(): Promise<Result> {
    const { lead, restores } = this.#options;
    const { client, logger, namespace, signal } = lead;
    const again = { requeueAfterMs: SWEEP_MS };
    const found = await client.list(CONFIG_MAPS, { namespace, labelSelector: USAGE, signal });
    if (found.length === 0) return again;
    const known = new Map(
      restores().map((restore) => [validLabel(restore.metadata.uid), restore] as const),
    );
    const oldMs = Number((client.clock.nowNs() - UNKNOWN_NS) / 1_000_000n);
    for (const map of found) {
      const uid = map.metadata.labels?.[RESTORE_UID] ?? '';
      const restore = known.get(uid);
      const isOld = Date.parse(map.metadata.creationTimestamp ?? '') < oldMs;
      if (uid === '' || (restore ? !isOver(phaseOf(restore)) : !isOld)) continue;
      try {
        await remove(client, map, lead);
      } catch (error) {
        signal.throwIfAborted();
        const fields = { configMap: map.metadata.name, error: messageOf(error) };
        logger.warn(fields, 'a ConfigMap of a restore that is over could not be removed');
      }
    }
    return again;
  }
}
