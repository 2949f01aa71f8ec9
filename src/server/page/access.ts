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
 * May see the page; nobody's token; somebody's who may not list what it shows; not known, since the
 * API server could not be asked.
 */
export type Verdict = 'allowed' | 'unknown' | 'forbidden' | 'away';

type Kind = Pick<Resource<never>, 'group' | 'plural'>;
/**
 * What the page shows. Who may list only some of it sees none of it: no part of the page is without
 * the others.
 */
const SHOWN: readonly Kind[] = [
  ...[BACKUPS, RESTORES, SCHEDULES, BACKUP_REPOSITORIES, BACKUP_STORAGE_LOCATIONS],
  ...[DATA_UPLOADS, DATA_DOWNLOADS, POD_VOLUME_BACKUPS, POD_VOLUME_RESTORES],
];

/** The API server's two questions. Both throw `KUBE_*` errors. */
export interface Reviews {
  /** Whose token it is; undefined where it is nobody's. */
  userOf(token: Secret, signal: AbortSignal): Promise<UserInfo | undefined>;
  /** Whether that one may see it. `about`: what it is, where the right is one to a single thing. */
  maySee(user: UserInfo, about: string, signal: AbortSignal): Promise<boolean>;
}

/** What somebody is asked about, of Velero's group. */
interface Deed {
  readonly verb: string;
  readonly kind: Kind;
  readonly name?: string;
}

/**
 * The default audience of visitors' tokens. With such a token nobody can do anything at the API
 * server, so a stolen session is good for this page only.
 */
export const STATUS_PAGE_AUDIENCE = 'longshore-status-page';

/** Who may see the page: whoever may list all kinds of objects that it shows. */
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
 * The verb on Backups that lets somebody see the files of one. No other right of Kubernetes fits:
 * those who may read objects of Velero are to see no data, and those who may restore are to do
 * more. Roles for reading, also those for all resources, do not have it; those for all verbs do.
 */
export const BROWSE_VERB = 'browse';

/** Who may see the files of a backup, whose name the question is about. */
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
  // An authenticator that does not check audiences leaves them out (Kubernetes: TokenReviewStatus).
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

/** A right that is taken away ends within this time. */
const KEPT_NS = 30n * SECOND_NS;
const REVIEW_MS = 5000;
/**
 * Our choices: many more people than look at backups at once, and few enough reviews that an API
 * server notices none of them.
 */
const KEPT_MAX = 1000;
const REVIEWS_MAX = 4;
const WAITING_MAX = 64;
/**
 * Tokens that are asked about and were not good the last time, in each span of time: whoever makes
 * them up costs the API server no more.
 */
const STRANGERS_MAX = 64;
const STRANGERS_NS = 4n * SECOND_NS;
const COMPLAINT_NS = 60n * SECOND_NS;
/**
 * RFC 6750, section 2.1; the longest tokens are those of identity providers that put groups into
 * them.
 */
const TOKEN = /^[A-Za-z0-9\-._~+/]+=*$/;
export const TOKEN_CHARS_MAX = 12_000;

interface Known {
  readonly verdict: Promise<Verdict>;
  /** Undefined where the answer is not to be used again. */
  age: Stopwatch | undefined;
}

/**
 * Who may see the page, or what {@link Reviews} it is given ask about. Answers are kept for half a
 * minute at most, and only so many; tokens are kept as hashes. However many strangers ask, those
 * who were let in are: what is remembered of them is apart, and they are asked about whatever else
 * is.
 */
export class Access {
  readonly #options: AccessOptions;
  /** By the hash of the token and of what it is shown for, oldest first. */
  readonly #guests = new Map<string, Known>();
  readonly #strangers = new Map<string, Known>();
  readonly #places = createLimiter(REVIEWS_MAX);
  #span: { readonly age: Stopwatch; count: number } | undefined;
  #complained: Stopwatch | undefined;

  constructor(options: AccessOptions) {
    this.#options = options;
  }

  /** `about`: the name of a single thing, where the right is one to that. */
  verdictOf(token: string, about = ''): Promise<Verdict> {
    if (token.length > TOKEN_CHARS_MAX || !TOKEN.test(token)) return Promise.resolve('unknown');
    // No token has a blank.
    const key = createHash('sha256').update(`${token} ${about}`).digest('base64');
    const isGuest = this.#guests.has(key);
    const known = this.#guests.get(key) ?? this.#strangers.get(key);
    if (known?.age && known.age.elapsedNs < KEPT_NS) return known.verdict;
    if (!isGuest && !this.#hasPlaceForStranger()) {
      this.#complain('more tokens are shown that nobody knows than are asked about');
      return Promise.resolve('away');
    }
    // The time runs from before the question: what the answer says was true then.
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
    // Nothing was said against a guest either.
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
      // An API server may say what it was given, and it was given a token.
      this.#complain(messageOf(error).replaceAll(token.reveal(), '…'));
      return 'away';
    }
  }

  /**
   * Visitors are told nothing of the reason, so it is in the log; once a minute, however many of
   * them there are.
   */
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

/** As the newest; the oldest one goes for it. */
function remember(known: Map<string, Known>, key: string, entry: Known): void {
  known.delete(key);
  known.set(key, entry);
  for (const oldest of known.keys()) {
    if (known.size <= KEPT_MAX) break;
    known.delete(oldest);
  }
}
