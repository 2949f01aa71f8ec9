import { CodedError, isCode, retryOf, type RetryOptions, withRetry } from '../../base/index.ts';
import type { Resource } from '../api/resources.ts';
import type { KubeObject } from '../api/core.ts';
import { isExtensionAway, isUnauthorized, meaningOf, ofExtension } from './error-meaning.ts';

/**
 * How long an answer that is `refused for now` is retried. Our choice: an API server fills its
 * caches within ten seconds of its start, and etcd elects a leader within five.
 */
export const REFUSED_MS = 45_000;
/** Maximum outage of an API server. Our choice: replacing a control plane takes less. */
const AWAY_MS = 180_000;
const FIRST_DELAY_MS = 500;
const DELAY_MS_MAX = 15_000;
const REFUSED_DELAY_MS_MAX = 5000;
/** All attempts take 15 s. Other writers, such as quota counters, are done then. Our choice. */
const CONFLICTS_MAX = 6;
/** A permanent refusal is not waited for again within this time. Our choice. */
const REMEMBERED_MS = 600_000;
/** More permanent refusals than this mean a missing role. No refusal is waited for then. */
const REMEMBERED_MAX = 8;

interface LastingRefusal {
  readonly untilMs: number;
  /** The refusal came back after the right had been granted in between. */
  readonly isAgain: boolean;
  /** The right has been granted since. */
  isOver: boolean;
}

/**
 * Refusals that outlasted their retries. Each missing right costs one wait, instead of one per
 * request. A granted right ends its refusal, for example after an outage. Some rights exist only
 * for some objects: their second refusal stays.
 */
export class LastingRefusals {
  readonly #known = new Map<string, LastingRefusal>();

  has(right: string): boolean {
    const nowMs = performance.now();
    for (const [each, { untilMs }] of this.#known) {
      if (untilMs <= nowMs) this.#known.delete(each);
    }
    if (this.#known.get(right)?.isOver === false) return true;
    const lasting = [...this.#known.values()].filter(({ isOver }) => !isOver);
    return lasting.length >= REMEMBERED_MAX;
  }

  note(right: string): void {
    if (this.has(right)) return;
    const untilMs = performance.now() + REMEMBERED_MS;
    this.#known.set(right, { untilMs, isAgain: this.#known.has(right), isOver: false });
  }

  /** The right was granted. */
  end(right: string): void {
    const known = this.#known.get(right);
    if (known?.isAgain === false) known.isOver = true;
  }
}

export interface JudgedOptions {
  /** {@link REFUSED_MS} if left out. */
  readonly refusedMs?: number | undefined;
  /** Attempts at a conflict. Above 1 only if the request has no version that was read. */
  readonly conflictsMax?: number;
  /** Left out: no refusal is remembered. */
  readonly refusals?: LastingRefusals | undefined;
  /** The right that the task needs, for `refusals`. */
  readonly right?: string;
  /** All other errors stay as they are. */
  readonly only?: (error: unknown) => boolean;
}

/**
 * Wraps a task for {@link withRetry}: the table of answers sets `retry` of its errors. An answer
 * that is `refused for now` is retried for a bounded time. After that the error has the fact
 * `isLasting`, and callers do not wait again. Errors of other sources are not changed.
 */
export function judged<T>(
  task: () => Promise<T>,
  { refusedMs = REFUSED_MS, conflictsMax = 1, refusals, right = '', only }: JudgedOptions = {},
): () => Promise<T> {
  let sinceMs: number | undefined;
  let conflicts = 0;
  return async () => {
    try {
      const answer = await task();
      refusals?.end(right);
      return answer;
    } catch (error) {
      if (!(error instanceof CodedError) || !error.code.startsWith('KUBE_')) throw error;
      // The API server checks rights first. An answer about the object proves that the right
      // exists.
      if (!isUnauthorized(error) && meaningOf(error) === 'refused') refusals?.end(right);
      if (only?.(error) === false) throw error;
      const meaning = meaningOf(error);
      if (meaning !== 'refused for now') {
        sinceMs = undefined;
        throw meaning === 'away' ? error : withRetryOf(error, 'never');
      }
      if (error.code === 'KUBE_CONFLICT') {
        throw withRetryOf(error, ++conflicts < conflictsMax ? 'backoff' : 'never');
      }
      const isFirst = sinceMs === undefined;
      sinceMs ??= performance.now();
      const isOver = isFirst
        ? refusals?.has(right) === true
        : performance.now() - sinceMs >= refusedMs;
      if (!isOver) throw withRetryOf(error, 'backoff');
      refusals?.note(right);
      const seconds = Math.round((performance.now() - sinceMs) / 1000);
      const text = isFirst ? error.message : `${error.message} (for ${seconds} s)`;
      const { code, cause, facts } = error;
      throw new CodedError(code, text, { cause, facts: { ...facts, isLasting: true } });
    }
  };
}

function withRetryOf(error: CodedError, retry: 'never' | 'backoff'): CodedError {
  if (error.retry === retry) return error;
  const { code, message, cause, facts } = error;
  return new CodedError(code, message, { cause, retry, facts });
}

/** Server and right of a request. Each is waited for only once. */
export interface Asked {
  /** The server that answers. An aggregated server has all kinds of its group. */
  readonly server: string;
  /** The right that the request needs. */
  readonly right: string;
}

export const askedFor = (
  verb: string,
  { group, plural }: Pick<Resource<KubeObject>, 'group' | 'plural'>,
  namespace = '',
): Asked => ({
  server: group === '' ? plural : group,
  right: `${verb} ${plural}.${group} ${namespace}`,
});

export interface PatienceOptions {
  readonly signal: AbortSignal;
  /** Maximum outage of the API server, and of a refusal. Less in tests. */
  readonly awayMs?: number | undefined;
  readonly firstDelayMs?: number;
}

/**
 * Retries requests of one run by the table of answers. An item must not be missing because of a
 * short outage or refusal. A server that stays away, and a missing right, cost one wait a run, not
 * one an item. Failures of extensions are thrown at once. A conflict that stays is a refusal: a
 * webhook may refuse in that way.
 */
export class Patience {
  readonly #options: PatienceOptions;
  readonly #gone = new Set<string>();
  readonly #refusals = new LastingRefusals();

  constructor(options: PatienceOptions) {
    this.#options = options;
  }

  /** `isAgain`: an earlier request may have been executed without an answer. */
  async ask<T>({ server, right }: Asked, task: (isAgain: boolean) => Promise<T>): Promise<T> {
    const { signal, awayMs = AWAY_MS, firstDelayMs = FIRST_DELAY_MS } = this.#options;
    let isAgain = false;
    const once = judged(() => told(task(isAgain)), {
      refusedMs: Math.min(REFUSED_MS, awayMs),
      conflictsMax: CONFLICTS_MAX,
      refusals: this.#refusals,
      right,
    });
    try {
      const answer = await withRetry(once, {
        passes: (error) => !isAway(error) || !this.#gone.has(server),
        budgetOf: (error) => ({
          attemptsMax: Infinity,
          delayMsMax: isAway(error) ? DELAY_MS_MAX : REFUSED_DELAY_MS_MAX,
          // A refusal has its own limit, because refusals often follow an outage.
          tryingMsMax: meaningOf(error) === 'refused for now' ? Infinity : awayMs,
        }),
        firstDelayMs,
        signal,
        onRetry: (error) => {
          isAgain ||= isCode(error, 'KUBE_UNAVAILABLE');
        },
      });
      this.#gone.delete(server);
      return answer;
    } catch (error) {
      if (isAway(error)) this.#gone.add(server);
      throw error;
    }
  }
}

/** Does not wait for extensions: a later item of the restore may bring them. */
const told = <T>(answer: Promise<T>): Promise<T> =>
  answer.catch((error: unknown) => {
    throw error instanceof CodedError && isExtensionAway(error) ? ofExtension(error) : error;
  });

const isAway = (error: unknown): boolean => meaningOf(error) === 'away';

/** For polling loops: whether an error of a {@link judged} task may be temporary. */
export const isRefusedForNow = (error: unknown): boolean =>
  isUnauthorized(error) && retryOf(error) === 'backoff';

export interface PatientOptions
  extends Omit<JudgedOptions, 'only'>, Partial<Omit<RetryOptions, 'tryingMsMax'>> {
  readonly delayMsMax?: number;
  readonly forMs?: number | undefined;
}

/**
 * Retries a task that sends requests to the API server. `passes` selects the errors to retry, and
 * `forMs` limits the time. A missing right is retried for {@link REFUSED_MS}. The task may run
 * twice.
 */
export function patiently<T>(task: () => Promise<T>, options: PatientOptions = {}): Promise<T> {
  const { forMs, delayMsMax = REFUSED_DELAY_MS_MAX, ...rest } = options;
  return withRetry(judged(task, { ...options, only: isUnauthorized }), {
    budgetOf: () => ({ attemptsMax: Infinity, delayMsMax }),
    firstDelayMs: FIRST_DELAY_MS,
    ...rest,
    ...(forMs !== undefined && { tryingMsMax: forMs }),
  });
}

/** Retries requests that the API server did not authorize, for {@link REFUSED_MS}. */
export function whileUnauthorized<T>(
  task: () => Promise<T>,
  { signal, ...options }: JudgedOptions & { readonly signal?: AbortSignal | undefined },
): Promise<T> {
  return patiently(task, { ...options, signal, passes: isUnauthorized });
}
