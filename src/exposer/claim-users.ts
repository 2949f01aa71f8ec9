import { setTimeout as sleep } from 'node:timers/promises';
import { isCode, namedFirst } from '../base/index.ts';
import {
  containerStatusesOf,
  isPodOver,
  type KubeClient,
  type Pod,
  PODS,
  withOwnSignal,
} from '../kube/index.ts';

export interface ClaimRef {
  readonly namespace: string;
  readonly name: string;
}

/** Names that a message has room for. */
const NAMED_MAX = 3;
/** Pods are listed after each watch, and at least this often: a hanging watch is silent. */
const LOOK_AGAIN_MS = 60_000;
const PAUSE_MS = 1000;

/**
 * Whether a pod uses the claim as a volume and has not ended. A pod without a node may get one at
 * any moment. Before Kubernetes 1.27, kubelets report evicted pods, and pods past their deadline,
 * as failed while their containers still run.
 */
export function usesClaim(pod: Pod, claim: string): boolean {
  const { metadata, spec, status } = pod;
  const isOver = isPodOver(status?.phase);
  if (isOver && !containerStatusesOf(pod).some(({ state }) => state?.running)) return false;
  return (spec.volumes ?? []).some(
    ({ name, persistentVolumeClaim, ephemeral }) =>
      persistentVolumeClaim?.claimName === claim ||
      // The claim of an ephemeral volume is named after pod and volume.
      (ephemeral !== undefined && `${metadata.name}-${name}` === claim),
  );
}

/** Names of the claim's users. Keeps no other pods: a namespace may have ten thousand. */
export function usersOfClaim(
  client: KubeClient,
  { namespace, name }: ClaimRef,
  signal?: AbortSignal,
): Promise<string[]> {
  return client.collect(PODS, { namespace, signal }, (pod) =>
    usesClaim(pod, name) ? [pod.metadata.name] : [],
  );
}

/** For example: `pod shop/db-0 uses PVC shop/data`. */
export function describeUsers({ namespace, name }: ClaimRef, users: readonly string[]): string {
  const named = namedFirst(users, NAMED_MAX, (user) => `${namespace}/${user}`);
  const isOne = users.length === 1;
  return `${isOne ? 'pod' : 'pods'} ${named} ${isOne ? 'uses' : 'use'} PVC ${namespace}/${name}`;
}

export interface FollowOptions {
  readonly signal: AbortSignal;
  readonly onUsers: (users: readonly string[]) => void;
  /** Longest time without an answer. Then `onBlind` gets the last error, and the watch ends. */
  readonly blindMsMax: number;
  readonly onBlind: (error: unknown) => void;
}

/**
 * Watches for pods that start to use the claim, until aborted or until `onUsers` was called with
 * their names. Retries if the API server does not answer. Never rejects.
 */
export async function followUsers(
  client: KubeClient,
  claim: ClaimRef,
  { signal, onUsers, blindMsMax, onBlind }: FollowOptions,
): Promise<void> {
  let lookedMs = performance.now();
  const onLooked = (askedMs: number): void => {
    lookedMs = askedMs;
  };
  while (!signal.aborted) {
    try {
      const found = await lookOnce(client, claim, signal, onLooked);
      if (found.length > 0 && !signal.aborted) {
        onUsers(found);
        return;
      }
    } catch (error) {
      if (!signal.aborted && performance.now() - lookedMs > blindMsMax) {
        onBlind(error);
        return;
      }
      // Retried below.
    }
    await sleep(PAUSE_MS, undefined, { signal }).catch(() => undefined);
  }
}

/** Returns the current users. If there are none, waits for the first user or for the next list. */
async function lookOnce(
  client: KubeClient,
  claim: ClaimRef,
  signal: AbortSignal,
  onLooked: (askedMs: number) => void,
): Promise<readonly string[]> {
  const { namespace, name } = claim;
  const askedMs = performance.now();
  // The watch starts at the version of this first page, so it also covers changes during the list.
  const { resourceVersion } = await client.listPage(PODS, { namespace, limit: 1, signal });
  const there = await usersOfClaim(client, claim, signal);
  onLooked(askedMs);
  if (there.length > 0) return there;
  return withOwnSignal(signal, async (own) => {
    const timer = setTimeout(() => own.abort(), LOOK_AGAIN_MS);
    try {
      const scope = { namespace, resourceVersion, signal: own.signal };
      for await (const event of client.watch(PODS, scope)) {
        if (event.type === 'BOOKMARK' || event.type === 'DELETED') continue;
        if (usesClaim(event.object, name)) return [event.object.metadata.name];
      }
    } catch (error) {
      if (!own.signal.aborted && !isCode(error, 'KUBE_GONE')) throw error;
    } finally {
      clearTimeout(timer);
    }
    return [];
  });
}
