import { isCode, type Logger, namedFirst, parseSelector, redactAndCut } from '../../base/index.ts';
import {
  BACKUP_UID,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  isMovementOver,
  type KubeClient,
  type KubeObject,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  type Resource,
} from '../../kube/index.ts';
import type { OperationAsker, OperationMap, Subject } from '../../item-operations/index.ts';

/** Number of operations that a `failureReason` names. Our choice. */
const NAMED_MAX = 5;

/** Adds the operations that could not be canceled to a `failureReason`. */
export const withUntold = (reason: string, untold: string | undefined): string =>
  untold === undefined ? reason : `${reason}; ${untold}`;

/**
 * Cancels the operations of a backup or restore that has failed, or is canceled or deleted. Returns
 * a sentence for its `failureReason` if some could not be canceled. Throws the errors of the
 * operation store and the reason of the signal.
 */
export async function cancelOperations(
  map: Pick<OperationMap, 'cancel'>,
  subject: Subject,
  options: { readonly asker: OperationAsker; readonly signal: AbortSignal },
): Promise<string | undefined> {
  const untold = await map.cancel(subject, options);
  const [first] = untold;
  if (!first) return undefined;
  const ids = namedFirst(untold, NAMED_MAX, ({ operation }) => operation.spec.operationID);
  const what = untold.length === 1 ? '1 operation' : `${untold.length} operations`;
  return `${what} could not be told to stop, and may go on: ${ids}: ${redactAndCut(first.error)}`;
}

const MOVEMENTS: Readonly<
  Record<
    Subject['kind'],
    { readonly label: string; readonly kinds: readonly Resource<KubeObject>[] }
  >
> = {
  Backup: { label: BACKUP_UID, kinds: [DATA_UPLOADS, POD_VOLUME_BACKUPS] },
  Restore: { label: 'velero.io/restore-uid', kinds: [DATA_DOWNLOADS, POD_VOLUME_RESTORES] },
};

type Movement = KubeObject & {
  readonly spec?: { readonly cancel?: boolean };
  readonly status?: { readonly phase?: string } | null;
};

/**
 * Cancels all data movements that carry the UID of an ended backup or restore. The journal lacks
 * movements that a server created right before it was killed. Throws the errors of the API server.
 */
export async function cancelMovements(
  client: Pick<KubeClient, 'collect' | 'patch'>,
  kind: Subject['kind'],
  { name, uid, namespace = '' }: KubeObject['metadata'],
  options: {
    readonly logger: Logger;
    readonly assertLeading?: (() => void) | undefined;
    readonly signal: AbortSignal;
  },
): Promise<void> {
  const { logger, assertLeading, signal } = options;
  const { label, kinds } = MOVEMENTS[kind];
  const query = { namespace, labelSelector: `${label}=${uid}`, signal };
  for (const resource of kinds) {
    for (const ref of await runningOf(client, resource, query)) {
      assertLeading?.();
      try {
        const patch = { metadata: { uid: ref.uid }, spec: { cancel: true } };
        await client.patch(resource, ref, patch, { signal });
        const fields = { [kind.toLowerCase()]: name, [resource.kind]: ref.name };
        logger.info(fields, 'a movement that no journal has is told to stop');
      } catch (error) {
        if (!isCode(error, 'KUBE_NOT_FOUND', 'KUBE_CONFLICT')) throw error;
      }
    }
  }
}

/** Movements that still run and are not canceled yet. */
async function runningOf(
  client: Pick<KubeClient, 'collect'>,
  resource: Resource<KubeObject>,
  query: Parameters<KubeClient['collect']>[1] & { readonly labelSelector: string },
): Promise<KubeObject['metadata'][]> {
  const selector = parseSelector(query.labelSelector);
  try {
    return await client.collect(resource, query, (object) => {
      const { metadata, spec, status } = object as Movement;
      const isOther = !selector.matches(metadata.labels);
      const isOver = spec?.cancel === true || isMovementOver(status?.phase);
      return isOther || isOver ? [] : [metadata];
    });
  } catch (error) {
    // A cluster without data movers has no such kind.
    if (isCode(error, 'KUBE_NOT_FOUND')) return [];
    throw error;
  }
}
