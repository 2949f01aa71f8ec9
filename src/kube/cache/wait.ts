import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCode, retryOf } from '../../base/index.ts';
import type { KubeObject } from '../api/core.ts';
import type { Resource } from '../api/resources.ts';
import type { KubeClient, ObjectRef } from '../client/client.ts';
import { withOwnSignal } from './own-signal.ts';

export interface WaitOptions {
  readonly timeoutMs: number;
  readonly signal?: AbortSignal | undefined;
  /** So often the server is asked anew; {@link LOOK_AGAIN_MS}, or less in tests. */
  readonly lookAgainMs?: number;
}

/** A watch that hangs tells nothing, and what is waited for would count as never come. */
const LOOK_AGAIN_MS = 60_000;
const PAUSE_MS = 500;
/** The longest that a timer knows. */
const TIMER_MS_MAX = 2 ** 31 - 1;

/**
 * Waits until the object is as `look` wants it: what it returns, once that is not undefined. It is called with the
 * object as it is now and at every change, with undefined while there is none; what it throws ends the wait.
 * Throws `WAIT_TIMEOUT`, and what the API server refuses for good.
 */
export function waitFor<T extends KubeObject, R>(
  client: KubeClient,
  resource: Resource<T>,
  ref: ObjectRef,
  look: (object: T | undefined) => R | undefined,
  { timeoutMs, signal, lookAgainMs = LOOK_AGAIN_MS }: WaitOptions,
): Promise<R> {
  return withOwnSignal(signal, async (own) => {
    const end = (): void => own.abort(timedOut(resource, ref, timeoutMs));
    const timer = setTimeout(end, Math.min(timeoutMs, TIMER_MS_MAX));
    try {
      return await lookUntilFound(client, resource, ref, look, own.signal, lookAgainMs);
    } finally {
      clearTimeout(timer);
    }
  });
}

async function lookUntilFound<T extends KubeObject, R>(
  client: KubeClient,
  resource: Resource<T>,
  ref: ObjectRef,
  look: (object: T | undefined) => R | undefined,
  signal: AbortSignal,
  lookAgainMs: number,
): Promise<R> {
  const scope = { namespace: ref.namespace, fieldSelector: `metadata.name=${ref.name}` };
  for (;;) {
    let isDue = false;
    try {
      const page = await client.listPage(resource, { ...scope, signal });
      const found = look(page.items[0]);
      if (found !== undefined) return found;
      const { resourceVersion } = page;
      const result = await withOwnSignal(signal, async (own) => {
        const timer = setTimeout(() => {
          isDue = true;
          own.abort();
        }, lookAgainMs);
        try {
          const watch = { ...scope, signal: own.signal, resourceVersion };
          for await (const event of client.watch(resource, watch)) {
            if (event.type === 'BOOKMARK') continue;
            const seen = look(event.type === 'DELETED' ? undefined : event.object);
            if (seen !== undefined) return seen;
          }
          return undefined;
        } finally {
          clearTimeout(timer);
        }
      });
      if (result !== undefined) return result;
    } catch (error) {
      signal.throwIfAborted();
      if (isDue) continue;
      const isServers = error instanceof CodedError && error.code.startsWith('KUBE_');
      if (!isServers || (retryOf(error) === 'never' && !isCode(error, 'KUBE_GONE'))) throw error;
    }
    // Also after a watch that ended well: behind some proxies each ends at once.
    await sleep(PAUSE_MS, undefined, { signal }).catch(() => undefined);
    signal.throwIfAborted();
  }
}

/** Waits until there is no such object, or another one of the same name. */
export async function waitGone<T extends KubeObject>(
  client: KubeClient,
  resource: Resource<T>,
  ref: ObjectRef & { uid?: string | undefined },
  options: WaitOptions,
): Promise<void> {
  const look = (object: T | undefined): true | undefined =>
    object === undefined || (ref.uid !== undefined && object.metadata.uid !== ref.uid)
      ? true
      : undefined;
  await waitFor(client, resource, ref, look, options);
}

function timedOut(
  resource: Resource<KubeObject>,
  { name, namespace }: ObjectRef,
  timeoutMs: number,
): CodedError {
  const where = namespace === undefined ? name : `${namespace}/${name}`;
  const text = `${resource.kind} ${where} was not ready within ${timeoutMs / 1000} s`;
  return new CodedError('WAIT_TIMEOUT', text);
}
