import {
  type BackupArchive,
  isArchiveName,
  standingOf,
  type StoredArchive,
} from '../../archive/index.ts';
import {
  CodedError,
  isCode,
  type Logger,
  mapLimited,
  messageOf,
  redactAndCut,
  rfc3339Seconds,
} from '../../base/index.ts';
import {
  type Backup,
  BACKUP_STORAGE_LOCATIONS,
  type BackupStorageLocation,
  isOfBackup,
  type KubeClient,
  type KubeObject,
  type OwnerReference,
  POD_VOLUME_BACKUPS,
  SCHEDULES,
  SIGNED,
  SYNCED_UID,
} from '../../kube/index.ts';
import { BACKUP_RESOURCE } from '../backups/backup-kind.ts';
import { SYNC_PENDING } from '../backups/shared-backups.ts';
import { hasExpired } from '../expiry/failure-label.ts';
import { judgeMissing, missingBackups } from './missing-backups.ts';
import { isSamePlace, placeOf, SYNCED_PLACE } from './synced-location.ts';
import type { SyncMemory } from './sync-memory.ts';
import {
  isPodVolumeBackupOver,
  locationOf,
  scheduleOwners,
  syncedBackup,
  syncedPodVolumeBackup,
} from './synced-objects.ts';

/** The Backups of the cluster, from the cache. */
export interface KnownBackups {
  get(ref: { readonly namespace: string; readonly name: string }): Backup | undefined;
  list(): Backup[];
}

export interface SyncOptions {
  readonly client: Pick<KubeClient, 'clock' | 'create' | 'delete' | 'find' | 'patch'>;
  readonly logger: Logger;
  readonly namespace: string;
  readonly backups: KnownBackups;
  readonly archive: Pick<BackupArchive, 'has' | 'isNoted' | 'list' | 'open'>;
  /** As read before its bucket was opened. */
  readonly location: BackupStorageLocation;
  /** From the cache; undefined if it was deleted. */
  readonly locationNow: () => BackupStorageLocation | undefined;
  readonly memory: SyncMemory;
  /** Called for each new Backup that had already expired: its expiration never deletes it. */
  readonly onExpired: (backup: Backup) => void;
  /** Called right before each write. */
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

export interface SyncReport {
  readonly created: number;
  readonly removed: number;
  /** Missing in the bucket, and kept. */
  readonly held: number;
  /** Kept because the location points elsewhere. */
  readonly elsewhere: number;
}

/**
 * Parallel work on the backups of a location. Our choice: a new cluster gets 10,000 backups within
 * minutes, and other requests do not wait.
 */
const AT_ONCE = 4;
/** A bucket with more is a mistake. A name takes some hundred bytes of memory. Our choice. */
const NAMES_MAX = 1_000_000;
/** Failures of bucket or API server before the rest is left to the next sync. Our choice. */
const FAILURES_MAX = 10;
/** Errors of a single backup. */
const REFUSALS = ['BAD_TIME', 'DAMAGED_ARCHIVE', 'NO_ARCHIVE_KEY', 'KUBE_INVALID', 'KUBE_REFUSED'];
/** Lasting errors, such as a policy of the cluster. The backup is retried in an hour. */
const LASTING = ['STORAGE_DENIED', 'KUBE_FORBIDDEN', 'WRONG_SIGNATURE', 'NOT_SIGNED'];
/** Errors after which nothing may be written. */
const ENDS = ['LEADERSHIP_LOST', 'LOCATION_CHANGED'];

/**
 * Creates Backups for one location and removes Backups whose files are gone, like Velero's
 * controller backup-sync. Then records the time. May be repeated after a crash at any point. Throws
 * errors of the listing, `LOCATION_CHANGED`, `LEADERSHIP_LOST`, and `KUBE_*` errors. After an error
 * nothing is removed, and the time is not recorded.
 */
export function syncLocation(options: SyncOptions): Promise<SyncReport> {
  return new LocationSync(options).run();
}

class LocationSync {
  readonly #options: SyncOptions;
  readonly #name: string;
  #failures = 0;
  #created = 0;

  constructor(options: SyncOptions) {
    this.#options = options;
    this.#name = options.location.metadata.name;
  }

  get #nowMs(): number {
    return Number(this.#options.client.clock.nowNs() / 1_000_000n);
  }

  async run(): Promise<SyncReport> {
    const { namespace, backups, memory } = this.#options;
    const listed = await this.#listed();
    memory.keepOnly(listed);
    const fresh: string[] = [];
    for (const name of listed) {
      const known = backups.get({ namespace, name });
      if (!known) fresh.push(name);
      else this.#tellOfNamesake(known);
    }
    await this.#each(fresh, (name) => this.#bring(name));
    const unfinished = backups.list().filter((backup) => this.#isPending(backup, listed));
    await this.#each(
      unfinished.map(({ metadata: { name } }) => name),
      (name) => this.#finish(name),
    );
    const ends = await this.#removeMissing(listed);
    await this.#note(ends.held === 0);
    return { created: this.#created, ...ends };
  }

  /** Names of folders that are valid names of a Backup. */
  async #listed(): Promise<Set<string>> {
    const { archive, signal, logger, memory } = this.#options;
    const names = new Set<string>();
    for await (const name of archive.list({ signal })) {
      if (isArchiveName(name)) names.add(name);
      else if (memory.isNew(`name ${name.slice(0, 253)}`)) {
        const fields = { location: this.#name, folder: JSON.stringify(name.slice(0, 100)) };
        logger.warn(fields, 'a folder among the backups of a location has no name of a backup');
      }
      if (names.size > NAMES_MAX) {
        const text = `backup storage location ${this.#name} has more than ${NAMES_MAX} backups: none of them is synced`;
        throw new CodedError('TOO_MANY_BACKUPS', text);
      }
    }
    return names;
  }

  #tellOfNamesake(known: Backup): void {
    const { logger, memory } = this.#options;
    const { name } = known.metadata;
    const other = locationOf(known);
    if (['', this.#name].includes(other) || !memory.isNew(`namesake ${name} ${other}`)) return;
    const text = 'a backup is not made known: one of its name is in another location';
    logger.warn({ location: this.#name, backup: name, other }, text);
  }

  #isPending(backup: Backup, listed: ReadonlySet<string>): boolean {
    const { name, annotations } = backup.metadata;
    const isHere = locationOf(backup) === this.#name && listed.has(name);
    return isHere && annotations?.[SYNC_PENDING] !== undefined;
  }

  /** A failure with one backup does not stop the others. */
  async #each(names: readonly string[], task: (name: string) => Promise<void>): Promise<void> {
    const { signal, memory } = this.#options;
    await mapLimited(names, AT_ONCE, async (name) => {
      if (memory.isRefused(name, this.#nowMs)) return;
      try {
        await task(name);
        memory.accept(name);
      } catch (error) {
        signal.throwIfAborted();
        if (isCode(error, ...ENDS)) throw error;
        this.#failed(name, error);
      }
    });
  }

  #failed(name: string, error: unknown): void {
    const { logger, memory } = this.#options;
    // No complete backup: still running, abandoned, or just deleted.
    if (isCode(error, 'BLOB_NOT_FOUND')) return;
    const fields = { location: this.#name, backup: name, error: redactAndCut(messageOf(error)) };
    const isRefused = isCode(error, ...REFUSALS);
    if (memory.isNew(`${name} ${fields.error}`)) {
      const text = isRefused
        ? 'a backup of a location cannot be made known in this cluster'
        : 'a backup of a location could not be looked at; it is tried again';
      logger.warn(fields, text);
    }
    if (isRefused || isCode(error, ...LASTING)) memory.refuse(name, this.#nowMs);
    else if (++this.#failures > FAILURES_MAX) throw error;
  }

  /** Creates the Backup for a backup in the bucket. */
  async #bring(name: string): Promise<void> {
    const { archive, client, logger, namespace, signal } = this.#options;
    const stored = await archive.open(name, { signal });
    const standing = standingOf(stored.metadata, client.clock.nowNs());
    if (standing === 'unfinished') {
      this.#tellOfUnfinished(name, stored.metadata.status?.phase ?? '');
      return;
    }
    stored.assertTrusted();
    const owners = await this.#owners(stored);
    const podVolumeBackups = await this.#podVolumeBackups(stored);
    this.#assertHere();
    const isExpired = hasExpired(stored.metadata.status, client.clock.nowNs());
    let backup: Backup;
    try {
      backup = await client.create(
        BACKUP_RESOURCE,
        syncedBackup(stored.metadata, {
          namespace,
          owners,
          location: this.#name,
          // No server finished it before it expired. With this phase it can be deleted.
          phase: standing === 'abandoned' ? 'PartiallyFailed' : undefined,
          isPending: podVolumeBackups.length > 0,
          isExpired,
          marks: stored.marks,
        }),
        { signal },
      );
    } catch (error) {
      if (isCode(error, 'KUBE_ALREADY_EXISTS')) return;
      throw error;
    }
    this.#created++;
    logger.info({ location: this.#name, backup: name }, 'a backup of a location is made known');
    if (isExpired) this.#options.onExpired(backup);
    if (podVolumeBackups.length > 0) await this.#makePodVolumeBackups(backup, podVolumeBackups);
  }

  /** Completes a synced Backup that still lacks PodVolumeBackups. */
  async #finish(name: string): Promise<void> {
    const { archive, client, namespace, signal } = this.#options;
    const backup = await client.find(BACKUP_RESOURCE, { namespace, name }, { signal });
    if (!backup || !this.#isPending(backup, new Set([name]))) return;
    const stored = await archive.open(name, { signal });
    stored.assertTrusted(backup);
    await this.#makePodVolumeBackups(backup, await this.#podVolumeBackups(stored));
  }

  #tellOfUnfinished(name: string, phase: string): void {
    const { logger, memory } = this.#options;
    if (!memory.isNew(`unfinished ${name} ${phase}`)) return;
    const fields = { location: this.#name, backup: name, phase };
    logger.info(fields, 'a backup of a location is not over, and is not made known yet');
  }

  /**
   * The owning Schedules that exist in this cluster. With any other owner, Kubernetes would delete
   * the Backup as orphaned. Throws errors of the API server, so that no Backup is lost.
   */
  async #owners({ metadata }: StoredArchive): Promise<OwnerReference[]> {
    const { client, namespace, signal } = this.#options;
    const owners: OwnerReference[] = [];
    for (const owner of scheduleOwners(metadata)) {
      if (!isArchiveName(owner.name)) continue;
      const found = await client.find(SCHEDULES, { namespace, name: owner.name }, { signal });
      if (found?.metadata.uid === owner.uid) owners.push(owner);
    }
    return owners;
  }

  /** The finished PodVolumeBackups. Empty if their file is damaged, to sync the rest. */
  async #podVolumeBackups(stored: StoredArchive): Promise<KubeObject[]> {
    const { logger, memory, signal } = this.#options;
    try {
      const all = await stored.objects('podVolumeBackups', { signal });
      const { name, uid = '', namespace } = stored.metadata.metadata;
      return all.filter(
        (each) =>
          isArchiveName(nameIn(each)) &&
          isPodVolumeBackupOver(each) &&
          isOfBackup(each, { name, uid, namespace }),
      );
    } catch (error) {
      if (!isCode(error, 'DAMAGED_ARCHIVE')) throw error;
      const fields = { location: this.#name, backup: stored.name, error: messageOf(error) };
      if (memory.isNew(`volumes ${stored.name}`)) {
        logger.error(fields, 'a backup is made known without its pod volume backups');
      }
      return [];
    }
  }

  async #makePodVolumeBackups(backup: Backup, stored: readonly KubeObject[]): Promise<void> {
    const { client, signal } = this.#options;
    const { uid } = backup.metadata;
    const made = await mapLimited(stored, AT_ONCE, (each) => this.#make(backup, each));
    // A PodVolumeBackup of an earlier Backup of this name is about to be deleted.
    if (made.includes(false)) return;
    this.#options.assertLeading();
    const metadata = { uid, annotations: { [SYNC_PENDING]: null } };
    await client.patch(BACKUP_RESOURCE, backup.metadata, { metadata }, { signal });
  }

  /** False if a PodVolumeBackup of that name belongs to another Backup. */
  async #make(backup: Backup, stored: KubeObject): Promise<boolean> {
    const { client, logger, memory, signal } = this.#options;
    const object = syncedPodVolumeBackup(stored, backup, this.#name);
    const name = nameIn(stored);
    this.#options.assertLeading();
    try {
      await client.create(POD_VOLUME_BACKUPS, object, { signal });
      return true;
    } catch (error) {
      if (isCode(error, ...REFUSALS)) {
        const fields = {
          location: this.#name,
          backup: backup.metadata.name,
          podVolumeBackup: name,
        };
        if (memory.isNew(`volume ${name}`)) {
          const text = 'a pod volume backup cannot be made known in this cluster';
          logger.error({ ...fields, error: redactAndCut(messageOf(error)) }, text);
        }
        return true;
      }
      if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
    }
    const ref = { namespace: backup.metadata.namespace, name };
    const found = await client.find(POD_VOLUME_BACKUPS, ref, { signal });
    const owners = found?.metadata.ownerReferences ?? [];
    return owners.some(({ uid }) => uid === backup.metadata.uid);
  }

  async #removeMissing(listed: ReadonlySet<string>): Promise<Omit<SyncReport, 'created'>> {
    const { backups, client, location, memory, namespace, signal } = this.#options;
    const { missing, present } = missingBackups(backups.list(), location, listed);
    const place = placeOf(location);
    const verdicts = judgeMissing(missing, {
      location,
      place,
      present,
      memory,
      nowMs: this.#nowMs,
    });
    const gone = await this.#explained(missing.filter((backup) => verdicts.get(backup) === 'gone'));
    const elsewhere = missing.filter((backup) => verdicts.get(backup) === 'elsewhere').length;
    let removed = 0;
    if (gone.length > 0 && !(await this.#isAnyThere(gone))) {
      // Read from the API server, because the watch may be behind.
      const ref = { namespace, name: this.#name };
      const now = await client.find(BACKUP_STORAGE_LOCATIONS, ref, { signal });
      if (now?.status?.phase === 'Available' && isSamePlace(location, now)) {
        const ends = await mapLimited(gone, AT_ONCE, (backup) => this.#removeOne(backup));
        removed = ends.filter((isRemoved) => isRemoved).length;
      }
    }
    const held = missing.length - removed;
    memory.held = held;
    return { removed, held, elsewhere };
  }

  /**
   * Leaves out signed Backups without a reason: a writer to the bucket removed their files. The
   * Backup stays until it expires, because only the cluster knows about the newest backup.
   */
  async #explained(gone: readonly Backup[]): Promise<Backup[]> {
    const { memory } = this.#options;
    const nowMs = this.#nowMs;
    const all = await mapLimited(gone, AT_ONCE, async (backup) => {
      const { uid } = backup.metadata;
      if (memory.isUnexplained(uid, nowMs)) return [];
      if (await this.#isExplained(backup)) return [backup];
      memory.unexplained(uid, nowMs);
      this.#tellOfLoss(backup);
      return [];
    });
    return all.flat();
  }

  async #isExplained({ metadata, status }: Backup): Promise<boolean> {
    const { archive, client, signal } = this.#options;
    const { name, uid, annotations = {} } = metadata;
    if (annotations[SIGNED] !== 'true' || hasExpired(status, client.clock.nowNs())) return true;
    try {
      return await archive.isNoted(name, annotations[SYNCED_UID] || uid, { signal });
    } catch (error) {
      // A writer to the bucket may have given the synced Backup an invalid UID.
      if (!isCode(error, 'STORAGE_DENIED', 'BAD_ARCHIVE_NAME')) throw error;
      return false;
    }
  }

  #tellOfLoss({ metadata: { name } }: Backup): void {
    const { logger, memory } = this.#options;
    if (!memory.isNew(`lost ${name}`)) return;
    const text = `the files of a signed backup are gone from its location, and Longshore did not delete them: the Backup stays until it expires. Bring the files back, or run "longshore backup delete ${name}"`;
    logger.error({ location: this.#name, backup: name }, text);
  }

  /** Looks each key up, in case the listing was cut off. */
  async #isAnyThere(backups: readonly Backup[]): Promise<boolean> {
    const { archive, signal, logger } = this.#options;
    const there = await mapLimited(backups, AT_ONCE, ({ metadata: { name } }) =>
      archive.has(name, { signal }),
    );
    const isAny = there.includes(true);
    if (isAny) {
      const text =
        'the listing of a location lacks backups that are there: nothing is removed from the cluster';
      logger.error({ location: this.#name }, text);
    }
    return isAny;
  }

  /** A failure with one Backup does not stop the others. */
  async #removeOne(backup: Backup): Promise<boolean> {
    try {
      return await this.#remove(backup);
    } catch (error) {
      this.#options.signal.throwIfAborted();
      if (isCode(error, ...ENDS)) throw error;
      this.#failed(backup.metadata.name, error);
      return false;
    }
  }

  /** Deletes only this resource version: the next sync decides about a changed Backup. */
  async #remove({ metadata }: Backup): Promise<boolean> {
    const { client, logger, signal } = this.#options;
    const { uid, resourceVersion, name } = metadata;
    this.#assertHere();
    const isRemoved = await client.delete(BACKUP_RESOURCE, metadata, {
      uid,
      resourceVersion,
      signal,
    });
    if (isRemoved) {
      const text = 'a backup whose files are gone from its location is removed from the cluster';
      logger.info({ location: this.#name, backup: name }, text);
    }
    return isRemoved;
  }

  /** `isWhole`: all Backups of the location are in its bucket. */
  async #note(isWhole: boolean): Promise<void> {
    const { client, location, signal } = this.#options;
    const { uid, annotations } = location.metadata;
    const place = placeOf(location);
    this.#assertHere();
    const isNoted = annotations?.[SYNCED_PLACE] === place;
    await client.patch(
      BACKUP_STORAGE_LOCATIONS,
      location.metadata,
      {
        metadata: {
          uid,
          ...(isWhole && !isNoted && { annotations: { [SYNCED_PLACE]: place } }),
        },
        status: { lastSyncedTime: rfc3339Seconds(client.clock.nowNs()) },
      },
      { signal },
    );
  }

  /** Throws if leadership is lost, or the location has changed. */
  #assertHere(): void {
    const { location, locationNow, assertLeading } = this.#options;
    assertLeading();
    if (isSamePlace(location, locationNow())) return;
    const text = `backup storage location ${this.#name} was changed while it was synced; it is synced again`;
    throw new CodedError('LOCATION_CHANGED', text, { retry: 'backoff' });
  }
}

const nameIn = (object: Partial<KubeObject>): string => {
  const { name } = object.metadata ?? {};
  return typeof name === 'string' ? name : '';
};
