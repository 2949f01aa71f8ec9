import {
  CodedError,
  type Logger,
  MINUTE_NS,
  type Nanoseconds,
  Stopwatch,
} from '../../base/index.ts';
import type { KubeClient } from '../../kube/index.ts';
import type { Repository } from '../../repository/index.ts';
import { withRepositoryOf } from '../backups/bucket.ts';
import { openContext, prepareContext } from '../context.ts';

/** The repository of a namespace's volumes in a location. */
export interface RepositoryPlace {
  readonly storageLocation: string;
  readonly volumeNamespace: string;
}

export interface OpenRepositoriesOptions {
  readonly client: KubeClient;
  readonly namespace: string;
  readonly logger: Logger;
  /** Opens one until the work is done; a test has its own. */
  readonly withRepository?: typeof withOpenRepository;
}

/** A repository that somebody works with. */
export interface RepositoryLoan extends Disposable {
  readonly repository: Repository;
  /** Since it was opened: it knows nothing that was stored later. */
  readonly ageNs: Nanoseconds;
  /**
   * It is not lent again: something was wrong with it, or it is too old. It is closed when nobody
   * works with it any more.
   */
  retire(): void;
}

/** Our choices. Each takes up to 16 MiB for its index. */
const OPEN_MAX = 4;
const IDLE_MS = 5 * 60_000;
/**
 * Its index, its credentials and its location may be others by now. Maintenance deletes nothing
 * that was in use within hours.
 */
const LENT_NS = 15n * MINUTE_NS;
/**
 * Of an opening: all that is waited for in it is bounded, and this is more than these bounds
 * together are for a bucket that works.
 */
const OPENING_MS = 120_000;

interface Open {
  readonly repository: Promise<Repository>;
  readonly age: Stopwatch;
  readonly stop: AbortController;
  /** Until it is closed. */
  ended: Promise<void>;
  users: number;
  idle: NodeJS.Timeout | undefined;
}

/**
 * Repositories that are open for visitors: one for each place, which all of them share, and which
 * is closed when nobody has wanted it for some minutes. There are only so many; another one takes
 * the place of the one that nobody works with.
 */
export class OpenRepositories implements AsyncDisposable {
  readonly #options: OpenRepositoriesOptions;
  readonly #open = new Map<string, Open>();
  /** Retired ones as well. */
  readonly #all = new Set<Open>();
  #isClosed = false;

  constructor(options: OpenRepositoriesOptions) {
    this.#options = options;
  }

  get size(): number {
    return this.#all.size;
  }

  /** Throws `REPOSITORIES_BUSY`, and what the API server and opening the repository throw. */
  async borrow(place: RepositoryPlace, signal: AbortSignal): Promise<RepositoryLoan> {
    const key = `${place.storageLocation}/${place.volumeNamespace}`;
    let open = this.#open.get(key);
    if (open && open.age.elapsedNs > LENT_NS) {
      this.#retire(key, open);
      open = undefined;
    }
    open ??= this.#begin(key, place);
    const own = open;
    own.users++;
    clearTimeout(own.idle);
    let isGiven = false;
    const giveBack = (): void => {
      if (isGiven) return;
      isGiven = true;
      own.users--;
      this.#rest(key, own);
    };
    try {
      const repository = await unlessAborted(own.repository, signal);
      return {
        repository,
        get ageNs() {
          return own.age.elapsedNs;
        },
        retire: () => {
          this.#retire(key, own);
        },
        [Symbol.dispose]: giveBack,
      };
    } catch (error) {
      // Others may still wait for it where only this one has gone.
      if (!signal.aborted) this.#retire(key, own);
      giveBack();
      throw error;
    }
  }

  #begin(key: string, place: RepositoryPlace): Open {
    this.#makeRoom();
    const { client, namespace, logger, withRepository = withOpenRepository } = this.#options;
    const stop = new AbortController();
    const opening = AbortSignal.any([stop.signal, AbortSignal.timeout(OPENING_MS)]);
    const { promise, resolve, reject } = Promise.withResolvers<Repository>();
    const age = new Stopwatch(client.clock);
    const own = { client, namespace, logger, signal: opening };
    const ended = withRepository(place, own, async (repository) => {
      resolve(repository);
      if (stop.signal.aborted) return;
      await new Promise((done) => {
        stop.signal.addEventListener('abort', done, { once: true });
      });
    }).catch(reject);
    promise.catch(() => undefined);
    const open: Open = { repository: promise, age, stop, ended, users: 0, idle: undefined };
    open.ended = ended.finally(() => {
      this.#all.delete(open);
      this.#retire(key, open);
    });
    this.#open.set(key, open);
    this.#all.add(open);
    return open;
  }

  /** Throws `REPOSITORIES_BUSY`. */
  #makeRoom(): void {
    if (this.#isClosed) throw busy('the server ends');
    if (this.#all.size < OPEN_MAX) return;
    // The one that has been idle for longest is the first of the idle ones: whoever is used again
    // goes to the end.
    for (const [key, open] of this.#open) {
      if (open.users > 0) continue;
      this.#retire(key, open);
      return;
    }
    throw busy(`${OPEN_MAX} repositories are in use, and that is as many as may be open at once`);
  }

  #rest(key: string, open: Open): void {
    if (open.users > 0) return;
    if (this.#open.get(key) !== open) {
      open.stop.abort();
      return;
    }
    this.#open.delete(key);
    this.#open.set(key, open);
    open.idle = setTimeout(() => {
      this.#retire(key, open);
    }, IDLE_MS);
    open.idle.unref();
  }

  #retire(key: string, open: Open): void {
    clearTimeout(open.idle);
    if (this.#open.get(key) === open) this.#open.delete(key);
    if (open.users === 0) open.stop.abort();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true;
    for (const [key, open] of this.#open) this.#retire(key, open);
    for (const open of this.#all) open.stop.abort();
    await Promise.all(Array.from(this.#all, ({ ended }) => ended));
  }
}

const busy = (why: string): CodedError =>
  new CodedError('REPOSITORIES_BUSY', `no further repository is opened: ${why}`, {
    retry: 'backoff',
  });

/** Opens the repository of a place as `longshore browse` does, for as long as the work goes on. */
export async function withOpenRepository(
  place: RepositoryPlace,
  {
    logger,
    memoryLimit,
    ...session
  }: {
    readonly client: KubeClient;
    readonly namespace: string;
    readonly signal: AbortSignal;
    readonly logger: Logger;
    readonly memoryLimit?: string | undefined;
  },
  work: (repository: Repository) => Promise<void>,
): Promise<void> {
  await withRepositoryOf(place, session, async ({ location, password }) => {
    const common = {
      repo: location,
      client: 'default@default',
      ...(memoryLimit !== undefined && { memoryLimit }),
    };
    await using context = await openContext(common, { cache: false, password, logger });
    await work(context.repository);
  });
}

/**
 * Derives the key of the repository of a place, which {@link withOpenRepository} then finds in
 * memory: by the time that the bucket has said which snapshot is wanted, what takes longest is
 * done. Throws what finding the repository throws.
 */
export async function deriveKeyOf(
  place: RepositoryPlace,
  session: {
    readonly client: KubeClient;
    readonly namespace: string;
    readonly signal: AbortSignal;
  },
): Promise<void> {
  const { signal } = session;
  await withRepositoryOf(place, session, ({ location, password }) =>
    prepareContext({ repo: location }, { password, signal }),
  );
}

async function unlessAborted<T>(task: Promise<T>, signal: AbortSignal): Promise<T> {
  signal.throwIfAborted();
  const { promise, reject } = Promise.withResolvers<never>();
  const leave = (): void => {
    reject(signal.reason as Error);
  };
  signal.addEventListener('abort', leave, { once: true });
  try {
    return await Promise.race([task, promise]);
  } finally {
    signal.removeEventListener('abort', leave);
  }
}
