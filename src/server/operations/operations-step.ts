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
import { type Change, changeOf } from './status-change.ts';
import { type Run, type RunKind, phaseIn, subjectIn } from '../runs/run-kind.ts';

export interface StepOptions {
  readonly asker: OperationAsker;
  readonly timeoutNsOf: (action: string) => Nanoseconds;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

export interface OperationsStepOptions<T extends Run> extends StepOptions {
  readonly client: Pick<KubeClient, 'find' | 'patch'>;
  readonly map: OperationMap;
  readonly kind: RunKind<T>;
  /** Finds changes beyond the counts, for example a lost file. */
  readonly changeOf?: (object: T, operations: readonly Operation[]) => Change | undefined;
  /** Writes the object's new state and its failures to the bucket. May be repeated. */
  readonly store: (object: T, operations: readonly Operation[]) => Promise<void>;
}

export interface OperationsStep {
  readonly round: Round;
  /** The object no longer waits. */
  readonly hasLeft: boolean;
}

/**
 * Polls the operations of a waiting object once. Writes changes to the operations file, then to the
 * files of `store`, then to the object. After a kill in between, the next step writes the same
 * numbers. `seen` may be old: the object is read again before a write.
 */
export async function operationsStep<T extends Run>(
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
