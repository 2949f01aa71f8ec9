import { namedFirst, redactAndCut } from '../../base/index.ts';
import type { OperationAsker, OperationMap, Subject } from '../../item-operations/index.ts';

/** Named in a sentence; of more, how many. Our choice: a `failureReason` is read by people. */
const NAMED_MAX = 5;

/** A `failureReason` that also says which operations could not be told to stop. */
export const withUntold = (reason: string, untold: string | undefined): string =>
  untold === undefined ? reason : `${reason}; ${untold}`;

/**
 * Tells the operations of a backup or restore to stop that becomes Failed, is canceled or deleted. Returns a sentence for its failureReason that names those that
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
  const ids = namedFirst(untold, NAMED_MAX, ({ operation }) => operation.spec.operationID);
  const what = untold.length === 1 ? '1 operation' : `${untold.length} operations`;
  return `${what} could not be told to stop, and may go on: ${ids}: ${redactAndCut(first.error)}`;
}
