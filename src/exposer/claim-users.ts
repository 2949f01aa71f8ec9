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
/**
 * A list of pods is asked for anew when a watch has ended, and at least so often: a watch that
 * hangs tells nothing.
 */
const LOOK_AGAIN_MS = 60_000;
const PAUSE_MS = 1000;

/**
 * Whether a pod has the claim as a volume and is not over. One that no node has taken yet may be
 * taken any moment. Kubelets before Kubernetes 1.27 say of a pod that they evict, or whose time is
 * over, that it has failed while its containers still run.
 */
export function usesClaim(pod: Pod, claim: string): boolean {
  const { metadata, spec, status } = pod;
  const isOver = isPodOver(status?.phase);
  if (isOver && !containerStatusesOf(pod).some(({ state }) => state?.running)) return false;
  return (spec.volumes ?? []).some(
    ({ name, persistentVolumeClaim, ephemeral }) =>
      persistentVolumeClaim?.claimName === claim ||
      // The claim of such a volume is called after pod and volume.
      (ephemeral !== undefined && `${metadata.name}-${name}` === claim),
  );
}

/**
 * Pods that use the claim, by name. Of the others nothing is kept: a namespace may have ten
 * thousand.
 */
export function usersOfClaim(
  client: KubeClient,
  { namespace, name }: ClaimRef,
  signal?: AbortSignal,
): Promise<string[]> {
  return client.collect(PODS, { namespace, signal }, (pod) =>
    usesClaim(pod, name) ? [pod.metadata.name] : [],
  );
}

/** `pod shop/db-0 uses PVC shop/data`. */
export function describeUsers({ namespace, name }: ClaimRef, users: readonly string[]): string {
  const named = namedFirst(users, NAMED_MAX, (user) => `${namespace}/${user}`);
  const isOne = users.length === 1;
  return `${isOne ? 'pod' : 'pods'} ${named} ${isOne ? 'uses' : 'use'} PVC ${namespace}/${name}`;
}

export interface FollowOptions {
  readonly signal: AbortSignal;
  readonly onUsers: (users: readonly string[]) => void;
  /**
   * Nothing is known for so long, in milliseconds, at most: then `onBlind` is told why, and it is
   * not looked any more.
   */
  readonly blindMsMax: number;
  readonly onBlind: (error: unknown) => void;
}

/**
 * Looks for pods that begin to use the claim, until the signal or until there are some, which
 * `onUsers` is told by name. An API server that does not answer is asked again and again. Never
 * rejects.
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
      // Asked again below.
    }
    await sleep(PAUSE_MS, undefined, { signal }).catch(() => undefined);
  }
}

/** Those that there are; else waits for the first one, or for the time to ask anew. */
async function lookOnce(
  client: KubeClient,
  claim: ClaimRef,
  signal: AbortSignal,
  onLooked: (askedMs: number) => void,
): Promise<readonly string[]> {
  const { namespace, name } = claim;
  const askedMs = performance.now();
  // What is newer than the first page comes by the watch, too.
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
