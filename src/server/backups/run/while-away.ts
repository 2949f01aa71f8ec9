import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCode, type Logger, messageOf, retryOf } from '../../../base/index.ts';
import type { KubeClient } from '../../../kube/index.ts';
import { patiently } from './patience.ts';

export interface WhileAwayOptions {
  readonly client: Pick<KubeClient, 'raw' | 'listPage' | 'find' | 'exec'>;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  readonly patienceMs?: number | undefined;
}

/** How long the API server may be away while a backup waits for it. Our choice: a control plane is replaced in less. */
const PATIENCE_MS = 20 * 60_000;
/**
 * So often a question is asked again whose connection broke although the API server answers: of several behind one address one is replaced. Our
 * choice.
 */
const AGAIN_MAX = 3;
const AGAIN_MS = 250;

type Wait = <T>(task: () => Promise<T>, againMax?: number) => Promise<T>;

function waiterOf({ client, logger, signal, patienceMs = PATIENCE_MS }: WhileAwayOptions): Wait {
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
  return async (task, againMax = AGAIN_MAX) => {
    const sinceMs = performance.now();
    for (let again = 0; ;) {
      try {
        return await task();
      } catch (error) {
        signal.throwIfAborted();
        if (!isCode(error, 'KUBE_UNAVAILABLE') || retryOf(error) === 'never') throw error;
        if (await answers()) {
          if (again >= againMax) throw error;
          await sleep(AGAIN_MS * 2 ** again++, undefined, { signal });
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

/**
 * A client that waits for an API server that is away, so that no part of a backup is missing because of it. A kind whose own server does not
 * answer is told soon: the API server itself does then.
 */
export function whileAway(
  options: WhileAwayOptions,
): Pick<KubeClient, 'listPage' | 'find' | 'exec'> {
  const wait = waiterOf(options);
  const { client } = options;
  return {
    // Whoever lists pages asks again.
    listPage: (resource, more) => wait(() => client.listPage(resource, more), 0),
    find: (resource, ref, more) => wait(() => client.find(resource, ref, more)),
    // Nobody knows then whether the command ran. It is run again, as it is after a kill: a pod that stays frozen is worse.
    exec: (question) => {
      const { signal = options.signal } = question;
      return waiterOf({ ...options, signal })(() => client.exec(question));
    },
  };
}

/** Reads that {@link patientClient} asks again. */
const READS: readonly string[] = ['get', 'find', 'list', 'collect'];

/**
 * The whole client, whose reads wait as those of {@link whileAway}, and with them the creation of objects with a name: one that was made although
 * its answer was lost is there already, which the caller expects. Everything else is tried once.
 */
export function patientClient(
  client: KubeClient,
  options: Omit<WhileAwayOptions, 'client'>,
): KubeClient {
  const wait = waiterOf({ ...options, client });
  return new Proxy(client, {
    get: (target, key) => {
      const value: unknown = Reflect.get(target, key, target);
      if (typeof value !== 'function') return value;
      const method = value as (...given: unknown[]) => unknown;
      return (...given: unknown[]): unknown => {
        const call = (): unknown => method.apply(target, given);
        const isNamed =
          key === 'create' &&
          (given[1] as { metadata: { name?: string } }).metadata.name !== undefined;
        const isAsked = typeof key === 'string' && READS.includes(key);
        return isNamed || isAsked ? wait(() => call() as Promise<unknown>) : call();
      };
    },
  });
}
