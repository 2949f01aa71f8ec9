import { createHash } from 'node:crypto';
import {
  type Clock,
  createLimiter,
  type Logger,
  messageOf,
  Secret,
  SECOND_NS,
  Stopwatch,
} from '../../base/index.ts';
import {
  BACKUPS,
  type KubeClient,
  SUBJECT_ACCESS_REVIEWS,
  TOKEN_REVIEWS,
  type UserInfo,
} from '../../kube/index.ts';

/**
 * May see the page; nobody's token; somebody's who may not list Backups; not known, since the API server could not be asked.
 */
export type Verdict = 'allowed' | 'unknown' | 'forbidden' | 'away';

/** The API server's two questions. Both throw `KUBE_*` errors. */
export interface Reviews {
  /** Whose token it is; undefined where it is nobody's. */
  userOf(token: Secret, signal: AbortSignal): Promise<UserInfo | undefined>;
  mayListBackups(user: UserInfo, signal: AbortSignal): Promise<boolean>;
}

export function clusterReviews(client: KubeClient, namespace: string): Reviews {
  return {
    async userOf(token, signal) {
      const review = { metadata: {}, spec: { token: token.reveal() } };
      const { status } = await client.create(TOKEN_REVIEWS, review, { signal });
      return status?.authenticated === true && status.user?.username ? status.user : undefined;
    },
    async mayListBackups({ username = '', uid, groups, extra }, signal) {
      const { group, plural: resource } = BACKUPS;
      const spec = {
        user: username,
        ...(uid !== undefined && { uid }),
        ...(groups && { groups }),
        ...(extra && { extra }),
        resourceAttributes: { namespace, verb: 'list', group, resource },
      };
      const review = { metadata: {}, spec };
      const { status } = await client.create(SUBJECT_ACCESS_REVIEWS, review, { signal });
      return status?.allowed === true && status.denied !== true;
    },
  };
}

export interface AccessOptions {
  readonly reviews: Reviews;
  readonly logger: Logger;
  readonly clock: Clock;
}

/** A right that is taken away ends within this time. */
const KEPT_NS = 30n * SECOND_NS;
const REVIEW_MS = 5000;
/** Our choices: many more people than look at backups at once, and few enough reviews that an API server notices none of them. */
const KEPT_MAX = 1000;
const REVIEWS_MAX = 4;
const WAITING_MAX = 64;
const COMPLAINT_NS = 60n * SECOND_NS;
/** RFC 6750, section 2.1; the longest tokens are those of identity providers that put groups into them. */
const TOKEN = /^[A-Za-z0-9\-._~+/]+=*$/;
export const TOKEN_CHARS_MAX = 12_000;

interface Known {
  readonly verdict: Promise<Verdict>;
  readonly age: Stopwatch;
}

/** Who may see the page. Answers are kept for half a minute at most, and only so many; tokens are kept as hashes. */
export class Access {
  readonly #options: AccessOptions;
  readonly #known = new Map<string, Known>();
  readonly #places = createLimiter(REVIEWS_MAX);
  #complained: Stopwatch | undefined;

  constructor(options: AccessOptions) {
    this.#options = options;
  }

  verdictOf(token: string): Promise<Verdict> {
    if (token.length > TOKEN_CHARS_MAX || !TOKEN.test(token)) return Promise.resolve('unknown');
    const key = createHash('sha256').update(token).digest('base64');
    const known = this.#known.get(key);
    if (known && known.age.elapsedNs < KEPT_NS) return known.verdict;
    this.#known.delete(key);
    // The time runs from before the question: what the answer says was true then.
    const age = new Stopwatch(this.#options.clock);
    const verdict = this.#ask(new Secret(token));
    const entry = { verdict, age };
    this.#known.set(key, entry);
    for (const oldest of this.#known.keys()) {
      if (this.#known.size <= KEPT_MAX) break;
      this.#known.delete(oldest);
    }
    return verdict.then((answer) => {
      if (answer === 'away' && this.#known.get(key) === entry) this.#known.delete(key);
      return answer;
    });
  }

  async #ask(token: Secret): Promise<Verdict> {
    if (this.#places.pending >= WAITING_MAX) return 'away';
    try {
      return await this.#places.run(async () => {
        const { reviews } = this.#options;
        const signal = AbortSignal.timeout(REVIEW_MS);
        const user = await reviews.userOf(token, signal);
        if (!user) return 'unknown';
        return (await reviews.mayListBackups(user, signal)) ? 'allowed' : 'forbidden';
      });
    } catch (error) {
      this.#complain(error);
      return 'away';
    }
  }

  /** Visitors are told nothing of the reason, so it is in the log; once a minute, however many of them there are. */
  #complain(error: unknown): void {
    const { logger, clock } = this.#options;
    if (this.#complained && this.#complained.elapsedNs < COMPLAINT_NS) return;
    this.#complained = new Stopwatch(clock);
    logger.warn(
      { error: messageOf(error) },
      'status page: the API server did not say who may see it; where it refused to, apply manifests/status-page',
    );
  }
}
