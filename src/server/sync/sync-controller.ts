import { Gauge, type Registry } from 'prom-client';
import { BackupArchive } from '../../archive/index.ts';
import {
  CanceledError,
  createLimiter,
  isCode,
  type Limiter,
  type Logger,
  messageOf,
  redactAndCut,
  untilAborted,
} from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import { parseBackupStorageLocation, RETENTION, retentionOf } from '../../config/index.ts';
import {
  type Backup,
  BACKUP_STORAGE_LOCATIONS,
  type BackupStorageLocation,
  Cache,
  type EventRecorder,
  keyOf,
  type KubeClient,
  refOf,
  withOwnSignal,
} from '../../kube/index.ts';
import type { Buckets } from '../backups/contract.ts';
import type { SharedBackups, WatchedBackups } from '../backups/shared-backups.ts';
import { isSettledSoon } from '../locations/location-checks.ts';
import { type Lead, LeadingController } from '../leading-controller.ts';
import { serverEvents } from '../server-events.ts';
import { BackgroundWork } from '../background-work.ts';
import { syncLocation, type SyncReport } from './sync-location.ts';
import { BackupLocks } from './backup-locks.ts';
import { SyncMemory } from './sync-memory.ts';
import { frequencyMsOf } from '../locations/validation-plan.ts';

export interface SyncControllerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly host: string;
  readonly registry: Registry;
  readonly backups: SharedBackups;
  readonly buckets: Buckets;
  /** For locations without their own period. */
  readonly periodMs: number;
}

/** Interval of the timer that finds due locations, by the API server's clock. Our choice. */
export const LOOK_MS = 1000;
/** Delay after a failed sync, as in Velero. */
const RETRY_MS = 60_000;
/** Interval of lock extensions of a location, whatever its sync period. Our choice. */
const LOCKS_MS = 60_000;
/** Slots for syncs. Each sync holds its slot at most for `YOUNG_MS`. Our choice. */
const AT_ONCE = 8;
/**
 * A longer sync continues without a slot, so a hanging bucket delays no other location. Our choice.
 */
const YOUNG_MS = 10_000;
/** Time limit of one sync; the next sync continues. Our choice: 10,000 new backups take minutes. */
const SYNC_MS_MAX = 30 * 60_000;
/** etcd limits objects to 1.5 MiB, and stored JSON is indented. Our choice. */
const METADATA_BYTES_MAX = 8 << 20;

/** Creates Backups for stored backups, like Velero's controller: clusters can share a bucket. */
export class SyncController extends LeadingController<SyncRun> {
  readonly name = 'backup-sync';
  readonly #options: SyncControllerOptions;

  constructor(options: SyncControllerOptions) {
    super(options);
    this.#options = options;
    registerSyncMetrics(options.registry, () => this.now?.described() ?? []);
  }

  override get failure(): string | undefined {
    return super.failure ?? this.#options.backups.failure;
  }

  protected begin(lead: Lead): SyncRun {
    return new SyncRun(this.#options, lead);
  }
}

/** State of one location in this process. */
interface Known {
  readonly uid: string;
  readonly memory: SyncMemory;
  readonly locks: BackupLocks;
  /** On the monotonic clock: no sync before this time. */
  restsUntilMs: number;
  /** On the monotonic clock: no lock extension without a sync before this time. */
  locksRestUntilMs: number;
  /** The number of kept Backups in the last warning about a changed location. */
  toldElsewhere: number;
}

/** Work that is due for a location. Each sync extends locks, too. */
type Due = 'sync' | 'locks';

/** A period of leadership. */
class SyncRun {
  readonly #options: SyncControllerOptions;
  readonly #lead: Lead;
  readonly #locations: Cache<BackupStorageLocation>;
  readonly #events: EventRecorder;
  readonly #places: Limiter = createLimiter(AT_ONCE);
  readonly #work: BackgroundWork<SyncReport | undefined>;
  readonly #known = new Map<string, Known>();

  constructor(options: SyncControllerOptions, lead: Lead) {
    const { client, logger, namespace } = options;
    this.#options = options;
    this.#lead = lead;
    this.#events = serverEvents(options);
    this.#locations = new Cache({
      client,
      logger,
      resource: BACKUP_STORAGE_LOCATIONS,
      scope: { namespace },
    });
    this.#work = new BackgroundWork((key) => {
      this.#ended(key);
    });
  }

  get failure(): string | undefined {
    return this.#locations.failure;
  }

  async run(): Promise<void> {
    const signal = this.#lead.signal;
    await using watched = await this.#options.backups.open(signal);
    const running = this.#locations.run(signal);
    await untilAborted(signal, this.#locations.synced);
    this.#locations.onChange((after, before) => {
      if (!after && before) this.#known.delete(keyOf(before.metadata));
    });
    const look = (): void => {
      this.#look(watched);
    };
    const timer = setInterval(look, LOOK_MS);
    look();
    try {
      await running;
      await this.#work.settle();
    } finally {
      clearInterval(timer);
    }
    await this.#events.flush();
  }

  /** Starts the work of due locations, the default location first. */
  #look(watched: WatchedBackups): void {
    if (this.#lead.signal.aborted || watched.cache.failure !== undefined) return;
    // The watch brings the time of the last sync.
    if (this.#locations.failure !== undefined) return;
    const all = this.#locations.list();
    all.sort((a, b) => Number(b.spec?.default === true) - Number(a.spec?.default === true));
    for (const location of all) {
      const due = this.#dueIn(location);
      if (due) this.#begin(location, due, watched);
    }
  }

  #dueIn(location: BackupStorageLocation): Due | undefined {
    const { metadata, spec, status } = location;
    if (status?.phase !== 'Available' || metadata.deletionTimestamp !== undefined) return undefined;
    const key = keyOf(metadata);
    if (this.#work.isRunning(key)) return undefined;
    const known = this.#knownOf(key, metadata.uid);
    if (performance.now() < known.restsUntilMs) return undefined;
    if (this.#isSyncDue(location)) return 'sync';
    // Locks are needed even if no sync is due.
    const isLocking =
      metadata.annotations?.[RETENTION] !== undefined && spec?.accessMode !== 'ReadOnly';
    return isLocking && performance.now() >= known.locksRestUntilMs ? 'locks' : undefined;
  }

  #isSyncDue({ spec, status }: BackupStorageLocation): boolean {
    if (isNeverSynced(spec?.backupSyncPeriod)) return false;
    const { client, periodMs: serverPeriodMs } = this.#options;
    const restMs = restUntilSync({
      period: spec?.backupSyncPeriod,
      serverPeriodMs,
      lastSyncedTime: status?.lastSyncedTime,
      nowMs: Number(client.clock.nowNs() / 1_000_000n),
    });
    return restMs <= 0;
  }

  #knownOf(key: string, uid: string): Known {
    const before = this.#known.get(key);
    if (before?.uid === uid) return before;
    const known = {
      uid,
      memory: new SyncMemory(),
      locks: new BackupLocks(),
      restsUntilMs: -Infinity,
      locksRestUntilMs: -Infinity,
      toldElsewhere: 0,
    };
    this.#known.set(key, known);
    return known;
  }

  #begin(location: BackupStorageLocation, due: Due, watched: WatchedBackups): void {
    const key = keyOf(location.metadata);
    const { memory, locks } = this.#knownOf(key, location.metadata.uid);
    const places: Pick<Limiter, 'run'> = { run: (task) => this.#placed(task) };
    this.#work.begin(key, places, () =>
      withOwnSignal(this.#lead.signal, async (own) => {
        const timer = setTimeout(() => {
          own.abort(new CanceledError('timeout'));
        }, SYNC_MS_MAX);
        try {
          return await this.#sync(key, { memory, locks, due }, watched, own.signal);
        } finally {
          clearTimeout(timer);
        }
      }),
    );
  }

  /** Holds a slot only at the beginning. */
  #placed<T>(task: () => Promise<T>): Promise<T> {
    const ended = Promise.withResolvers<T>();
    const begun = this.#places.run(async () => {
      const work = task();
      work.then(ended.resolve, ended.reject);
      await isSettledSoon(work, YOUNG_MS);
    });
    begun.catch(ended.reject);
    return ended.promise;
  }

  async #sync(
    key: string,
    { memory, locks, due }: Pick<Known, 'memory' | 'locks'> & { readonly due: Due },
    watched: WatchedBackups,
    signal: AbortSignal,
  ): Promise<SyncReport | undefined> {
    const { client, logger, namespace, buckets } = this.#options;
    // Read from the API server: the bucket is opened next, and compared with it before a removal.
    const location = await client.get(BACKUP_STORAGE_LOCATIONS, refOf(key), { signal });
    await using opened = await buckets.open(location.metadata.name, signal);
    // Call it before the bucket is closed.
    const extend = (): Promise<void> =>
      this.#extendLocks(location, { locks, watched, bucket: opened.bucket, signal });
    if (due === 'locks') {
      await extend();
      return undefined;
    }
    let report: SyncReport;
    try {
      report = await syncLocation({
        client,
        logger,
        namespace,
        location,
        memory,
        signal,
        backups: watched.cache,
        archive: new BackupArchive(opened.bucket, { metadataBytesMax: METADATA_BYTES_MAX }),
        locationNow: () => this.#locations.get(refOf(key)),
        onExpired: (backup) => {
          this.#tellOfExpired(backup);
        },
        assertLeading: this.#lead.assertLeading,
      });
    } catch (error) {
      // A backup that fails to sync must not end the locks of other backups.
      const isElsewhere = signal.aborted || isCode(error, 'LEADERSHIP_LOST', 'LOCATION_CHANGED');
      if (!isElsewhere) await extend();
      throw error;
    }
    await extend();
    return report;
  }

  #tellOfExpired(backup: Backup): void {
    const { name } = backup.metadata;
    const text = `the backup had expired before this cluster found it in its location, so it is never deleted by its expiration; delete it with: longshore backup delete ${name}`;
    this.#options.logger.warn({ backup: name }, text);
    this.#events.record(backup, 'ExpiredBeforeSync', text, 'Warning');
  }

  /** A failure with locks is no failure of the sync. */
  async #extendLocks(
    location: BackupStorageLocation,
    {
      locks,
      watched,
      bucket,
      signal,
    }: {
      readonly locks: BackupLocks;
      readonly watched: WatchedBackups;
      readonly bucket: Bucket;
      readonly signal: AbortSignal;
    },
  ): Promise<void> {
    const { client, logger } = this.#options;
    const { name } = location.metadata;
    const retention = retentionOf(
      parseBackupStorageLocation({ ...location, kind: 'BackupStorageLocation' }),
    );
    if (!retention || location.spec?.accessMode === 'ReadOnly') return;
    try {
      await locks.extend({
        bucket,
        retention,
        logger,
        signal,
        location: name,
        backups: watched.cache.list().filter(({ spec }) => spec.storageLocation === name),
        nowNs: client.clock.nowNs(),
        assertLeading: this.#lead.assertLeading,
      });
    } catch (error) {
      signal.throwIfAborted();
      if (isCode(error, 'LEADERSHIP_LOST')) throw error;
      const text = `locks of backups cannot be extended: ${redactAndCut(messageOf(error))}`;
      logger.warn({ location: name }, text);
      this.#events.record(location, 'LocksNotExtended', text, 'Warning');
    }
  }

  #ended(key: string): void {
    const ended = this.#work.ended(key);
    this.#work.forget(key);
    const location = this.#locations.get(refOf(key));
    const known = this.#known.get(key);
    if (!ended || !location || !known || this.#lead.signal.aborted) return;
    known.locksRestUntilMs = performance.now() + LOCKS_MS;
    if ('error' in ended) {
      known.restsUntilMs = performance.now() + RETRY_MS;
      this.#tellOfFailure(location, ended.error);
      return;
    }
    // The watch may bring the written time a moment later.
    known.restsUntilMs = performance.now() + LOOK_MS;
    if (ended.result) this.#tellOf(location, known, ended.result);
  }

  #tellOfFailure({ metadata: { name } }: BackupStorageLocation, error: Error): void {
    const { logger } = this.#options;
    const fields = { location: name, error: redactAndCut(messageOf(error)) };
    if (isCode(error, 'LOCATION_CHANGED')) logger.debug(fields, 'the sync of a location was left');
    else logger.warn(fields, 'a location could not be synced; it is tried again in a minute');
  }

  #tellOf(location: BackupStorageLocation, known: Known, report: SyncReport): void {
    const { logger } = this.#options;
    const { name } = location.metadata;
    const { created, removed, elsewhere } = report;
    if (created + removed > 0) {
      logger.info({ location: name, created, removed }, 'a location was synced');
    }
    if (elsewhere > 0 && elsewhere !== known.toldElsewhere) {
      const text = `${elsewhere} backups of the location are not where it points now: they stay in the cluster until it points back, or somebody deletes them`;
      logger.warn({ location: name }, text);
      this.#events.record(location, 'BackupsElsewhere', text, 'Warning');
    }
    known.toldElsewhere = elsewhere;
  }

  *described(): Generator<SyncedLocation> {
    for (const [key, { memory }] of this.#known) {
      const { refused, held } = memory;
      // Skip locations before their first sync: a 0 would end an alert.
      if (held !== undefined) yield { name: refOf(key).name, refused, held };
    }
  }
}

interface SyncedLocation {
  readonly name: string;
  /** Backups that cannot be synced. */
  readonly refused: number;
  /** Backups in the cluster whose files are missing. */
  readonly held: number;
}

/** Our own metrics: Velero has none for its sync. */
export function registerSyncMetrics(
  registry: Registry,
  locations: () => Iterable<SyncedLocation>,
): void {
  const gauge = (name: string, help: string, value: (location: SyncedLocation) => number): Gauge =>
    new Gauge({
      name: `longshore_backup_sync_${name}`,
      help,
      labelNames: ['backup_location_name'],
      registers: [registry],
      collect() {
        this.reset();
        for (const location of locations()) {
          this.set({ backup_location_name: location.name }, value(location));
        }
      },
    });
  gauge(
    'refused_backups',
    'Backups of a location that cannot be made known in the cluster, as their metadata are damaged',
    ({ refused }) => refused,
  );
  gauge(
    'missing_backups',
    'Backups in the cluster whose files are not in their location',
    ({ held }) => held,
  );
}

export interface SyncTimes {
  /** The location's own `backupSyncPeriod`, a Go duration. */
  readonly period: string | null | undefined;
  /** Used if the location has none, or an invalid one. */
  readonly serverPeriodMs: number;
  /** RFC 3339. */
  readonly lastSyncedTime: string | null | undefined;
  readonly nowMs: number;
}

/** Used for a server period of 0. Velero's shortest period. */
const PERIOD_MS_MIN = 60_000;
/** Tolerance for times in the future: times are whole seconds, and clocks differ. Our choice. */
const AHEAD_MS = 2000;

/** Whether the location is never synced (Velero: backup_sync_controller.go, locationFilterFunc). */
const isNeverSynced = (period: string | null | undefined): boolean => frequencyMsOf(period) === 0;

/**
 * Milliseconds until the next sync: 0 if it is due, Infinity if the location's own period is 0. A
 * last sync in the future comes from a wrong clock, and delays nothing.
 */
export function restUntilSync({
  period,
  serverPeriodMs,
  lastSyncedTime,
  nowMs,
}: SyncTimes): number {
  const own = frequencyMsOf(period);
  if (own === 0) return Infinity;
  const lastMs = Date.parse(lastSyncedTime ?? '');
  if (Number.isNaN(lastMs) || lastMs > nowMs + AHEAD_MS) return 0;
  const periodMs = own ?? (serverPeriodMs > 0 ? serverPeriodMs : PERIOD_MS_MIN);
  return Math.max(0, lastMs + periodMs - nowMs);
}
