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
  /** An extension has refused another list of this resource, so one try is enough. */
  readonly isAway?: boolean;
}

export interface ListLimits {
  /** Maximum objects per page. Velero: `--client-page-size`. */
  readonly pageItemsMax: number;
  /** Target size of a page: 500 objects of up to 1.5 MiB would fill most of the memory. */
  readonly pageBytes: number;
  /** Delay between tries of a page; tests lower it. */
  readonly retryMs?: number;
}

export const LIST_LIMITS: ListLimits = { pageItemsMax: 500, pageBytes: 4 << 20 };

/** Size of the first page. Our choice: most resources of a namespace have fewer objects. */
const FIRST_PAGE = 20;
/**
 * A longer answer is requested again in smaller pages. Each answer is in memory several times: as
 * bytes, text and objects. With a limit of 16 pages, four concurrent lists of large objects took
 * 1.5 GiB. Measured.
 */
const ANSWER_PER_PAGE = 4;
const TRIES_MAX = 4;
/** For an error that may pass within seconds: at least six seconds of tries. */
const FAILED_TRIES_MAX = 6;
const RETRY_MS = 500;
const RETRY_MS_MAX = 5000;

/** Give up early if an extension API server is away. The client waits for the main server. */
function triesMax(error: unknown): number {
  if (!isCode(error, 'KUBE_UNAVAILABLE', 'KUBE_THROTTLED')) return 1;
  const isOwn = meaningOf(error) === 'refused for now' && !isExtensionAway(error);
  return isOwn ? FAILED_TRIES_MAX : TRIES_MAX;
}

/**
 * Lists objects page by page. Calls `take` with each page before it requests the next one; `take`
 * returns the bytes of the page. `restart` means that all taken objects are void. All pages have
 * one resource version. If that version expired (410), the list restarts once. At the next 410 it
 * continues with the current version, because another restart might never end.
 */
export async function listPages(
  client: Pick<KubeClient, 'listPage'>,
  question: ListQuestion,
  limits: ListLimits,
  consumer: { take: (objects: KubeObject[]) => Promise<number>; restart: () => void },
  signal?: AbortSignal,
): Promise<void> {
  const { resource, namespace, selector, isAway = false } = question;
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
          attemptsMax: isAway && isExtensionAway(error) ? 1 : triesMax(error),
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
