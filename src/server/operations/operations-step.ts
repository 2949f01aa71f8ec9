import type { Nanoseconds } from '../../base/index.ts';
import {
  actionOf,
  isAnyRunning,
  type Operation,
  type OperationAsker,
  type OperationMap,
  type Round,
} from '../../item-operations/index.ts';
import { isWaiting, type KubeClient } from '../../kube/index.ts';
import { type Change, changeOf } from './change.ts';
import { type Followed, type FollowedKind, phaseIn, subjectIn } from './followed-kind.ts';

export interface StepOptions {
  readonly asker: OperationAsker;
  readonly timeoutNsOf: (action: string) => Nanoseconds;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

export interface OperationsStepOptions<T extends Followed> extends StepOptions {
  readonly client: Pick<KubeClient, 'find' | 'patch'>;
  readonly map: OperationMap;
  readonly kind: FollowedKind<T>;
  /** Of the object, where that is more than its count of operations says: a file that is lost. */
  readonly changeOf?: (object: T, operations: readonly Operation[]) => Change | undefined;
  /**
   * Puts the object as it will be, and what its operations failed with, into the files of the
   * bucket. May be repeated.
   */
  readonly store: (object: T, operations: readonly Operation[]) => Promise<void>;
}

export interface OperationsStep {
  readonly round: Round;
  /** It waits no more. */
  readonly hasLeft: boolean;
}

/**
 * Asks once about the operations of a Backup or Restore that waits, and writes what has changed:
 * the operations file, the files that `store` puts, and the object, in this order. Whoever is
 * killed between two of them leaves what the next one writes again, with the same numbers. Where
 * nothing has changed it asks nobody but plugins. `seen` may be old: before a write the object is
 * read again.
 */
export async function operationsStep<T extends Followed>(
  seen: T,
  options: OperationsStepOptions<T>,
): Promise<OperationsStep> {
  const { client, map, kind, asker, timeoutNsOf, assertLeading, signal } = options;
  const change = options.changeOf ?? ((object, of) => changeOf(kind, object, of));
  const { namespace, name, uid } = seen.metadata;
  const round = await map.poll(subjectIn(kind, seen), {
    asker,
    signal,
    timeoutNsOf: (operation) => timeoutNsOf(actionOf(operation)),
  });
  if (!change(seen, round.operations)) return { round, hasLeft: false };
  const now = await client.find(kind.resource, { namespace, name }, { signal, isExact: true });
  if (now?.metadata.uid !== uid || !now || !isWaiting(phaseIn(now))) {
    return { round, hasLeft: true };
  }
  const changed = change(now, round.operations);
  const hasLeft = !isAnyRunning(round.operations);
  if (!changed) return { round, hasLeft };
  const status = { ...now.status, ...changed.status };
  if (changed.isStored) await options.store({ ...now, status }, round.operations);
  assertLeading();
  const { resourceVersion } = now.metadata;
  await client.patch(
    kind.resource,
    { namespace, name },
    { metadata: { uid, resourceVersion }, status: changed.status },
    { signal },
  );
  return { round, hasLeft };
}
