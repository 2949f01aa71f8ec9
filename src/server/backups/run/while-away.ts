import { CodedError, isCode, type Logger, retryOf } from '../../../base/index.ts';
import type { KubeClient } from '../../../kube/index.ts';
import { patiently } from './patience.ts';

export interface WhileAwayOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  readonly patienceMs?: number | undefined;
  /** Right before a command is run, each time. What it throws is thrown. */
  readonly beforeExec?: () => void;
}

/** How long the API server may be away while a backup waits for it. Our choice: a control plane is replaced in less. */
const PATIENCE_MS = 20 * 60_000;

/** Of one request, each after the API server has answered another one. Our choice. */
const ATTEMPTS_MAX = 10;

/**
 * A client that waits for an API server that is away, so that no part of a backup is missing because of it. A kind whose own server does not
 * answer is told at once: the API server itself does then. A connection that broke says nothing about a kind.
 */
export function whileAway({
  client,
  logger,
  signal,
  patienceMs = PATIENCE_MS,
  beforeExec,
}: WhileAwayOptions): KubeClient {
  const wait = async <T>(task: () => Promise<T>, own = signal): Promise<T> => {
    for (let attempt = 1; ; attempt++) {
      try {
        return await task();
      } catch (error) {
        own.throwIfAborted();
        const mayPass = isCode(error, 'KUBE_UNAVAILABLE') && retryOf(error) !== 'never';
        if (!mayPass || attempt >= ATTEMPTS_MAX) throw error;
        const isAnswering = await answers(own);
        if (isAnswering && isAnswer(error)) throw error;
        const about = { what: 'reach the API server', logger, signal: own, patienceMs };
        if (!isAnswering) {
          await patiently(
            () => client.raw({ method: 'GET', path: '/version', signal: own }),
            about,
          );
        }
      }
    }
  };
  const answers = async (own: AbortSignal): Promise<boolean> => {
    try {
      await client.raw({ method: 'GET', path: '/version', signal: own });
      return true;
    } catch {
      own.throwIfAborted();
      return false;
    }
  };
  const waiting: Partial<KubeClient> = {
    get: (resource, ref, options) => wait(() => client.get(resource, ref, options)),
    find: (resource, ref, options) => wait(() => client.find(resource, ref, options)),
    list: (resource, options) => wait(() => client.list(resource, options)),
    listPage: (resource, options) => wait(() => client.listPage(resource, options)),
    // Whose answer was lost is there already when it is asked for again.
    create: (resource, object, options) => wait(() => client.create(resource, object, options)),
    // Nobody knows then whether the command ran. It is run again, as it is after a kill: a pod that stays frozen is worse.
    exec: (question) =>
      wait(() => {
        beforeExec?.();
        return client.exec(question);
      }, question.signal),
  };
  return new Proxy(client, {
    get: (target, name) => {
      const own: unknown = Reflect.get(waiting, name) ?? Reflect.get(target, name, target);
      return typeof own === 'function' ? (own.bind(target) as unknown) : own;
    },
  });
}

const isAnswer = (error: unknown): boolean =>
  error instanceof CodedError && error.facts.httpStatus !== undefined;
