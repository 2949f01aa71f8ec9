import { setTimeout as sleep } from 'node:timers/promises';
import {
  backoffMs,
  CodedError,
  createLimiter,
  isCode,
  type Limiter,
  type Logger,
  lookup,
  messageOf,
  retryOf,
} from '../../base/index.ts';
import { assertAlone } from '../../backup/index.ts';
import {
  isExtensionAway,
  isStoreAway,
  isUnauthorized,
  type KubeClient,
  LastingRefusals,
  meaningOf,
  patiently as retried,
  REFUSED_MS,
} from '../../kube/index.ts';
import { patiently } from './patience.ts';

export interface WhileAwayOptions {
  readonly client: Pick<KubeClient, 'raw'>;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  readonly patienceMs?: number | undefined;
  /**
   * Right before a command is run, each time, and before anything is tried again: while this
   * process waited another one may have begun to lead. What it throws is thrown, unless nobody else
   * can lead yet.
   */
  readonly assertLeading?: (() => void) | undefined;
}

/**
 * How long the API server may be away while a backup waits for it. Our choice: a control plane is
 * replaced in less.
 */
const PATIENCE_MS = 20 * 60_000;
/**
 * So often a question is asked again whose connection broke although the API server answers: of
 * several behind one address one is replaced. Our choice.
 */
const AGAIN_MAX = 3;
const AGAIN_MS = 250;
/** For an answer that may change within seconds: eight seconds in all. Our choice. */
const FAILED_AGAIN_MAX = 5;
/** Between questions to an API server whose store is away: it answers everything else. */
const STORE_DELAY_MS_MAX = 5000;

/**
 * Requests of all backups of a process at once, whatever number of workers and backups it has. Our
 * choice: half of the sockets that a client has, so that the Lease is renewed and other controllers
 * go on however slow the API server is. Commands in pods have sockets of their own, and may take
 * minutes.
 */
const AT_ONCE = 16;
/**
 * A busy API server asks for a request again that it has not begun with. One kind's own server may
 * do so for ever, and then what cannot be done without it is told. Our choice, as with the items of
 * a restore.
 */
const BUSY_MS_MAX = 180_000;
const BUSY_DELAY_MS_MAX = 15_000;
const COUNTED = [
  ...['get', 'find', 'list', 'listPage', 'collect'],
  ...['create', 'replace', 'patch', 'delete'],
];

const limiters = new WeakMap<object, Limiter>();

function limiterOf(client: KubeClient): Limiter {
  const limiter = limiters.get(client) ?? createLimiter(AT_ONCE);
  limiters.set(client, limiter);
  return limiter;
}

/** `isOnce`: not again where it may have been done. */
type Wait = <T>(task: () => Promise<T>, againMax?: number, isOnce?: boolean) => Promise<T>;

function waiterOf({
  client,
  logger,
  signal,
  patienceMs = PATIENCE_MS,
  assertLeading,
}: WhileAwayOptions): Wait {
  const version = (): Promise<unknown> => client.raw({ method: 'GET', path: '/version', signal });
  const answers = async (): Promise<boolean> => {
    try {
      await version();
      return true;
    } catch {
      signal.throwIfAborted();
      return false;
    }
  };
  const pause = (failures: number, maxMs: number): Promise<void> =>
    sleep(backoffMs(failures, { firstMs: AGAIN_MS, maxMs }), undefined, { signal });
  return async (task, againMax = AGAIN_MAX, isOnce = false) => {
    const sinceMs = performance.now();
    for (let again = 0, tries = 0; ; tries++) {
      if (tries > 0) assertAlone(assertLeading);
      try {
        return await task();
      } catch (error) {
        signal.throwIfAborted();
        if (!isCode(error, 'KUBE_UNAVAILABLE') || retryOf(error) === 'never') throw error;
        if (isOnce && isSent(error)) throw error;
        if (isStoreAway(error) && performance.now() - sinceMs <= patienceMs) {
          await pause(tries + 1, STORE_DELAY_MS_MAX);
          continue;
        }
        if (await answers()) {
          const max = againMax > 0 && isOwnFailure(error) ? FAILED_AGAIN_MAX : againMax;
          if (again >= (isAnswer(error) ? max : AGAIN_MAX)) throw error;
          await pause(++again, Infinity);
          continue;
        }
        // It may come and go for ever.
        if (performance.now() - sinceMs > patienceMs) {
          const text = `cannot reach the API server: ${messageOf(error)}`;
          throw new CodedError('STILL_AWAY', text, { cause: error });
        }
        await patiently(version, { what: 'reach the API server', logger, signal, patienceMs });
      }
    }
  };
}

interface BusyOptions extends Omit<WhileAwayOptions, 'client' | 'logger'> {
  readonly refusals: LastingRefusals;
  /** What the request needs, for {@link LastingRefusals}. */
  readonly right: string;
}

/** Retries while the API server is too busy, or refuses for want of a right: nothing was done. */
function whileBusy<T>(
  task: () => Promise<T>,
  { signal, patienceMs = BUSY_MS_MAX, assertLeading, refusals, right }: BusyOptions,
): Promise<T> {
  let isFirst = true;
  const ask = (): Promise<T> => {
    if (!isFirst) assertAlone(assertLeading);
    isFirst = false;
    return task();
  };
  return retried(ask, {
    passes: (error) => isCode(error, 'KUBE_THROTTLED') || isUnauthorized(error),
    refusedMs: Math.min(patienceMs, REFUSED_MS),
    refusals,
    right,
    delayMsMax: BUSY_DELAY_MS_MAX,
    firstDelayMs: AGAIN_MS,
    forMs: Math.min(patienceMs, BUSY_MS_MAX),
    signal,
  });
}

const isSent = (error: unknown): boolean =>
  error instanceof CodedError && error.facts.isSent === true;

/** The API server failed by itself, and not what it has asked. */
const isOwnFailure = (error: unknown): boolean =>
  meaningOf(error) === 'refused for now' && !isExtensionAway(error);

const isAnswer = (error: unknown): boolean =>
  error instanceof CodedError && error.facts.httpStatus !== undefined;

/**
 * Of its reads, how often each is asked again although the API server answers, and says that the
 * kind's own server does not.
 */
const READS: Readonly<Record<string, number>> = {
  get: AGAIN_MAX,
  find: AGAIN_MAX,
  list: AGAIN_MAX,
  collect: AGAIN_MAX,
  listPage: 0,
};

/** By its arguments: a resource, and an object, a reference or options. */
function rightOf(method: string, [resource, about]: readonly unknown[]): string {
  const { plural = '', group = '' } = (resource ?? {}) as { plural?: string; group?: string };
  const { namespace, metadata } = (about ?? {}) as {
    namespace?: string;
    metadata?: { namespace?: string };
  };
  return `${method} ${plural}.${group} ${namespace ?? metadata?.namespace ?? ''}`;
}

/**
 * The client, whose reads wait for an API server that is away, so that no part of a backup is
 * missing because of it. A kind whose own server does not answer is told soon: the API server
 * itself does then. So do commands in pods, and the creation of objects with a name: one that was
 * made although its answer was lost is there already, which the caller expects. Everything else is
 * tried once, unless the API server is too busy to begin with it. No more than {@link AT_ONCE}
 * requests of one client are under way.
 */
export function patientClient(
  client: KubeClient,
  options: Omit<WhileAwayOptions, 'client'>,
): KubeClient {
  const wait = waiterOf({ ...options, client });
  const refusals = new LastingRefusals();
  // Nobody knows then whether the command ran. It is run again, as it is after a kill: a pod that
  // stays frozen is worse. What freezes one is not.
  const exec: KubeClient['exec'] = (question) => {
    const { signal = options.signal } = question;
    // Asked by the call itself.
    const waiting = waiterOf({ ...options, client, signal, assertLeading: undefined });
    const run = async (): ReturnType<KubeClient['exec']> => {
      assertAlone(options.assertLeading);
      try {
        return await whileBusy(() => client.exec(question), {
          ...options,
          signal,
          refusals,
          right: `exec ${question.namespace}`,
        });
      } catch (error) {
        // The connection has ended before the command said how it did, as where a kubelet restarts.
        if (!isSent(error) || !isCode(error, 'EXEC_FAILED')) throw error;
        const facts = { isSent: true };
        throw new CodedError('KUBE_UNAVAILABLE', messageOf(error), { retry: 'backoff', facts });
      }
    };
    return waiting(run, AGAIN_MAX, question.isOnce);
  };
  const limiter = limiterOf(client);
  return new Proxy(client, {
    get: (target, key) => {
      if (key === 'exec') return exec;
      const value: unknown = Reflect.get(target, key, target);
      if (typeof value !== 'function') return value;
      const method = value as (...given: unknown[]) => Promise<unknown>;
      const againMax = lookup(READS, String(key));
      return (...given: unknown[]): unknown => {
        const ask = (): Promise<unknown> => method.apply(target, given);
        // While it waits for an API server that is away or busy, it takes nobody's place.
        const call = COUNTED.includes(String(key))
          ? (): Promise<unknown> =>
              whileBusy(() => limiter.run(ask), {
                ...options,
                refusals,
                right: rightOf(String(key), given),
              })
          : ask;
        const isNamed =
          key === 'create' &&
          (given[1] as { metadata: { name?: string } }).metadata.name !== undefined;
        return againMax !== undefined || isNamed ? wait(call, againMax) : call();
      };
    },
  });
}
