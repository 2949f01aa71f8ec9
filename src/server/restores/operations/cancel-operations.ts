import { isCode, messageOf, redactAndCut, type Logger } from '../../../base/index.ts';
import type { OperationAsker, OperationMap } from '../../../item-operations/index.ts';
import type { KubeClient, Restore } from '../../../kube/index.ts';
import { cancelOperations } from '../../operations/cancel.ts';
import { subjectOf } from '../restore-kind.ts';
import { removeTemporaryObjects } from '../temporary-objects.ts';

export interface EndedRestoreOptions {
  readonly client: Pick<KubeClient, 'list' | 'delete'>;
  readonly logger: Logger;
  readonly map: Pick<OperationMap, 'cancel'>;
  readonly asker: OperationAsker;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

/**
 * Ends what a restore has begun that is deleted or canceled while it waits: its operations are told to stop, and its temporary objects are removed. Called
 * before its files are deleted, since they say which operations there are. May be repeated. Returns a sentence about what could not be told; throws
 * what is worth another try: that the bucket or the API server cannot be reached.
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
    // Without a backup or a location nobody can say which operations there are.
    if (!isCode(error, 'NO_BACKUP', 'NO_LOCATION')) throw error;
    const because = redactAndCut(messageOf(error));
    logger.warn({ restore: restore.metadata.name, error: because }, 'operations are not known');
    return because;
  }
}
