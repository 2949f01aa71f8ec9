import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCode, messageOf, retryOf } from '../../base/index.ts';
import type { KubeObject } from '../api/core.ts';
import type { Resource } from '../api/resources.ts';
import { meaningOf } from '../client/error-meaning.ts';
import type { KubeClient, ObjectRef } from '../client/client.ts';
import { REFUSED_MS } from '../client/patience.ts';
import { withOwnSignal } from './own-signal.ts';

export interface WaitOptions {
  readonly timeoutMs: number;
  readonly signal?: AbortSignal | undefined;
  /** Interval for reading the object again; {@link LOOK_AGAIN_MS}, or less in tests. */
  readonly lookAgainMs?: number;
  /** Maximum outage that does not count; {@link AWAY_MS_MAX}, or less in tests. */
  readonly awayMsMax?: number;
}

/** A watch that hangs delivers nothing, so the object is also read at this interval. */
const LOOK_AGAIN_MS = 60_000;
const PAUSE_MS = 500;
/** A longer outage counts: one kind may fail alone, as with a broken webhook. Our choice. */
const AWAY_MS_MAX = 1_800_000;

/**
 * Waits until `look` returns a value, and returns that value. `look` gets the current object and
 * every change, or undefined if there is no object. An error from `look` ends the wait. Outages of
 * the API server do not count towards the time limit, because no one can make progress then. At the
 * time limit the object is read once more, because this process may have been paused. Throws
 * `WAIT_TIMEOUT` and permanent refusals of the API server.
 */
export function waitFor<T extends KubeObject, R>(
  client: KubeClient,
  resource: Resource<T>,
  ref: ObjectRef,
  look: (object: T | undefined) => R | undefined,
  options: WaitOptions,
): Promise<R> {
  return withOwnSignal(options.signal, (own) =>
    lookUntilFound(client, resource, ref, look, { ...options, signal: own.signal }),
  );
}

async function lookUntilFound<T extends KubeObject, R>(
  client: KubeClient,
  resource: Resource<T>,
  ref: ObjectRef,
  look: (object: T | undefined) => R | undefined,
  options: WaitOptions & { readonly signal: AbortSignal },
): Promise<R> {
  const { timeoutMs, signal, lookAgainMs = LOOK_AGAIN_MS, awayMsMax = AWAY_MS_MAX } = options;
  const scope = { namespace: ref.namespace, fieldSelector: `metadata.name=${ref.name}` };
  let untilMs = performance.now() + timeoutMs;
  const mostMs = untilMs + awayMsMax;
  let awaySinceMs: number | undefined;
  let refusedSinceMs: number | undefined;
  for (;;) {
    let isDue = false;
    let isListed = false;
    const askedMs = performance.now();
    try {
      const page = await client.listPage(resource, { ...scope, signal });
      isListed = true;
      const found = look(page.items[0]);
      if (found !== undefined) return found;
      const { resourceVersion } = page;
      const nowMs = performance.now();
      if (awaySinceMs !== undefined) untilMs = Math.min(mostMs, untilMs + nowMs - awaySinceMs);
      awaySinceMs = undefined;
      refusedSinceMs = undefined;
      if (nowMs >= untilMs) throw timedOut(resource, ref, timeoutMs);
      const result = await withOwnSignal(signal, async (own) => {
        const timer = setTimeout(
          () => {
            isDue = true;
            own.abort();
          },
          Math.min(lookAgainMs, untilMs - nowMs),
        );
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
      if (!isServers) throw error;
      if (retryOf(error) === 'never' && !isCode(error, 'KUBE_GONE')) {
        refusedSinceMs ??= performance.now();
        const isForNow = meaningOf(error) === 'refused for now';
        if (!isForNow || performance.now() - refusedSinceMs >= REFUSED_MS) throw error;
      }
      if (!isListed) {
        awaySinceMs ??= askedMs;
        if (performance.now() >= mostMs) throw timedOut(resource, ref, timeoutMs, error);
      }
    }
    // Pause after a successful watch too: behind some proxies each watch ends at once.
    await sleep(PAUSE_MS, undefined, { signal }).catch(() => undefined);
    signal.throwIfAborted();
  }
}

/** Waits until the object is deleted, or replaced by another one of the same name. */
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
  cause?: unknown,
): CodedError {
  const where = namespace === undefined ? name : `${namespace}/${name}`;
  const why = cause === undefined ? '' : `: ${messageOf(cause)}`;
  const text = `${resource.kind} ${where} was not ready within ${timeoutMs / 1000} s${why}`;
  return new CodedError('WAIT_TIMEOUT', text, { cause });
}
