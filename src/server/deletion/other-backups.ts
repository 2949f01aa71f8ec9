import {
  type BackupArchive,
  isArchiveName,
  isFinal,
  type StoredArchive,
} from '../../archive/index.ts';
import { isCode, type Logger, mapLimited, messageOf } from '../../base/index.ts';
import type { Backup } from '../../backup/index.ts';
import {
  BACKUPS,
  type KubeClient,
  type PodVolumeBackup,
  SYNCED_UID,
  type VolumeSnapshotContent,
} from '../../kube/index.ts';

/** What one stored backup names. Volume IDs have a prefix for their kind. */
interface Named {
  readonly uid: string;
  readonly snapshots: readonly string[];
}

export const repositoryKey = (id: string): string => `repository ${id}`;
export const csiKey = (driver: string, handle: string): string => `csi ${driver} ${handle}`;
export const providerKey = (id: string): string => `provider ${id}`;

/** A stored backup that is over hardly ever changes. A night's deletions read each file once. Our choice. */
const FRESH_MS = 60 * 60_000;
/** Snapshots kept in memory, some 100 bytes each. Our choice. */
const KEPT_MAX = 500_000;
const READS_MAX = 8;

/** Remembers for an hour which snapshots the stored backups of each location name. */
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
  readonly archive: Pick<BackupArchive, 'list' | 'open'>;
  readonly backup: Backup;
  readonly known: NamedSnapshots;
  readonly logger: Logger;
  readonly signal: AbortSignal;
}

/** The other backups of a location. Reads them when first asked, which takes two requests for each backup. */
export class OtherBackups {
  readonly #options: OtherBackupsOptions;
  #holders: ReadonlyMap<string, string> | undefined;
  #uids: ReadonlyMap<string, string> | undefined;

  constructor(options: OtherBackupsOptions) {
    this.#options = options;
  }

  /** The name of another backup that names this snapshot. Throws errors of the bucket. */
  async holderOf(key: string): Promise<string | undefined> {
    await this.#load();
    return this.#holders?.get(key);
  }

  /** The name of another backup with this UID. Throws errors of the API server and of the bucket. */
  async namesakeOf(uid: string): Promise<string | undefined> {
    const { client, backup, signal } = this.#options;
    const { name: own, namespace } = backup.metadata;
    const [here] = await client.collect(BACKUPS, { namespace, signal }, ({ metadata }) => {
      const isSame = metadata.uid === uid || metadata.annotations?.[SYNCED_UID] === uid;
      return isSame && metadata.name !== own ? [metadata.name] : [];
    });
    if (here !== undefined) return here;
    await this.#load();
    return this.#uids?.get(uid);
  }

  async #load(): Promise<void> {
    if (this.#holders) return;
    const { archive, backup, signal } = this.#options;
    const names: string[] = [];
    for await (const name of archive.list({ signal })) {
      if (isArchiveName(name) && name !== backup.metadata.name) names.push(name);
    }
    const holders = new Map<string, string>();
    const uids = new Map<string, string>();
    await mapLimited(names, READS_MAX, async (name) => {
      const named = await this.#read(name);
      if (!named) return;
      uids.set(named.uid, name);
      for (const key of named.snapshots) holders.set(key, name);
    });
    this.#uids = uids;
    this.#holders = holders;
  }

  /** Undefined for a backup that is damaged, or gone by now: it holds nothing up. */
  async #read(name: string): Promise<Named | undefined> {
    const { archive, backup, known, logger, signal } = this.#options;
    const key = `${backup.spec.storageLocation ?? ''}/${name}`;
    const before = known.get(key);
    if (before) return before;
    try {
      const stored = await archive.open(name, { signal });
      const named = await namedIn(stored, signal);
      // A backup that still runs may name more in a minute.
      if (isFinal(stored.metadata)) known.keep(key, named);
      return named;
    } catch (error) {
      signal.throwIfAborted();
      if (isCode(error, 'BLOB_NOT_FOUND')) return undefined;
      if (!isCode(error, 'DAMAGED_ARCHIVE', 'STORAGE_DENIED')) throw error;
      const fields = { backup: name, error: messageOf(error) };
      logger.warn(fields, 'a backup cannot be read, so its snapshots are not compared');
      return undefined;
    }
  }
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
  return { uid: stored.metadata.metadata.uid ?? '', snapshots: [...found] };
}
