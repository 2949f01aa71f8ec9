import { createHash } from 'node:crypto';
import {
  type Clock,
  createLimiter,
  type Logger,
  messageOf,
  redactAndCut,
  Secret,
  SECOND_NS,
  Stopwatch,
} from '../../base/index.ts';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type KubeClient,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  type Resource,
  RESTORES,
  SCHEDULES,
  SUBJECT_ACCESS_REVIEWS,
  TOKEN_REVIEWS,
  type UserInfo,
} from '../../kube/index.ts';

/**
 * - `allowed`: may see the page.
 * - `unknown`: not a valid token.
 * - `forbidden`: the user may not list the shown objects.
 * - `away`: the API server did not answer.
 */
export type Verdict = 'allowed' | 'unknown' | 'forbidden' | 'away';

type Kind = Pick<Resource<never>, 'group' | 'plural'>;
/** Kinds on the page. A visitor must be allowed to list all: the page has no partial view. */
const SHOWN: readonly Kind[] = [
  ...[BACKUPS, RESTORES, SCHEDULES, BACKUP_REPOSITORIES, BACKUP_STORAGE_LOCATIONS],
  ...[DATA_UPLOADS, DATA_DOWNLOADS, POD_VOLUME_BACKUPS, POD_VOLUME_RESTORES],
];

/** Questions to the API server. Both throw `KUBE_*` errors. */
export interface Reviews {
  /** The user of a token; undefined for an invalid token. */
  userOf(token: Secret, signal: AbortSignal): Promise<UserInfo | undefined>;
  /** Whether the user has access. `about`: the name of the object for access to a single object. */
  maySee(user: UserInfo, about: string, signal: AbortSignal): Promise<boolean>;
}

/** An action on objects of Velero's group. */
interface Deed {
  readonly verb: string;
  readonly kind: Kind;
  readonly name?: string;
}

/** Default audience of tokens. The API server rejects them, so they are useful only here. */
export const STATUS_PAGE_AUDIENCE = 'longshore-status-page';

/** Access for users who may list all kinds on the page. */
export const clusterReviews = (
  client: KubeClient,
  namespace: string,
  audiences: readonly string[] = [STATUS_PAGE_AUDIENCE],
): Reviews => ({
  userOf: (token, signal) => userOf(client, audiences, token, signal),
  async maySee(user, _about, signal) {
    for (const kind of SHOWN) {
      const deed = { verb: 'list', kind };
      if (!(await mayDo(client, namespace, { user, deed, signal }))) return false;
    }
    return true;
  },
});

/**
 * The verb on Backups that allows to see the files of a backup. No existing verb fits: reading
 * Velero's objects must not include data, and restoring allows more. Roles for reading, even for
 * all resources, do not include it. Roles for all verbs do.
 */
export const BROWSE_VERB = 'browse';

/** Access to the files of a named backup. */
export const browseReviews = (
  client: KubeClient,
  namespace: string,
  audiences: readonly string[] = [STATUS_PAGE_AUDIENCE],
): Reviews => ({
  userOf: (token, signal) => userOf(client, audiences, token, signal),
  maySee: (user, name, signal) => {
    const deed = { verb: BROWSE_VERB, kind: BACKUPS, name };
    return mayDo(client, namespace, { user, deed, signal });
  },
});

async function userOf(
  client: KubeClient,
  audiences: readonly string[],
  token: Secret,
  signal: AbortSignal,
): Promise<UserInfo | undefined> {
  const wanted = audiences.length > 0 && { audiences };
  const review = { metadata: {}, spec: { token: token.reveal(), ...wanted } };
  const { status } = await client.create(TOKEN_REVIEWS, review, { signal });
  // An authenticator without support for audiences omits them (Kubernetes: TokenReviewStatus).
  const confirmed = status?.audiences ?? [];
  if (wanted && !audiences.some((audience) => confirmed.includes(audience))) return undefined;
  return status?.authenticated === true && status.user?.username ? status.user : undefined;
}

async function mayDo(
  client: KubeClient,
  namespace: string,
  { user, deed, signal }: { user: UserInfo; deed: Deed; signal: AbortSignal },
): Promise<boolean> {
  const { username = '', uid, groups, extra } = user;
  const { group, plural: resource } = deed.kind;
  const spec = {
    user: username,
    ...(uid !== undefined && { uid }),
    ...(groups && { groups }),
    ...(extra && { extra }),
    resourceAttributes: {
      namespace,
      verb: deed.verb,
      group,
      resource,
      ...(deed.name !== undefined && { name: deed.name }),
    },
  };
  const review = { metadata: {}, spec };
  const { status } = await client.create(SUBJECT_ACCESS_REVIEWS, review, { signal });
  return status?.allowed === true && status.denied !== true;
}

export interface AccessOptions {
  readonly reviews: Reviews;
  readonly logger: Logger;
  readonly clock: Clock;
}

/** Cache time of an answer, after which a revoked permission ends. */
const KEPT_NS = 30n * SECOND_NS;
const REVIEW_MS = 5000;
/** Our choices: more people than look at backups at once, and few reviews for an API server. */
const KEPT_MAX = 1000;
const REVIEWS_MAX = 4;
const WAITING_MAX = 64;
/** Limit for reviews of tokens that had no access before: invented tokens then cost little. */
const STRANGERS_MAX = 64;
const STRANGERS_NS = 4n * SECOND_NS;
const COMPLAINT_NS = 60n * SECOND_NS;
/** RFC 6750, section 2.1. Tokens of identity providers with groups are the longest. */
const TOKEN = /^[A-Za-z0-9\-._~+/]+=*$/;
export const TOKEN_CHARS_MAX = 12_000;

interface Known {
  readonly verdict: Promise<Verdict>;
  /** Undefined for an answer that must not be reused. */
  age: Stopwatch | undefined;
}

/**
 * Decides who has access, by its {@link Reviews}. Answers are cached for half a minute, up to a
 * limit, and tokens only as hashes. Allowed visitors have a cache of their own and skip the limit,
 * so strangers cannot lock them out.
 */
export class Access {
  readonly #options: AccessOptions;
  /** Keys are hashes of token and object, oldest first. */
  readonly #guests = new Map<string, Known>();
  readonly #strangers = new Map<string, Known>();
  readonly #places = createLimiter(REVIEWS_MAX);
  #span: { readonly age: Stopwatch; count: number } | undefined;
  #complained: Stopwatch | undefined;

  constructor(options: AccessOptions) {
    this.#options = options;
  }

  /** `about`: the name of the object for access to a single object. */
  verdictOf(token: string, about = ''): Promise<Verdict> {
    if (token.length > TOKEN_CHARS_MAX || !TOKEN.test(token)) return Promise.resolve('unknown');
    // A token contains no blank.
    const key = createHash('sha256').update(`${token} ${about}`).digest('base64');
    const isGuest = this.#guests.has(key);
    const known = this.#guests.get(key) ?? this.#strangers.get(key);
    if (known?.age && known.age.elapsedNs < KEPT_NS) return known.verdict;
    if (!isGuest && !this.#hasPlaceForStranger()) {
      this.#complain('more tokens are shown that nobody knows than are asked about');
      return Promise.resolve('away');
    }
    // The age starts before the question, because the answer may be that old.
    const age = new Stopwatch(this.#options.clock);
    const entry: Known = { verdict: this.#ask(new Secret(token), about), age };
    remember(isGuest ? this.#guests : this.#strangers, key, entry);
    return entry.verdict.then((answer) => {
      this.#sort(key, entry, answer);
      return answer;
    });
  }

  #sort(key: string, entry: Known, answer: Verdict): void {
    const from = this.#guests.get(key) === entry ? this.#guests : this.#strangers;
    if (from.get(key) !== entry) return;
    // Without an answer a guest stays a guest.
    if (answer === 'away') entry.age = undefined;
    const to = answer === 'away' ? from : answer === 'allowed' ? this.#guests : this.#strangers;
    if (from === to) return;
    from.delete(key);
    remember(to, key, entry);
  }

  #hasPlaceForStranger(): boolean {
    if (this.#places.pending >= WAITING_MAX) return false;
    if (!this.#span || this.#span.age.elapsedNs >= STRANGERS_NS) {
      this.#span = { age: new Stopwatch(this.#options.clock), count: 0 };
    }
    return ++this.#span.count <= STRANGERS_MAX;
  }

  async #ask(token: Secret, about: string): Promise<Verdict> {
    try {
      return await this.#places.run(async () => {
        const { reviews } = this.#options;
        const signal = AbortSignal.timeout(REVIEW_MS);
        const user = await reviews.userOf(token, signal);
        if (!user) return 'unknown';
        return (await reviews.maySee(user, about, signal)) ? 'allowed' : 'forbidden';
      });
    } catch (error) {
      // Errors of the API server may quote the token.
      this.#complain(messageOf(error).replaceAll(token.reveal(), '…'));
      return 'away';
    }
  }

  /** Logs the reason, because visitors do not see it; at most once a minute. */
  #complain(reason: string): void {
    const { logger, clock } = this.#options;
    if (this.#complained && this.#complained.elapsedNs < COMPLAINT_NS) return;
    this.#complained = new Stopwatch(clock);
    logger.warn(
      { error: redactAndCut(reason) },
      'status page: the API server did not say who may see it; where it refused to, apply manifests/status-page',
    );
  }
}

/** Adds the newest entry and removes the oldest. */
function remember(known: Map<string, Known>, key: string, entry: Known): void {
  known.delete(key);
  known.set(key, entry);
  for (const oldest of known.keys()) {
    if (known.size <= KEPT_MAX) break;
    known.delete(oldest);
  }
}
