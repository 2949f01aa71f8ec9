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
import { assertSingleRun } from '../../backup/index.ts';
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
import { patiently } from './bucket-retries.ts';

export interface ApiOutageOptions {
  readonly client: Pick<KubeClient, 'raw'>;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  readonly patienceMs?: number | undefined;
  /**
   * Called before each run of a command and before each retry, because another process may lead by
   * then. Its error is thrown, unless no other process can lead yet.
   */
  readonly assertLeading?: (() => void) | undefined;
}

/** How long a backup waits for the API server. Our choice: replacing a control plane takes less. */
const PATIENCE_MS = 20 * 60_000;
/**
 * Retries after a broken connection although the API server answers. Perhaps just one of several
 * servers behind the address is restarting. Our choice.
 */
const AGAIN_MAX = 3;
const AGAIN_MS = 250;
/** Retries of an answer that may change soon: eight seconds in all. Our choice. */
const FAILED_AGAIN_MAX = 5;
/** Longest delay while the store of the API server is away. Other requests are answered then. */
const STORE_DELAY_MS_MAX = 5000;

/**
 * Requests of all backups of a process at once. Our choice: half of the client's sockets. The rest
 * is for the Lease and other controllers. Commands in pods have their own sockets.
 */
const AT_ONCE = 16;
/**
 * Longest wait for a server that is too busy to begin a request. The server of a single kind may be
 * so for ever. Our choice, as for items of a restore.
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

/** `isOnce`: do not retry a request that may have been executed. */
type Wait = <T>(task: () => Promise<T>, againMax?: number, isOnce?: boolean) => Promise<T>;

function waiterOf({
  client,
  logger,
  signal,
  patienceMs = PATIENCE_MS,
  assertLeading,
}: ApiOutageOptions): Wait {
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
      if (tries > 0) assertSingleRun(assertLeading);
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
        // An API server may come and go for ever.
        if (performance.now() - sinceMs > patienceMs) {
          const text = `cannot reach the API server: ${messageOf(error)}`;
          throw new CodedError('STILL_AWAY', text, { cause: error });
        }
        await patiently(version, { what: 'reach the API server', logger, signal, patienceMs });
      }
    }
  };
}

interface BusyOptions extends Omit<ApiOutageOptions, 'client' | 'logger'> {
  readonly refusals: LastingRefusals;
  /** The right that the request needs, for {@link LastingRefusals}. */
  readonly right: string;
}

/** Retries if the API server is too busy or refuses a right: nothing was done. */
function whileBusy<T>(
  task: () => Promise<T>,
  { signal, patienceMs = BUSY_MS_MAX, assertLeading, refusals, right }: BusyOptions,
): Promise<T> {
  let isFirst = true;
  const ask = (): Promise<T> => {
    if (!isFirst) assertSingleRun(assertLeading);
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

/** The API server itself failed, and not an extension server. */
const isOwnFailure = (error: unknown): boolean =>
  meaningOf(error) === 'refused for now' && !isExtensionAway(error);

const isAnswer = (error: unknown): boolean =>
  error instanceof CodedError && error.facts.httpStatus !== undefined;

/** Retries of reads if the API server answers but the kind's own server does not. */
const READS: Readonly<Record<string, number>> = {
  get: AGAIN_MAX,
  find: AGAIN_MAX,
  list: AGAIN_MAX,
  collect: AGAIN_MAX,
  listPage: 0,
};

/** Arguments: a resource, and an object, a reference or options. */
function rightOf(method: string, [resource, about]: readonly unknown[]): string {
  const { plural = '', group = '' } = (resource ?? {}) as { plural?: string; group?: string };
  const { namespace, metadata } = (about ?? {}) as {
    namespace?: string;
    metadata?: { namespace?: string };
  };
  return `${method} ${plural}.${group} ${namespace ?? metadata?.namespace ?? ''}`;
}

/**
 * Makes reads wait for an API server that is away: otherwise parts of a backup would be missing.
 * - Commands in pods wait too, and so do creations with a name, which may be repeated.
 * - If only the server of one kind is away, the error is thrown soon.
 * - Other calls are tried once, except while the API server is too busy.
 * - At most {@link AT_ONCE} requests of one client are under way.
 */
export function patientClient(
  client: KubeClient,
  options: Omit<ApiOutageOptions, 'client'>,
): KubeClient {
  const wait = waiterOf({ ...options, client });
  const refusals = new LastingRefusals();
  // After a broken connection, the command may or may not have run. Most run again, because a pod
  // that stays frozen is worse. Freezing commands (`isOnce`) do not.
  const exec: KubeClient['exec'] = (question) => {
    const { signal = options.signal } = question;
    // The call itself checks it.
    const waiting = waiterOf({ ...options, client, signal, assertLeading: undefined });
    const run = async (): ReturnType<KubeClient['exec']> => {
      assertSingleRun(options.assertLeading);
      try {
        return await whileBusy(() => client.exec(question), {
          ...options,
          signal,
          refusals,
          right: `exec ${question.namespace}`,
        });
      } catch (error) {
        // The connection ended before the exit code came, as when a kubelet restarts.
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
        // A call that waits for an API server does not count as under way.
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
