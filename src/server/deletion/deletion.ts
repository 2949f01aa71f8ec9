import { BackupArchive, ScratchFile, type StoredArchive } from '../../archive/index.ts';
import { isCode, type Logger, namedFirst, redactAndCut } from '../../base/index.ts';
import { resolveActions, type Resolved } from '../../backup/index.ts';
import type { Bucket } from '../../blob/index.ts';
import type { StorageKind } from '../../config/index.ts';
import { identityOfStored } from '../../item-operations/index.ts';
import {
  type Backup,
  type BackupIdentity,
  BACKUPS,
  type ConfigMap,
  type DataUpload,
  type Discovery,
  isUsable,
  type KubeClient,
  type KubeObject,
  type PodVolumeBackup,
  type VolumeSnapshotContent,
} from '../../kube/index.ts';
import type { Buckets, OpenBucket } from '../backups/contract.ts';
import { readUnfinishedRun } from '../backups/run/unfinished-run.ts';
import {
  nativeSnapshotsOf,
  type StoredSnapshot,
  storedSnapshotsIn,
  type StoredSnapshotsOptions,
} from '../backups/stored-snapshots.ts';
import type { DeletionFailures } from './deletion-failures.ts';
import type {
  DeleteAction,
  DeletionSession,
  DeletionSessions,
  ForgetSnapshots,
} from './contract.ts';
import { type ForeignData, HeldData, type KeptSnapshot } from './snapshot-references.ts';
import { deleteKept, deleteLeftSnapshots, snapshotsInUse } from './kept-snapshots.ts';
import { forgetMoved } from './moved-snapshots.ts';
import { RunningMovers } from './running-movers.ts';
import { deleteNative } from './native-snapshots.ts';
import { csiKey, type NamedSnapshots, OtherBackups } from './snapshots-of-other-backups.ts';
import { OwnSnapshots } from './snapshots-by-tag.ts';
import { neverBegan, type Ownership, ownershipOf, STORED_UID, wasStored } from './ownership.ts';
import { deleteEndedInPlace, deleteRestores, type FoundRestore, restoresOf } from './restores.ts';
import { eachItem } from './tarball-items.ts';
import { CALL_MS_MAX, within } from './call-time-limit.ts';

export interface DeletionTools {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly buckets: Buckets;
  readonly sessions: DeletionSessions;
  readonly discovery: () => Promise<Discovery>;
  readonly snapshotLocations: StoredSnapshotsOptions['snapshotLocations'];
  readonly forget: ForgetSnapshots;
  /** Scratch space. Credentials are written there, too. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
  /** Time limits for drivers, providers and agents. Each has a default where it is used. */
  readonly driverMs?: number;
  readonly providerMs?: number;
  readonly endingMs?: number;
}

export interface DeletionOptions extends DeletionTools {
  /** In phase `Deleting`. */
  readonly backup: Backup;
  readonly attempts: DeletionFailures;
  readonly known: NamedSnapshots;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
  /** Receives a sentence about data that stay behind. No other record of them remains. */
  readonly onGivenUp: (text: string) => void;
}

/** Annotation on a Backup: delete it even if some of its data cannot be deleted. */
export const DELETE_ANYWAY = 'longshore.io/delete-anyway';
const UPLOADS = 'datauploads.velero.io';
const NAMED_MAX = 5;
const CONTENTS = 'volumesnapshotcontents.snapshot.storage.k8s.io';
/** This server does its work. The action would only write a ConfigMap for Velero's server. */
const DONE_HERE = new Set(['longshore.io/dataupload-delete']);

/**
 * Deletes a backup and all its data. Each step deletes data before the records that lead to them:
 * 1. data that plugins delete;
 * 2. snapshots at providers, of CSI drivers and in repositories;
 * 3. Restores, files, and the Backup.
 *
 * While the Backup exists in phase `Deleting`, a server resumes the deletion, and sync does not
 * import the backup again. Each step may be repeated, so a crash loses nothing.
 *
 * @returns why the backup still exists; empty if it is deleted. Throws the reason of the signal,
 * and `LEADERSHIP_LOST`.
 */
export async function deleteBackup(options: DeletionOptions): Promise<string[]> {
  const { attempts, buckets, backup, signal } = options;
  if (neverBegan(backup)) {
    await deleteObject(options);
    return attempts.take();
  }
  const found = await attempts.attempt('error getting the backup store', () =>
    buckets.open(backup.spec.storageLocation ?? '', signal),
  );
  if (!found) return attempts.take();
  await using opened = found;
  return await new Deletion(options, opened.bucket).run();
}

type OwnFiles = Extract<Ownership, { readonly kind: 'own' }>;

class Deletion {
  readonly #options: DeletionOptions;
  readonly #bucket: Bucket;
  readonly #archive: BackupArchive;
  /**
   * Whether a plugin's action received the DataUploads. Then it deletes the data of its data mover.
   */
  #hasUploadAction = false;

  constructor(options: DeletionOptions, bucket: Bucket) {
    this.#options = options;
    this.#bucket = bucket;
    this.#archive = new BackupArchive(bucket, { logger: options.logger });
  }

  get #isForced(): boolean {
    return this.#options.backup.metadata.annotations?.[DELETE_ANYWAY] === 'true';
  }

  async run(): Promise<string[]> {
    const { attempts, backup, signal, namespace } = this.#options;
    const owner = await attempts.attempt('error getting the backup store', () =>
      ownershipOf(backup, this.#bucket, signal),
    );
    if (!owner) return attempts.take();
    if (owner.kind === 'unknown' && !this.#isForced) {
      attempts.say(
        `error getting the backup store: nobody can tell whose files are in the folder of the backup: ${redactAndCut(owner.reason)}`,
      );
      return this.#ended();
    }
    if (owner.kind === 'unknown') this.#noteUnread(owner.reason);
    if (owner.kind === 'own' && !owner.stored) this.#noteLost();
    if (owner.kind !== 'none') await this.#deleteData(owner);
    if (attempts.hasFailed && !this.#isForced) return this.#ended();
    this.#giveUp();
    if (owner.kind !== 'none') {
      // Restores refer to a backup by name. If its files are foreign, its Restores are foreign too.
      if (owner.kind !== 'foreign') await this.#deleteRestores(namespace);
      if (!attempts.hasFailed) await this.#noteStoredUid(owner);
      if (!attempts.hasFailed) await this.#deleteFiles(owner);
    }
    if (!attempts.hasFailed) await deleteObject(this.#options);
    return attempts.take();
  }

  async #deleteRestores(namespace: string): Promise<void> {
    const { attempts, client, backup, buckets, assertLeading, signal } = this.#options;
    const location = backup.spec.storageLocation ?? '';
    const query = { namespace, backup: backup.metadata.name };
    const restores = await attempts.attempt('error listing restore API objects', () =>
      restoresOf(client, query, signal),
    );
    if (!restores) return;
    const open = (restore: FoundRestore): Promise<OpenBucket> =>
      buckets.open(location, signal, restore);
    await deleteRestores(restores, { ...this.#options, open });
    await attempts.attempt('error deleting restores in place', () =>
      deleteEndedInPlace({ client, backup, signal }, assertLeading),
    );
  }

  /** Adds advice for the user to the errors. */
  #ended(): string[] {
    const told = this.#options.attempts.take();
    const { namespace, name } = this.#options.backup.metadata;
    const hint = `its files and Restores stay until then: delete it again when the cause is mended, or give up what cannot be deleted: kubectl -n ${namespace ?? ''} annotate backups.velero.io ${name} ${DELETE_ANYWAY}=true, and delete it again`;
    return [...told, hint];
  }

  #giveUp(): void {
    for (const text of this.#options.attempts.take()) this.#options.onGivenUp(text);
  }

  /**
   * Saves the UID of the files before their main file is deleted. The annotation also proves that
   * all data are deleted that the files lead to.
   */
  async #noteStoredUid(owner: Ownership): Promise<void> {
    const { client, backup, assertLeading, attempts, signal } = this.#options;
    const { uid, annotations } = backup.metadata;
    if (owner.kind !== 'own' || !owner.stored || owner.uid === annotations?.[STORED_UID]) return;
    await attempts.attempt('error removing backup from backup storage', async () => {
      assertLeading();
      const patch = { metadata: { uid, annotations: { [STORED_UID]: owner.uid } } };
      await client.patch(BACKUPS, backup.metadata, patch, { signal });
    });
  }

  async #deleteData(owner: Ownership): Promise<void> {
    const { attempts, client, backup, assertLeading, signal, endingMs } = this.#options;
    const isOwner = owner.kind === 'own' || owner.kind === 'unknown';
    const movers = new RunningMovers({ client, backup, isOwner, assertLeading, signal }, endingMs);
    const what = 'error deleting moved snapshot data';
    await attempts.attempt(what, () => movers.end());
    const own = this.#ownSnapshots(owner);
    const held = new HeldData();
    const infos = await attempts.attempt(what, async (): Promise<ConfigMap[]> => {
      // Objects in the cluster carry the UID that the Backup has in this cluster.
      const { name, uid, namespace } = backup.metadata;
      const here = { name, uid, namespace };
      for (const upload of await movers.uploads()) held.addUpload(upload, here);
      for (const volume of await movers.podVolumes()) held.addPodVolume(volume, here);
      const found = await movers.infos();
      for (const info of found) held.addInfo(info);
      return found;
    });
    for (const ids of held.repositories.values()) own.trust(ids);
    if (owner.kind === 'own') await this.#readFiles(owner, held, own);
    // The run may have taken snapshots before it found that its name is taken.
    if (owner.kind === 'foreign') await this.#readJournal(backup.metadata.uid, own);
    for (const text of held.problems) attempts.say(text);
    if (!this.#hasUploadAction) this.#sayForeign(held.foreign);
    await deleteKept(await this.#ownKept(held.kept, own), this.#kept);
    const { name, namespace = '' } = backup.metadata;
    await forgetMoved(held.repositories, {
      ...this.#options,
      backup: name,
      namespace,
      storageLocation: backup.spec.storageLocation ?? '',
      mayForget: (id, tags) => own.mayForget(id, tags),
    });
    if (own.told !== undefined) this.#options.onGivenUp(own.told);
    // After a failure they stay: the next attempt reads the snapshots from them.
    if (!infos || (attempts.hasFailed && !this.#isForced)) return;
    await attempts.attempt('error deleting dataupload', () => movers.remove(infos));
  }

  #ownSnapshots(owner: Ownership): OwnSnapshots {
    const { client, backup, buckets, known, logger, signal } = this.#options;
    const archive = this.#archive;
    const others = new OtherBackups({ client, archive, backup, buckets, known, logger, signal });
    const storedUid = owner.kind === 'own' ? owner.uid : backup.metadata.uid;
    const isSigned = owner.kind === 'own' && owner.stored?.signature === 'signed';
    return new OwnSnapshots(backup, { storedUid, isSigned }, others);
  }

  async #ownKept(kept: readonly KeptSnapshot[], own: OwnSnapshots): Promise<KeptSnapshot[]> {
    const { attempts } = this.#options;
    const waits = new Map<string, string>();
    const found = await attempts.attempt('error deleting CSI snapshots', async () => {
      const { used, awaited } = await snapshotsInUse(kept, this.#options);
      const mine: KeptSnapshot[] = [];
      for (const snapshot of kept) {
        const { driver, handle } = snapshot;
        const user = used.get(csiKey(driver, handle));
        const claim = this.#isForced ? undefined : awaited.get(csiKey(driver, handle));
        if (claim !== undefined) {
          waits.set(handle, claim);
          continue;
        }
        if (user !== undefined)
          own.refuse(
            `snapshot ${handle} of CSI driver ${driver}`,
            `it is in use by VolumeSnapshot ${user}`,
          );
        else if (await own.mayDeleteKept(snapshot)) mine.push(snapshot);
      }
      return mine;
    });
    for (const [handle, claim] of waits) {
      attempts.say(
        `error deleting CSI snapshots: PersistentVolumeClaim ${claim} was restored from snapshot ${handle} and has no volume yet: delete the backup again when the claim is bound`,
      );
    }
    return found ?? [];
  }

  async #ownNative(all: readonly StoredSnapshot[], own: OwnSnapshots): Promise<StoredSnapshot[]> {
    const what = "error getting backup's volume snapshots";
    const found = await this.#options.attempts.attempt(what, async () => {
      const mine: StoredSnapshot[] = [];
      for (const each of all) if (await own.mayDeleteNative(each.snapshot)) mine.push(each);
      return mine;
    });
    return found ?? [];
  }

  get #kept() {
    const { driverMs, ...options } = this.#options;
    return { ...options, ...(driverMs !== undefined && { deletionMs: driverMs }) };
  }

  /** Calls plugins for the items, deletes native snapshots, and collects the other data. */
  async #readFiles({ stored, uid }: OwnFiles, held: HeldData, own: OwnSnapshots): Promise<void> {
    const { sessions, attempts, backup, logger, signal } = this.#options;
    const session = await attempts.attempt('error getting delete item actions', () =>
      sessions.open(backup, logger),
    );
    if (!session) return;
    try {
      const identity =
        stored &&
        (await attempts.attempt('error getting the backup store', () =>
          identityOfStored(stored, signal),
        ));
      // Without the identity the owner of the items is unknown: delete no snapshot because of them.
      if (stored && !identity) return;
      const isRead =
        stored && identity ? await this.#readItems(stored, identity, session, held) : false;
      // The stored files of a failed run do not list the snapshots that it took.
      const hasFailed = stored?.metadata.status?.phase === 'Failed';
      if (!isRead || hasFailed) await deleteLeftSnapshots(this.#kept);
      if (stored && identity) {
        await this.#readLists(stored, identity, held, { isAllThereIs: !isRead });
      }
      await this.#deleteNative(uid, session, own);
    } finally {
      await session[Symbol.asyncDispose]();
    }
    signal.throwIfAborted();
  }

  #sayForeign(foreign: readonly ForeignData[]): void {
    for (const [dataMover, data] of Map.groupBy(foreign, (each) => each.dataMover)) {
      const names = namedFirst(data, NAMED_MAX, ({ volume, id }) => `${volume} (${id})`);
      this.#options.attempts.say(
        `error deleting moved snapshot data: the data mover "${dataMover}" is not known here, and no plugin has a DeleteItemAction for ${UPLOADS}: what it has stored of ${names} is not deleted`,
      );
    }
  }

  async #readJournal(uid: string, own: OwnSnapshots): Promise<void> {
    const { sessions, attempts, backup, logger, signal } = this.#options;
    const left = await attempts.attempt("error getting backup's volume snapshots", () =>
      readUnfinishedRun({ bucket: this.#bucket, backup: withUid(backup, uid), logger, signal }),
    );
    const found = await this.#ownNative(storedSnapshotsIn(left?.snapshots ?? []), own);
    if (found.length === 0) return;
    const session = await attempts.attempt('error getting delete item actions', () =>
      sessions.open(backup, logger),
    );
    if (!session) return;
    try {
      await deleteNative(found, session, this.#options);
    } finally {
      await session[Symbol.asyncDispose]();
    }
  }

  /** Returns whether a complete tarball was read. */
  async #readItems(
    stored: StoredArchive,
    identity: BackupIdentity,
    session: DeletionSession,
    held: HeldData,
  ): Promise<boolean> {
    const { attempts, discovery, directory, backup, signal } = this.#options;
    const actions = await attempts.attempt(
      'error getting delete item actions',
      async (): Promise<readonly DeleteAction[]> => {
        const all = await within(signal, CALL_MS_MAX, (own) => session.loadDeleteActions(own));
        return all.filter(({ name }) => !DONE_HERE.has(name));
      },
    );
    const resources = await attempts.attempt('error getting delete item actions', discovery);
    const what = 'error downloading backup tarball';
    const found = await attempts.attempt(what, async () => {
      try {
        // Download the tarball first: a slow action would break a running download.
        return await ScratchFile.of(directory, stored.read('contents', { signal }));
      } catch (error) {
        const { cause } = error as Error;
        if (isCode(error, 'BLOB_NOT_FOUND') || isCode(cause, 'BLOB_NOT_FOUND')) return 'missing';
        throw error;
      }
    });
    if (found === 'missing') this.#noteMissing(stored);
    if (!found || found === 'missing') return false;
    await using tarball = found;
    const onItem = (type: string, item: KubeObject): void => {
      if (type === UPLOADS) held.addUpload(item as DataUpload, identity);
      else held.addContent(item as VolumeSnapshotContent, identity);
    };
    const types = new Set([UPLOADS, CONTENTS]);
    const pass = {
      backup,
      tarball,
      actions: actions && resources ? resolveActions(actions, resources) : [],
      attempts,
      signal,
      types,
      onItem,
    };
    try {
      await eachItem(pass);
      this.#hasUploadAction = pass.actions.some(isForUploads);
      return true;
    } catch (error) {
      if (signal.aborted || isCode(error, 'LEADERSHIP_LOST')) throw error;
      attempts.fail(what, error);
      return false;
    }
  }

  /**
   * The deletion continues without the tarball, as in Velero, because it will not come back. A
   * backup that never had a tarball needs no warning.
   */
  #noteMissing({ metadata }: StoredArchive): void {
    const phase = metadata.status?.phase ?? '';
    if (!isUsable(phase)) return;
    this.#options.onGivenUp(
      'the tarball of the backup is not in the bucket: what only its items tell of, such as what plugins hold for them, is not deleted; snapshots of volumes were looked for in its other files',
    );
  }

  /** Warns if a stored backup has lost its files before its deletion began. */
  #noteLost(): void {
    const { backup, onGivenUp } = this.#options;
    if (backup.metadata.annotations?.[STORED_UID] !== undefined || !wasStored(backup)) return;
    onGivenUp(
      'the files of the backup are not in its location: snapshots that they alone tell of, with providers, CSI drivers and in repositories, and what plugins hold for items are not deleted; if the location points elsewhere by now, the backup comes back when it points to the files again',
    );
  }

  /** The files may belong to another backup, and no other record of the snapshots exists. */
  #noteUnread(reason: string): void {
    this.#options.onGivenUp(
      `the files of the backup are deleted unread, since nobody can tell whose they are (${redactAndCut(reason)}): snapshots that they alone tell of, with providers, CSI drivers and in repositories, and what plugins hold for items are not deleted`,
    );
  }

  /** Reads the files of a backup that name its snapshots. */
  async #readLists(
    stored: StoredArchive,
    identity: BackupIdentity,
    held: HeldData,
    options: { readonly isAllThereIs: boolean },
  ): Promise<void> {
    const { attempts, signal } = this.#options;
    await attempts.attempt('error deleting pod volume snapshots', async () => {
      for (const volume of await stored.objects('podVolumeBackups', { signal })) {
        held.addPodVolume(volume as PodVolumeBackup, identity);
      }
    });
    await attempts.attempt("error getting backup's volume information", async () => {
      for (const info of await stored.volumeInfos({ signal })) held.addVolumeInfo(info, options);
    });
  }

  async #deleteNative(uid: string, session: DeletionSession, own: OwnSnapshots): Promise<void> {
    const { attempts, backup, logger, signal } = this.#options;
    const asStored = withUid(backup, uid);
    const snapshots = await attempts.attempt(
      "error getting backup's volume snapshots",
      async () => {
        // A failed run may have stored no list of them.
        const left = await readUnfinishedRun({
          bucket: this.#bucket,
          backup: asStored,
          logger,
          signal,
        });
        return nativeSnapshotsOf(asStored, this.#archive, left.snapshots, signal);
      },
    );
    await deleteNative(await this.#ownNative(snapshots ?? [], own), session, this.#options);
  }

  /**
   * Deletes the main file first and the journal last. Other clusters take a backup for complete
   * while its main file exists, and must not restore a half-deleted one. The Backup leads to the
   * rest until it is deleted.
   */
  async #deleteFiles(owner: Ownership): Promise<void> {
    const { attempts, backup, assertLeading, client, logger, signal } = this.#options;
    const { name } = backup.metadata;
    await attempts.attempt('error removing backup from backup storage', async () => {
      assertLeading();
      const nowNs = client.clock.nowNs();
      const options = { signal, assertAllowed: assertLeading, nowNs };
      if (owner.kind === 'unknown' || (owner.kind === 'own' && owner.uid === '')) {
        await this.#archive.delete(name, options);
        return;
      }
      const uid = owner.kind === 'own' ? owner.uid : backup.metadata.uid;
      if (await this.#archive.deleteOf(name, uid, options)) {
        logger.info(
          { backup: name, uid },
          'files of another backup of its name stay in the bucket',
        );
      }
    });
  }
}

/** Actions for all resources (`*`) do not delete data of a data mover. */
const isForUploads = ({ action, takesType }: Resolved<DeleteAction>): boolean =>
  action.appliesTo.includedResources?.some((name) => name !== '*') === true && takesType(UPLOADS);

async function deleteObject(options: DeletionOptions): Promise<void> {
  const { client, attempts, backup, assertLeading, signal } = options;
  const { namespace, name, uid } = backup.metadata;
  await attempts.attempt(`error deleting backup ${namespace ?? ''}/${name}`, async () => {
    assertLeading();
    await client.delete(BACKUPS, { namespace, name }, { uid, signal });
  });
}

/** A synced Backup has another UID than its stored files. */
const withUid = (backup: Backup, uid: string): Backup => ({
  ...backup,
  metadata: { ...backup.metadata, uid },
});
