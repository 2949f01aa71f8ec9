import { uptime } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCode, messageOf, retryOf } from '../../base/index.ts';
import type { KubeClient, Resource } from '../../kube/index.ts';
import { isCancelWanted, isFinal, isMoving, type Movement, phaseOf } from '../movement.ts';
import { moverOf } from './named-mover.ts';
import { isRightGone, RIGHTS_MS } from '../rights.ts';

/** Allows for the interval of the mover's checks, and for API server times in whole seconds. */
export const FENCE_MARGIN_MS = 15_000;

export interface OrdersOptions {
  readonly client: KubeClient;
  readonly resource: Resource<Movement>;
  readonly namespace: string;
  readonly name: string;
  /** UID of this mover's pod. If undefined, only the CR's phase counts. */
  readonly podUid: string | undefined;
  /**
   * A mover stops after this long without reading its CR. Infinity if two movers at once do no
   * harm. Ignored without `podUid`: then the agent is Velero's, which starts no second mover.
   */
  readonly fenceMs: number;
  readonly signal: AbortSignal;
  /** Milliseconds of a clock that also runs while the machine sleeps. */
  readonly nowMs?: () => number;
}

export interface Orders {
  /** The CR exists, and this mover may not begin yet. May be called again. */
  onWaiting?(movement: Movement): void;
  /** The CR is in progress, and only this mover may write. */
  onStart(movement: Movement): void;
  onCancel(): void;
  /** From now on another mover may write, so this mover stops at once. */
  onFenced(reason: string): void;
  /** The CR will never be in progress, or cannot be read for a permanent reason. */
  onRefused(error: Error): void;
}

/** End of the termination message of a fenced mover. Its agent starts a new one. */
export const FENCED_SUFFIX = 'data mover is fenced off';

const PAUSE_MS = 500;
/** Bookmarks come about every minute; a watch silent for this long hangs. */
const SILENCE_MS = 90_000;
const sleepless = (): number => uptime() * 1000;

/**
 * Follows the CR of a data mover until aborted: whether it may begin, is still the writer, or is
 * canceled. An unreachable mover cannot learn of a successor. So the mover stops by its own clock,
 * before an agent may name a successor.
 */
export async function followOrders(options: OrdersOptions, orders: Orders): Promise<void> {
  const { client, resource, namespace, name, podUid, signal, nowMs = sleepless } = options;
  const fenceMs = podUid === undefined ? Infinity : options.fenceMs;
  const isFencing = fenceMs !== Infinity;
  // The latest answered request was sent at this time. Watch events do not count. They may have
  // waited in a buffer while this process or the network stood still. A server cut off from its
  // peers also keeps sending bookmarks.
  let askedMs = nowMs();
  let spokenMs = askedMs;
  let uid: string | undefined;
  let refusedMs: number | undefined;
  let isCanceled = false;
  let isOver = false;
  const over = new AbortController();
  const either = AbortSignal.any([signal, over.signal]);
  const end = (tell: () => void): void => {
    if (isOver || signal.aborted) return;
    isOver = true;
    over.abort();
    tell();
  };
  const see = (found: Movement | undefined, isAsked: boolean): void => {
    const isStarted = uid !== undefined;
    // A new CR may have the name of a deleted one.
    const movement = isStarted && found?.metadata.uid !== uid ? undefined : found;
    const verdict = judge(movement, podUid, isStarted);
    if (verdict === undefined && !isStarted && movement) orders.onWaiting?.(movement);
    if (verdict === 'cancel') {
      // Keep following: the mover writes until it has stopped, and may have to be fenced before
      // that.
      if (!isCanceled) orders.onCancel();
      isCanceled = true;
    } else if (verdict === 'start' && movement) {
      if (isFencing && !isAsked) {
        isDue = true;
        void askAgain();
        return;
      }
      uid = movement.metadata.uid;
      orders.onStart(movement);
      // The CR may have been canceled before the start.
      see(movement, isAsked);
    } else if (verdict !== undefined && typeof verdict === 'object') {
      const { fenced, refused } = verdict;
      if (fenced !== undefined) end(() => orders.onFenced(fenced));
      if (refused !== undefined) {
        end(() => orders.onRefused(new CodedError('NOT_IN_PROGRESS', refused)));
      }
    }
  };
  const scope = { namespace, fieldSelector: `metadata.name=${name}` };
  const ask = async (own: AbortSignal): Promise<string> => {
    const sentMs = nowMs();
    const page = await client.listPage(resource, { ...scope, signal: own });
    askedMs = Math.max(askedMs, sentMs);
    if (!either.aborted) see(page.items[0], true);
    return page.resourceVersion;
  };
  let isAsking = false;
  let isDue = false;
  const askAgain = async (): Promise<void> => {
    if (isAsking || either.aborted) return;
    isAsking = true;
    const wasDue = isDue;
    isDue = false;
    try {
      await ask(either);
    } catch {
      // The timer retries.
      isDue = wasDue;
    } finally {
      isAsking = false;
    }
  };
  let silence = new AbortController();
  let lastSpokenMs = spokenMs;
  let silentLists = 0;
  const timer = setInterval(
    () => {
      const unaskedMs = nowMs() - askedMs;
      // A mover that has not begun has written nothing, so it may wait without a limit.
      if (uid !== undefined && unaskedMs > fenceMs) {
        const seconds = Math.round(unaskedMs / 1000);
        end(() => orders.onFenced(`no response from the API server for ${seconds} s`));
        return;
      }
      if (nowMs() - spokenMs > Math.min(SILENCE_MS, fenceMs / 3)) silence.abort();
      if (isFencing && (isDue || unaskedMs > fenceMs / 4)) void askAgain();
    },
    Math.min(1000, fenceMs / 8),
  );
  try {
    while (!either.aborted) {
      silence = new AbortController();
      const own = AbortSignal.any([either, silence.signal]);
      try {
        const resourceVersion = await ask(own);
        spokenMs = nowMs();
        refusedMs = undefined;
        for await (const event of client.watch(resource, {
          ...scope,
          signal: own,
          resourceVersion,
        })) {
          spokenMs = nowMs();
          if (event.type !== 'BOOKMARK') {
            see(event.type === 'DELETED' ? undefined : event.object, false);
          }
        }
      } catch (error) {
        if (either.aborted) return;
        if (silence.signal.aborted) {
          // Retry at once after a silent watch, but pause if the server answers nothing at all.
          silentLists = spokenMs === lastSpokenMs ? silentLists + 1 : 0;
          lastSpokenMs = spokenMs;
          if (silentLists === 0) continue;
        }
        const isServers = error instanceof CodedError && error.code.startsWith('KUBE_');
        if (isRightGone(error)) refusedMs ??= nowMs();
        const mayBeGiven = isRightGone(error) && nowMs() - (refusedMs ?? 0) < RIGHTS_MS;
        const isForGood = retryOf(error) === 'never' && !isCode(error, 'KUBE_GONE') && !mayBeGiven;
        // A started mover keeps following despite all errors. A server that is starting may refuse
        // requests for a while, and nothing else would fence this mover.
        if (uid === undefined && !silence.signal.aborted && (!isServers || isForGood)) {
          const text = `its CR cannot be read: ${messageOf(error)}`;
          end(() => orders.onRefused(new Error(text, { cause: error })));
          return;
        }
      }
      // Behind some proxies each watch ends at once.
      await sleep(PAUSE_MS, undefined, { signal: either }).catch(() => undefined);
    }
  } finally {
    clearInterval(timer);
  }
}

type Verdict = 'start' | 'cancel' | { readonly fenced?: string; readonly refused?: string };

/** The consequence of a version of the CR; undefined if nothing changes. */
function judge(
  movement: Movement | undefined,
  podUid: string | undefined,
  isStarted: boolean,
): Verdict | undefined {
  if (!isStarted) {
    if (!movement) return undefined;
    // A CR in a final phase needs no mover.
    if (isFinal(movement)) return { refused: `it is already ${phaseOf(movement)}` };
    if (!isMoving(movement)) return undefined;
    return isNamed(movement, podUid) ? 'start' : undefined;
  }
  if (!movement || isFinal(movement)) return 'cancel';
  if (!isNamed(movement, podUid)) return { fenced: 'another data mover has taken over' };
  return isCancelWanted(movement) ? 'cancel' : undefined;
}

/** If no mover is named, the agent is Velero's and will not name a successor. */
function isNamed(movement: Movement, podUid: string | undefined): boolean {
  const mover = moverOf(movement);
  return mover === undefined || podUid === undefined || mover.pod === podUid;
}
