import { setTimeout as sleep } from 'node:timers/promises';
import {
  type Clock,
  CodedError,
  type Logger,
  messageOf,
  SECOND_NS,
  Stopwatch,
} from '../../base/index.ts';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  Cache,
  type KubeClient,
  type KubeObject,
  type Resource,
  RESTORES,
  SCHEDULES,
} from '../../kube/index.ts';
import { isPasswordWellKnown } from '../repositories/password-secret.ts';
import {
  type Kept,
  keptLocation,
  keptRepository,
  keptRun,
  keptSchedule,
  type LocationRow,
  type RepositoryRow,
  type RunRow,
  type ScheduleRow,
} from './rows.ts';
import type { LocationTrust, TrustSource } from './signatures.ts';
import type { VolumeSource, VolumesNow } from './volumes.ts';

export interface PageViewOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly volumes: VolumeSource;
  readonly signatures?: TrustSource;
  /** How long a sorted result is reused; default {@link SORTED_NS}. */
  readonly sortedNs?: bigint;
}

/** The content of the page, sorted once for all visitors. */
export interface World {
  readonly namespace: string;
  readonly nowMs: number;
  /** Newest first. */
  readonly backups: readonly RunRow[];
  /** The newest `Completed` backup that is not being deleted. */
  readonly newestWhole: RunRow | undefined;
  readonly backupsByName: ReadonlyMap<string, RunRow>;
  /** Keyed by UID, to name the owners of volumes. */
  readonly runsByUid: ReadonlyMap<string, RunRow>;
  readonly restores: readonly RunRow[];
  readonly restoresByName: ReadonlyMap<string, RunRow>;
  readonly schedules: readonly ScheduleRow[];
  readonly repositories: readonly RepositoryRow[];
  readonly locations: readonly LocationRow[];
  /** Whether the password of all repositories is Velero's default. */
  readonly hasWellKnownPassword: boolean;
  /** By location. Empty until the first read of the buckets. */
  readonly trust: ReadonlyMap<string, LocationTrust>;
  /** Undefined until they are read. */
  readonly volumes: VolumesNow | undefined;
  /** Kinds that were never read. */
  readonly unread: ReadonlySet<string>;
  /** Reasons for outdated or missing data, as sentences. */
  readonly outages: readonly string[];
}

/** The progress of a running backup changes every second. Our choice. */
const SORTED_NS = 2n * SECOND_NS;
/** Bookmarks of a watch come about every minute. */
const SILENT_MS = 150_000;

/** Interval between reads of the password's Secret. Our choice. */
const PASSWORD_MS = 60_000;

type Sorted = Omit<
  World,
  'nowMs' | 'trust' | 'volumes' | 'unread' | 'outages' | 'hasWellKnownPassword'
>;

/**
 * The cluster's objects for the page, from permanent watches, sorted at most every two seconds.
 * Visitors read memory and never cause a list request.
 */
export class PageView {
  readonly #options: PageViewOptions;
  readonly #clock: Clock;
  readonly #backups: Cache<Kept<RunRow>>;
  readonly #restores: Cache<Kept<RunRow>>;
  readonly #schedules: Cache<Kept<ScheduleRow>>;
  readonly #repositories: Cache<Kept<RepositoryRow>>;
  readonly #locations: Cache<Kept<LocationRow>>;
  #sorted: { readonly world: Sorted; readonly age: Stopwatch } | undefined;
  #hasChanged = true;
  #hasWellKnownPassword = false;
  /** Number of sorts, for tests of the cost per visitor. */
  sorts = 0;

  constructor(options: PageViewOptions) {
    this.#options = options;
    this.#clock = options.client.clock;
    this.#backups = this.#cacheOf(BACKUPS, (object) => keptRun('Backup', object));
    this.#restores = this.#cacheOf(RESTORES, (object) => keptRun('Restore', object));
    this.#schedules = this.#cacheOf(SCHEDULES, keptSchedule);
    this.#repositories = this.#cacheOf(BACKUP_REPOSITORIES, keptRepository);
    this.#locations = this.#cacheOf(BACKUP_STORAGE_LOCATIONS, keptLocation);
  }

  #cacheOf<T extends KubeObject, R>(
    resource: Resource<T>,
    keep: (object: T) => Kept<R>,
  ): Cache<Kept<R>> {
    const { client, logger, namespace } = this.#options;
    const cache = new Cache<Kept<R>>({
      client,
      logger,
      scope: { namespace },
      resource: resource as unknown as Resource<Kept<R>>,
      // The API server sends whole objects.
      trim: (object) => keep(object as unknown as T),
    });
    cache.onChange(() => (this.#hasChanged = true));
    return cache;
  }

  get #caches(): readonly Cache<Kept<unknown>>[] {
    return [
      ...[this.#backups, this.#restores, this.#schedules],
      ...[this.#repositories, this.#locations],
    ] as unknown as readonly Cache<Kept<unknown>>[];
  }

  /** Runs until aborted. */
  async run(signal: AbortSignal): Promise<void> {
    await Promise.all([
      ...this.#caches.map((cache) => cache.run(signal)),
      this.#options.volumes.run(signal),
      this.#followPassword(signal),
    ]);
  }

  /** Keeps the last answer if the Secret cannot be read. */
  async #followPassword(signal: AbortSignal): Promise<void> {
    const { client, namespace, logger } = this.#options;
    while (!signal.aborted) {
      try {
        const isWellKnown = await isPasswordWellKnown(client, namespace, signal);
        this.#hasWellKnownPassword = isWellKnown ?? this.#hasWellKnownPassword;
      } catch (error) {
        if (signal.aborted) return;
        logger.debug({ error: messageOf(error) }, 'the Secret of the password cannot be read');
      }
      await sleep(PASSWORD_MS, undefined, { signal, ref: false }).catch(() => undefined);
    }
  }

  /** The current content. Throws `NOT_READ_YET` until the cluster was read once. */
  async look(): Promise<World> {
    const unread = this.#caches.find(
      (cache) => !cache.isSynced && (cache === (this.#backups as unknown) || !cache.failure),
    );
    if (unread) throw notReadYet(unread);
    const { volumes } = this.#options;
    const moved = await volumes.look();
    const nowMs = Number(this.#clock.nowNs() / 1_000_000n);
    const unknown = this.#caches.flatMap(({ isSynced, resource }) =>
      isSynced ? [] : [resource.plural],
    );
    return {
      ...this.#sort(),
      nowMs,
      volumes: moved,
      unread: new Set(unknown),
      outages: this.#outages(),
      hasWellKnownPassword: this.#hasWellKnownPassword,
      trust: this.#options.signatures?.look() ?? new Map<string, LocationTrust>(),
    };
  }

  #sort(): Sorted {
    const { sortedNs = SORTED_NS, namespace } = this.#options;
    if (this.#sorted && (!this.#hasChanged || this.#sorted.age.elapsedNs < sortedNs)) {
      return this.#sorted.world;
    }
    this.sorts++;
    this.#hasChanged = false;
    const age = new Stopwatch(this.#clock);
    const backups = newestFirst(this.#backups);
    const restores = newestFirst(this.#restores);
    const world = {
      namespace,
      backups,
      restores,
      newestWhole: backups.find(({ phase, isDeleting }) => phase === 'Completed' && !isDeleting),
      backupsByName: new Map(backups.map((row) => [row.name, row])),
      restoresByName: new Map(restores.map((row) => [row.name, row])),
      runsByUid: new Map([...backups, ...restores].map((row) => [row.uid, row])),
      schedules: byName(this.#schedules),
      repositories: byName(this.#repositories),
      locations: byName(this.#locations),
    };
    this.#sorted = { world, age };
    return world;
  }

  #outages(): string[] {
    const own = this.#caches.flatMap((cache) => {
      const { failure, isAway, silentMs, resource } = cache;
      if (failure !== undefined && !cache.isSynced) {
        return [`${resource.plural} cannot be read: ${failure}`];
      }
      if (failure !== undefined && isAway) {
        return [`${resource.plural} may have changed since: ${failure}`];
      }
      return silentMs > SILENT_MS
        ? [
            `${resource.plural} may have changed since: no word from the API server for ${Math.round(silentMs / 1000)} s`,
          ]
        : [];
    });
    const { outage } = this.#options.volumes;
    return outage === undefined ? own : [...own, outage];
  }
}

function notReadYet({ resource, failure }: Cache<Kept<unknown>>): CodedError {
  const why = failure === undefined ? '' : `: ${failure}`;
  return new CodedError(
    'NOT_READ_YET',
    `${resource.plural} have not been read yet${why}; this is tried again all the time`,
    { retry: 'backoff' },
  );
}

const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0);

const newestFirst = (cache: Cache<Kept<RunRow>>): RunRow[] =>
  cache
    .list()
    .map(({ row }) => row)
    .sort((a, b) => b.beganMs - a.beganMs || compare(a.name, b.name));

const byName = <R extends { readonly name: string }>(cache: Cache<Kept<R>>): R[] =>
  cache
    .list()
    .map(({ row }) => row)
    .sort((a, b) => compare(a.name, b.name));
