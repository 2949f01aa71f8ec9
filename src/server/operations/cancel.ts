import type { OperationAsker, OperationMap, Subject } from '../../item-operations/index.ts';

/**
 * Tells the operations of a backup or restore to stop that becomes Failed, is canceled or deleted. Returns a sentence for its failureReason that names how many
 * could not be told; undefined where all were. Throws what the store of operations throws, and the reason of the signal.
 */
export async function cancelOperations(
  map: Pick<OperationMap, 'cancel'>,
  subject: Subject,
  options: { readonly asker: OperationAsker; readonly signal: AbortSignal },
): Promise<string | undefined> {
  const untold = await map.cancel(subject, options);
  const [first] = untold;
  if (!first) return undefined;
  const { operationID } = first.operation.spec;
  const what = untold.length === 1 ? '1 operation' : `${untold.length} operations`;
  return `${what} could not be told to stop, such as ${operationID}: ${first.error}`;
}
