import { isCode, withRetry } from '../../base/index.ts';
import {
  isExtensionAway,
  type KubeClient,
  type KubeObject,
  meaningOf,
  type ServedResource,
} from '../../kube/index.ts';

export interface ListQuestion {
  readonly resource: ServedResource;
  /** Undefined for all namespaces. */
  readonly namespace: string | undefined;
  /** `''` for all objects. */
  readonly selector: string;
}

export interface ListLimits {
  /** Objects of one page at most. Velero: `--client-page-size`. */
  readonly pageItemsMax: number;
  /**
   * What a page should have; objects may be up to 1.5 MiB, so that 500 of them would be most of a
   * process's memory.
   */
  readonly pageBytes: number;
  /** Between tries of a page; tests lower it. */
  readonly retryMs?: number;
}

export const LIST_LIMITS: ListLimits = { pageItemsMax: 500, pageBytes: 4 << 20 };

/**
 * Before anything is known about the size of objects. Our choice: most resources of a namespace
 * have no more.
 */
const FIRST_PAGE = 20;
/**
 * A longer answer is asked for again in smaller pages. An answer is in memory several times while
 * it is read, as bytes, text and objects, and several lists are under way: with 16 pages, four
 * lists of large objects took 1.5 GiB. Measured.
 */
const ANSWER_PER_PAGE = 4;
const TRIES_MAX = 4;
/** For an answer that may change within seconds: six seconds at least. */
const FAILED_TRIES_MAX = 6;
const RETRY_MS = 500;
const RETRY_MS_MAX = 5000;

/**
 * A kind whose own server is away is told soon: the API server itself is waited for by the client.
 */
function triesMax(error: unknown): number {
  if (!isCode(error, 'KUBE_UNAVAILABLE', 'KUBE_THROTTLED')) return 1;
  const isOwn = meaningOf(error) === 'refused for now' && !isExtensionAway(error);
  return isOwn ? FAILED_TRIES_MAX : TRIES_MAX;
}

/**
 * Lists objects page by page, and gives `take` each page before the next one is asked for;
 * `restart` says that everything taken so far is void. All pages are of one version. When the
 * server has forgotten that version (410), the list is begun anew once, and after that goes on with
 * what is there then: a list that never ends helps nobody. `take` returns how many bytes the page
 * had.
 */
export async function listPages(
  client: Pick<KubeClient, 'listPage'>,
  question: ListQuestion,
  limits: ListLimits,
  consumer: { take: (objects: KubeObject[]) => Promise<number>; restart: () => void },
  signal?: AbortSignal,
): Promise<void> {
  const { resource, namespace, selector } = question;
  const answerMax = limits.pageBytes * ANSWER_PER_PAGE;
  let limit = Math.min(FIRST_PAGE, limits.pageItemsMax);
  let next: string | undefined;
  let hasRestarted = false;
  for (;;) {
    signal?.throwIfAborted();
    const from = next;
    const ask = () =>
      client.listPage(resource, {
        namespace,
        labelSelector: selector === '' ? undefined : selector,
        limit,
        continue: from,
        bytesMax: limit > 1 ? answerMax : undefined,
        isExact: true,
        signal,
      });
    let page;
    try {
      page = await withRetry(ask, {
        budgetOf: (error) => ({
          attemptsMax: triesMax(error),
          delayMsMax: RETRY_MS_MAX,
        }),
        firstDelayMs: limits.retryMs ?? RETRY_MS,
        signal,
      });
    } catch (error) {
      if (isCode(error, 'KUBE_ANSWER_TOO_LONG') && limit > 1) {
        limit = Math.max(1, limit >> 2);
        continue;
      }
      if (isCode(error, 'KUBE_GONE') && from !== undefined) {
        const onward = error.facts.continue;
        if (!hasRestarted || typeof onward !== 'string') {
          if (hasRestarted) throw error;
          hasRestarted = true;
          next = undefined;
          consumer.restart();
        } else next = onward;
        continue;
      }
      throw error;
    }
    const { items } = page;
    next = page.continue;
    const bytes = await consumer.take(items);
    if (next === undefined) return;
    if (items.length > 0) {
      const fitting = Math.floor((limits.pageBytes * items.length) / Math.max(bytes, 1));
      limit = Math.max(1, Math.min(limits.pageItemsMax, fitting));
    }
  }
}
