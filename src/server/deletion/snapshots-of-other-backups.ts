import { BackupArchive, isArchiveName, isFinal, type StoredArchive } from '../../archive/index.ts';
import { CodedError, isCode, type Logger, mapLimited, messageOf } from '../../base/index.ts';
import {
  type Backup,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  type KubeClient,
  type PodVolumeBackup,
  SYNCED_UID,
  type VolumeSnapshotContent,
} from '../../kube/index.ts';
import type { Buckets } from '../backups/contract.ts';

/** The snapshots of one stored backup. The keys have a prefix for their kind. */
interface Named {
  readonly uid: string;
  readonly isSigned: boolean;
  readonly snapshots: readonly string[];
}

export const repositoryKey = (id: string): string => `repository ${id}`;
export const csiKey = (driver: string, handle: string): string => `csi ${driver} ${handle}`;
export const providerKey = (id: string): string => `provider ${id}`;

/** Finished backups hardly change. A night's deletions read each file once. Our choice. */
const FRESH_MS = 60 * 60_000;
/** Snapshots kept in memory, some 100 bytes each. Our choice. */
const KEPT_MAX = 500_000;
const READS_MAX = 8;

/** Caches for an hour which snapshots the stored backups of each location name. */
export class NamedSnapshots {
  readonly #named = new Map<string, { readonly named: Named; readonly untilMs: number }>();
  #count = 0;

  get(key: string): Named | undefined {
    const found = this.#named.get(key);
    if (!found) return undefined;
    if (performance.now() < found.untilMs) return found.named;
    this.#named.delete(key);
    this.#count -= found.named.snapshots.length;
    return undefined;
  }

  keep(key: string, named: Named): void {
    if (this.#named.has(key) || this.#count + named.snapshots.length > KEPT_MAX) return;
    this.#count += named.snapshots.length;
    this.#named.set(key, { named, untilMs: performance.now() + FRESH_MS });
  }
}

export interface OtherBackupsOptions {
  readonly client: Pick<KubeClient, 'collect'>;
  readonly archive: Archive;
  readonly buckets: Buckets;
  readonly backup: Backup;
  readonly known: NamedSnapshots;
  readonly logger: Logger;
  readonly signal: AbortSignal;
}

type Archive = Pick<BackupArchive, 'list' | 'open'>;

interface Holder {
  readonly name: string;
  readonly isSigned: boolean;
}

/** Snapshots that the backups of some locations name. */
class Holders {
  readonly #byKey = new Map<string, Holder>();
  readonly uids = new Map<string, string>();
  /** The name of a backup whose files cannot be read. */
  unread: string | undefined;

  add(name: string, { uid, isSigned, snapshots }: Named): void {
    this.uids.set(uid, name);
    for (const key of snapshots) {
      if (isSigned || this.#byKey.get(key)?.isSigned !== true) {
        this.#byKey.set(key, { name, isSigned });
      }
    }
  }

  get(key: string, bySigned: boolean): string | undefined {
    const found = this.#byKey.get(key);
    return found && (found.isSigned || !bySigned) ? found.name : undefined;
  }
}

/**
 * The other stored backups. Each location is read at the first call, with two requests per backup.
 */
export class OtherBackups {
  readonly #options: OtherBackupsOptions;
  /** Backups in the same location. */
  #near: Holders | undefined;
  /** Backups in all other locations of the cluster. */
  #far: Holders | undefined;

  constructor(options: OtherBackupsOptions) {
    this.#options = options;
  }

  /**
   * The name of a backup in the same location that names the snapshot. Throws errors of the bucket.
   */
  async holderHere(key: string): Promise<string | undefined> {
    return (await this.#loadNear()).get(key, false);
  }

  /**
   * Finds another backup that names this snapshot, and a backup with unreadable files. Looks in all
   * locations. `bySigned`: only signed backups of the same location count. Throws errors of the
   * buckets and of the API server.
   */
  async holderOf(
    key: string,
    { bySigned }: { readonly bySigned: boolean },
  ): Promise<{ readonly holder: string | undefined; readonly unread?: string | undefined }> {
    const near = await this.#loadNear();
    const found = near.get(key, bySigned);
    if (found !== undefined || bySigned) return { holder: found };
    const far = await this.#loadFar();
    return { holder: far.get(key, false), unread: near.unread ?? far.unread };
  }

  /**
   * The name of another backup with this UID. Throws errors of the API server and of the bucket.
   */
  async namesakeOf(uid: string): Promise<string | undefined> {
    const { client, backup, signal } = this.#options;
    const { name: own, namespace } = backup.metadata;
    const [here] = await client.collect(BACKUPS, { namespace, signal }, ({ metadata }) => {
      const isSame = metadata.uid === uid || metadata.annotations?.[SYNCED_UID] === uid;
      return isSame && metadata.name !== own ? [metadata.name] : [];
    });
    if (here !== undefined) return here;
    return (await this.#loadNear()).uids.get(uid);
  }

  async #loadNear(): Promise<Holders> {
    if (this.#near) return this.#near;
    const { archive, backup } = this.#options;
    const near = new Holders();
    await this.#load(near, { archive, location: backup.spec.storageLocation ?? '' });
    this.#near = near;
    return near;
  }

  /** CSI drivers and providers serve all locations of the cluster. */
  async #loadFar(): Promise<Holders> {
    if (this.#far) return this.#far;
    const { client, buckets, backup, signal } = this.#options;
    const { namespace } = backup.metadata;
    const far = new Holders();
    const all = await client.collect(
      BACKUP_STORAGE_LOCATIONS,
      { namespace, signal },
      ({ metadata }) => [metadata.name],
    );
    for (const location of all) {
      if (location === backup.spec.storageLocation) continue;
      try {
        await using opened = await buckets.open(location, signal);
        await this.#load(far, { archive: new BackupArchive(opened.bucket), location });
      } catch (error) {
        throw ofLocation(error, location);
      }
    }
    this.#far = far;
    return far;
  }

  async #load(holders: Holders, place: Place): Promise<void> {
    const { backup, signal } = this.#options;
    const own = backup.metadata.name;
    const names: string[] = [];
    for await (const name of place.archive.list({ signal })) {
      // Two locations may point to one bucket.
      if (isArchiveName(name) && name !== own) names.push(name);
    }
    await mapLimited(names, READS_MAX, async (name) => {
      const named = await this.#read(name, place);
      if (named === 'unread') holders.unread ??= name;
      else if (named) holders.add(name, named);
    });
  }

  /** Undefined for a deleted backup. */
  async #read(name: string, { archive, location }: Place): Promise<Named | 'unread' | undefined> {
    const { known, logger, signal } = this.#options;
    const key = `${location}/${name}`;
    const before = known.get(key);
    if (before) return before;
    try {
      const stored = await archive.open(name, { signal });
      const named = await namedIn(stored, signal);
      // A running backup may soon name more snapshots.
      if (isFinal(stored.metadata)) known.keep(key, named);
      return named;
    } catch (error) {
      signal.throwIfAborted();
      if (isCode(error, 'BLOB_NOT_FOUND')) return undefined;
      // A backup of another cluster may be encrypted with an unknown key.
      if (!isCode(error, 'DAMAGED_ARCHIVE', 'STORAGE_DENIED', 'NO_ARCHIVE_KEY')) throw error;
      const fields = { backup: name, error: messageOf(error) };
      logger.warn(fields, 'a backup cannot be read, so its snapshots are not compared');
      return 'unread';
    }
  }
}

/** Adds the name of the location, which can differ from the location of the backup. */
function ofLocation(error: unknown, location: string): unknown {
  if (!(error instanceof CodedError)) return error;
  const { code, message, retry, facts } = error;
  const text = `backups in location ${location} may name the same snapshots, and it cannot be read: ${message}`;
  return new CodedError(code, text, { cause: error, retry, facts });
}

interface Place {
  readonly archive: Archive;
  readonly location: string;
}

/** Velero stores volume infos since 1.13. Older backups have a file for each kind. */
async function namedIn(stored: StoredArchive, signal: AbortSignal): Promise<Named> {
  const found = new Set<string>();
  const add = (id: string | undefined, keyOf: (id: string) => string): void => {
    if (id) found.add(keyOf(id));
  };
  const infos = await stored.volumeInfos({ signal });
  for (const { pvbInfo, snapshotDataMovementInfo, csiSnapshotInfo, nativeSnapshotInfo } of infos) {
    add(pvbInfo?.snapshotHandle, repositoryKey);
    add(snapshotDataMovementInfo?.snapshotHandle, repositoryKey);
    add(csiSnapshotInfo?.snapshotHandle, (id) => csiKey(csiSnapshotInfo?.driver ?? '', id));
    add(nativeSnapshotInfo?.snapshotHandle, providerKey);
  }
  if (infos.length === 0) {
    for (const each of await stored.objects('podVolumeBackups', { signal })) {
      add((each as PodVolumeBackup).status?.snapshotID, repositoryKey);
    }
    for (const { status } of await stored.volumeSnapshots({ signal })) {
      add(status?.providerSnapshotID, providerKey);
    }
    for (const each of await stored.objects('csiVolumeSnapshotContents', { signal })) {
      const { spec, status } = each as VolumeSnapshotContent;
      add(status?.snapshotHandle, (id) => csiKey(spec.driver, id));
    }
  }
  const isSigned = stored.signature === 'signed';
  return { uid: stored.metadata.metadata.uid ?? '', isSigned, snapshots: [...found] };
}
