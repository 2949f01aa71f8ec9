import { isFinal, isRunning, keyOf, type Operation } from './operation.ts';

/**
 * Merges two lists of one backup's operations: the `stored` list and the list known here. Either
 * may be newer. No operation is lost, and a final phase in `stored` stays.
 */
export function merged(stored: readonly Operation[], known: readonly Operation[]): Operation[] {
  const result = new Map(stored.map((operation) => [keyOf(operation), operation] as const));
  for (const operation of known) {
    const other = result.get(keyOf(operation));
    result.set(keyOf(operation), other ? further(other, operation) : operation);
  }
  return [...result.values()];
}

/** Returns the more advanced operation, or `stored` if both are equal. */
function further(stored: Operation, known: Operation): Operation {
  if (isFinal(stored)) return stored;
  if (isFinal(known)) return known;
  const rank = (operation: Operation): number =>
    !isRunning(operation) ? 0 : operation.status.phase === 'New' ? 1 : 2;
  if (rank(stored) !== rank(known)) return rank(stored) > rank(known) ? stored : known;
  return Number(known.status.nCompleted ?? 0) > Number(stored.status.nCompleted ?? 0)
    ? known
    : stored;
}
