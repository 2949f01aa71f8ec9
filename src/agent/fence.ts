import { uptime } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCode, messageOf, retryOf } from '../base/index.ts';
import type { KubeClient, Resource } from '../kube/index.ts';
import { isCancelWanted, isFinal, isMoving, type Movement, phaseOf } from './movement.ts';
import { moverOf } from './named-mover.ts';
import { isRightGone, RIGHTS_MS } from './rights.ts';

/** A mover looks at its clock now and then, and the API server's time comes in seconds. */
export const FENCE_MARGIN_MS = 15_000;

export interface OrdersOptions {
  readonly client: KubeClient;
  readonly resource: Resource<Movement>;
  readonly namespace: string;
  readonly name: string;
  /** UID of this mover's pod; undefined where nobody told it: then only its CR's phase counts. */
  readonly podUid: string | undefined;
  /**
   * A mover that has not read its CR for so long stops; Infinity where two at once do no harm. It
   * does not count for one that was not told its pod: the agent that made that is Velero's, which
   * starts no other one.
   */
  readonly fenceMs: number;
  readonly signal: AbortSignal;
  /** Milliseconds that go on while the machine sleeps. */
  readonly nowMs?: () => number;
}

export interface Orders {
  /** The CR is there, and this mover may not begin yet. May be called again. */
  onWaiting?(movement: Movement): void;
  /** The CR is in progress, and this mover is the one that may write. */
  onStart(movement: Movement): void;
  onCancel(): void;
  /** From now on another one may write, or might: this mover stops at once. */
  onFenced(reason: string): void;
  /** The CR will never be in progress, or cannot be read for a reason that does not pass. */
  onRefused(error: Error): void;
}

/** What ends the termination message of a mover that was fenced off: its agent starts it again. */
export const FENCED_SUFFIX = 'data mover is fenced off';

const PAUSE_MS = 500;
/** Bookmarks come about every minute; a watch as silent as this hangs. */
const SILENCE_MS = 90_000;
const sleepless = (): number => uptime() * 1000;

/**
 * Follows the CR of a data mover until the signal: whether it may begin, whether it is still the
 * one that may write, whether it is to be canceled. A mover that is cut off from the API server
 * knows nothing of a successor, so it counts itself out by its own clock, before its agent's
 * successor may name another one.
 */
export async function followOrders(options: OrdersOptions, orders: Orders): Promise<void> {
  const { client, resource, namespace, name, podUid, signal, nowMs = sleepless } = options;
  const fenceMs = podUid === undefined ? Infinity : options.fenceMs;
  const isFencing = fenceMs !== Infinity;
  // What was sent at this time was answered. What a watch says counts for nothing: it may have lain
  // in a buffer while this process or the network stood still, and a server that is cut off from
  // the others goes on with its bookmarks.
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
    // Another one may have got the name of one that is gone.
    const movement = isStarted && found?.metadata.uid !== uid ? undefined : found;
    const verdict = judge(movement, podUid, isStarted);
    if (verdict === undefined && !isStarted && movement) orders.onWaiting?.(movement);
    if (verdict === 'cancel') {
      // It is followed on: what it does until it has stopped may come too late.
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
      // Canceled before it began, perhaps.
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
      // The timer asks again.
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
      // One that has not begun has written nothing: it may wait for as long as it takes.
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
          // Asked at once; but a server that answers nothing is not asked without a pause.
          silentLists = spokenMs === lastSpokenMs ? silentLists + 1 : 0;
          lastSpokenMs = spokenMs;
          if (silentLists === 0) continue;
        }
        const isServers = error instanceof CodedError && error.code.startsWith('KUBE_');
        if (isRightGone(error)) refusedMs ??= nowMs();
        const mayBeGiven = isRightGone(error) && nowMs() - (refusedMs ?? 0) < RIGHTS_MS;
        const isForGood = retryOf(error) === 'never' && !isCode(error, 'KUBE_GONE') && !mayBeGiven;
        // One that has begun is followed whatever the server says: a server that comes up may
        // refuse for a while, and nobody else would fence it off.
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

/** What a version of the CR tells its mover; undefined when nothing new. */
function judge(
  movement: Movement | undefined,
  podUid: string | undefined,
  isStarted: boolean,
): Verdict | undefined {
  if (!isStarted) {
    if (!movement) return undefined;
    // A final one has no use for a mover.
    if (isFinal(movement)) return { refused: `it is already ${phaseOf(movement)}` };
    if (!isMoving(movement)) return undefined;
    return isNamed(movement, podUid) ? 'start' : undefined;
  }
  if (!movement || isFinal(movement)) return 'cancel';
  if (!isNamed(movement, podUid)) return { fenced: 'another data mover has taken over' };
  return isCancelWanted(movement) ? 'cancel' : undefined;
}

/**
 * Where no mover is named, the agent is not one of ours, and there is no successor that it could
 * name.
 */
function isNamed(movement: Movement, podUid: string | undefined): boolean {
  const mover = moverOf(movement);
  return mover === undefined || podUid === undefined || mover.pod === podUid;
}
