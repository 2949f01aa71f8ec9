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
  /** Opens a repository until the work is done. Tests replace it. */
  readonly withRepository?: typeof withOpenRepository;
}

/** A repository in use by one caller. */
export interface RepositoryLoan extends Disposable {
  readonly repository: Repository;
  /** Age since opening. Later snapshots are not in its index. */
  readonly ageNs: Nanoseconds;
  /** Stops further loans of a failed or old repository. Its last user closes it. */
  retire(): void;
}

/** Our choices. Each takes up to 16 MiB for its index. */
const OPEN_MAX = 4;
const IDLE_MS = 5 * 60_000;
/**
 * After this time the index, the credentials and the location may be outdated. Maintenance deletes
 * nothing that was in use within hours.
 */
const LENT_NS = 15n * MINUTE_NS;
/** Time limit for opening. All waits in it are limited, and usually take less in sum. */
const OPENING_MS = 120_000;

interface Open {
  readonly repository: Promise<Repository>;
  readonly age: Stopwatch;
  readonly stop: AbortController;
  /** Resolves when the repository is closed. */
  ended: Promise<void>;
  users: number;
  idle: NodeJS.Timeout | undefined;
}

/**
 * Open repositories for visitors, one for each place, shared, and closed after some idle minutes.
 * Their number is limited, so a new one replaces an idle one.
 */
export class OpenRepositories implements AsyncDisposable {
  readonly #options: OpenRepositoriesOptions;
  readonly #open = new Map<string, Open>();
  /** Includes retired ones. */
  readonly #all = new Set<Open>();
  #isClosed = false;

  constructor(options: OpenRepositoriesOptions) {
    this.#options = options;
  }

  get size(): number {
    return this.#all.size;
  }

  /** Throws `REPOSITORIES_BUSY`, and errors of the API server and of opening the repository. */
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
      // If only this caller has left, others may still wait for it.
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
    // The map is ordered by last use, so the first idle entry has been idle longest.
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

/** Opens the repository of a place like `longshore browse`, until the work is done. */
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
 * Derives the key of a repository, which is the slowest step of opening it. {@link
 * withOpenRepository} then finds the key in memory. Meanwhile the bucket is read to find the
 * snapshot. Throws errors of finding the repository.
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
