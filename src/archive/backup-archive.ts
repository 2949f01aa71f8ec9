import type { z } from 'zod';
import {
  CodedError,
  isCode,
  type Logger,
  messageOf,
  type Nanoseconds,
  silentLogger,
} from '../base/index.ts';
import type { Bucket, ObjectOptions, SignalOptions } from '../blob/index.ts';
import { BackupFolder } from './backup-folder.ts';
import { settled, withFiles } from './signing/checksums.ts';
import { ChecksumsFile } from './signing/checksums-file.ts';
import type { DeletionOptions } from './delete-folder.ts';
import { DeletionNotes, type PreviousBackup } from './signing/deletion-notes.ts';
import {
  type BackupUpdate,
  type EncodedFile,
  encodeFiles,
  type NewBackup,
  stateIn,
  sumsOf,
  uidIn,
} from './encoded-files.ts';
import { backupSchema, type StoredBackup } from './file-schemas.ts';
import { gunzipped } from './gzip.ts';
import {
  type BackupFile,
  backupFolder,
  backupKey,
  BACKUPS_FOLDER,
  isArchiveName,
} from './layout.ts';
import { putLogTail } from './log-tail.ts';
import type { ScratchFile, Sum } from './scratch-file.ts';
import { canSign, encryptsFiles } from './signing/signature.ts';
import { type AnyBackup, isFinal, isStoredOf } from './backup-state.ts';
import { loadList, openArchive, type StoredArchive } from './stored-archive.ts';
import { assertNotApart, keepsApart, seal } from './write-once/sealed-bucket.ts';
import { createHash } from 'node:crypto';

export interface ArchiveOptions {
  /** Logs errors that do not fail a call, such as a log that was not stored. */
  readonly logger?: Logger;
  /** Limit for the stored Backup. */
  readonly metadataBytesMax?: number;
}

/** Our choice: backups of the last minutes may have been deleted. */
const PREVIOUS_TRIED = 3;

/** With `nowNs` the deletion leaves a note. See {@link DeletionNotes}. */
type NotedDeletion = DeletionOptions & { readonly nowNs?: Nanoseconds };

/**
 * Backups in a backup storage location, with Velero 1.18's layout (pkg/persistence). For readers a
 * backup exists if its `velero-backup.json` exists, and the phase in it tells whether it is
 * complete. This file is therefore stored last and deleted first.
 */
export class BackupArchive {
  readonly #bucket: Bucket;
  readonly #logger: Logger;
  readonly #checksums: ChecksumsFile;
  readonly #notes: DeletionNotes;
  readonly #metadataBytesMax: number | undefined;

  constructor(bucket: Bucket, { logger = silentLogger, metadataBytesMax }: ArchiveOptions = {}) {
    this.#bucket = bucket;
    this.#logger = logger;
    this.#checksums = new ChecksumsFile(bucket, logger);
    this.#notes = new DeletionNotes(bucket, logger);
    this.#metadataBytesMax = metadataBytesMax;
  }

  /** Names of folders. Some may be no complete backup. */
  list(options?: SignalOptions): AsyncIterable<string> {
    return this.#bucket.listFolders(BACKUPS_FOLDER, options);
  }

  has(name: string, options?: SignalOptions): Promise<boolean> {
    return this.#folder(name).hasBackup(options);
  }

  /**
   * Stores a new backup. On failure it deletes all files but the log and operations, if the bucket
   * can be reached. After a shutdown another process continues instead. If two clusters store the
   * same name at once, at most one succeeds, and neither overwrites the other. Throws
   * `BACKUP_EXISTS`, and errors of the bucket.
   */
  async put(
    name: string,
    backup: NewBackup,
    {
      previous,
      ...options
    }: DeletionOptions & { readonly previous?: PreviousBackup | undefined } = {},
  ): Promise<void> {
    const folder = this.#folder(name);
    await folder.assertFree(options);
    const { log, ...rest } = backup;
    const uid = uidIn(backup.metadata);
    await folder.removeLeftovers(options);
    if (log) await this.#putLog(name, log, { ...options, ownerUid: uid });
    const files = await encodeFiles(rest);
    const sums = sumsOf(files);
    const checksums = {
      ...settled(withFiles(undefined, sums, undefined), sums, stateIn(backup.metadata)),
      ...(previous && { previous }),
      ...(encryptsFiles(this.#bucket) && { encrypted: true }),
    };
    try {
      const held = this.#checksums.encode(name, checksums);
      await this.#putNew(name, 'checksums', held, { ...options, uid });
      for (const [file, encoded] of files) {
        // The metadata is last: now all other files are stored.
        if (file === 'metadata') await this.#putNew(name, 'checksums', held, { ...options, uid });
        // The running backup has already stored operations.
        if (file === 'itemOperations') {
          await this.#bucket.put(backupKey(name, file), encoded.read(), {
            ...options,
            ownerUid: uid,
          });
        } else await this.#putNew(name, file, encoded, { ...options, uid });
      }
    } catch (error) {
      // The existing files belong to another backup.
      if (isCode(error, 'BACKUP_EXISTS')) throw error;
      const reason = options.signal?.reason as { readonly by?: unknown } | undefined;
      if (!isCode(reason, 'CANCELED') || reason?.by !== 'shutdown') {
        await folder.abandon(uid, error, options.assertAllowed);
      }
      throw error;
    }
    await folder.removeOtherJournals(uid, options);
    await this.#sealIfOver(name, backup.metadata, options);
  }

  async #sealIfOver(name: string, metadata: object, options: DeletionOptions): Promise<void> {
    if (isFinal(backupSchema.parse(metadata))) await this.seal(name, uidIn(metadata), options);
  }

  /**
   * In a write-once bucket, publishes the files of a finished backup under Velero's names, with the
   * metadata last. Does nothing in other buckets. Repeatable: call it whenever the process that
   * finished the backup may have been killed. Throws errors of the bucket.
   */
  async seal(name: string, uid: string, options: DeletionOptions = {}): Promise<void> {
    const last = backupKey(name, 'metadata');
    await seal(this.#bucket, backupFolder(name), { ...options, uid, last });
  }

  /**
   * Calls {@link seal} if the stored phase of the Backup is final. Reads nothing in a bucket that
   * is not write-once. Throws errors of the bucket.
   */
  async sealEnded(name: string, uid: string, options: DeletionOptions = {}): Promise<void> {
    if (!keepsApart(this.#bucket)) return;
    let stored: StoredBackup;
    try {
      stored = await this.loadMetadata(name, options);
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND', 'DAMAGED_ARCHIVE')) return;
      throw error;
    }
    if (stored.metadata.uid !== uid || !isFinal(stored)) return;
    try {
      await this.seal(name, uid, options);
    } catch (error) {
      // The deletion removes the rest.
      if (!isCode(error, 'FILES_DELETED')) throw error;
    }
  }

  /** Throws `FILES_APART` if the location is no longer write-once, and has unpublished files. */
  assertNotApart(name: string, options: SignalOptions = {}): Promise<void> {
    return assertNotApart(this.#bucket, backupFolder(name), options);
  }

  /** The log is for people, and a backup without it is complete. */
  async #putLog(name: string, log: ScratchFile, options: ObjectOptions): Promise<void> {
    try {
      await this.#bucket.put(backupKey(name, 'log'), log.read(), options);
    } catch (error) {
      options.signal?.throwIfAborted();
      this.#logger.error({ backup: name, error: messageOf(error) }, 'Error uploading log file');
    }
  }

  /**
   * Replaces operations, volume infos, results and contents of a backup, and the Backup itself
   * last. A kill in between leaves a readable backup, in the state of its metadata. Throws
   * `FILES_APART`, and errors of the bucket.
   */
  async update(name: string, update: BackupUpdate, options: DeletionOptions = {}): Promise<void> {
    await this.assertNotApart(name, options);
    const files = await encodeFiles(update);
    // Operations change often, and their file has a checksum inside.
    const isHeld = [...files.keys()].some((file) => file !== 'itemOperations');
    const sums = sumsOf(files);
    const before = isHeld ? await this.#checksums.loadValid(name, options) : undefined;
    const state = update.metadata && stateIn(update.metadata);
    const signing = { ...options, isSigned: before?.isSigned ?? false };
    if (before) {
      await this.#checksums.put(name, withFiles(before.checksums, sums, state), signing);
    }
    const ownerUid = update.metadata && uidIn(update.metadata);
    await this.#putFiles(name, files, { ...options, ownerUid });
    if (before) await this.#checksums.put(name, settled(before.checksums, sums, state), signing);
    if (update.metadata) await this.#sealIfOver(name, update.metadata, options);
  }

  /**
   * Adds text to the end of a backup's log, and replaces text of an earlier call. Repeatable. The
   * log passes through a file in `directory`. Throws `SCRATCH_FULL`, `SCRATCH_FAILED`, and errors
   * of the bucket.
   */
  async setLogTail(
    name: string,
    text: string,
    { directory, signal }: { readonly directory: string } & SignalOptions,
  ): Promise<void> {
    await putLogTail(this.#bucket, backupKey(name, 'log'), text, { directory, signal });
  }

  /** The log, in pieces. Throws `BLOB_NOT_FOUND`, `DAMAGED_ARCHIVE`, and errors of the bucket. */
  readLog(name: string, options: SignalOptions = {}): AsyncIterable<Uint8Array> {
    const key = backupKey(name, 'log');
    return gunzipped(this.#bucket.get(key, options), { key, bytesMax: Infinity });
  }

  /**
   * Stores a new file. Replaces a file of an earlier try of this backup. Throws `BACKUP_EXISTS` if
   * the file belongs to another backup.
   */
  async #putNew(
    name: string,
    file: BackupFile,
    encoded: EncodedFile,
    { uid, ...options }: SignalOptions & { readonly uid: string },
  ): Promise<void> {
    const key = backupKey(name, file);
    try {
      await this.#bucket.put(key, encoded.read(), { ...options, ownerUid: uid, ifAbsent: true });
      return;
    } catch (error) {
      if (!isCode(error, 'BLOB_EXISTS')) throw error;
    }
    // An earlier put may have succeeded without an answer.
    if (await holds(this.#bucket, key, encoded.sum, options)) return;
    if (!(await this.#folder(name).isOf(uid, options))) {
      const text = `backup already exists in object storage: another one of its name, as of another cluster, stores ${key} at this moment`;
      throw new CodedError('BACKUP_EXISTS', text);
    }
    await this.#bucket.put(key, encoded.read(), { ...options, ownerUid: uid });
  }

  async #putFiles(
    name: string,
    files: ReadonlyMap<BackupFile, EncodedFile>,
    options: ObjectOptions,
  ): Promise<void> {
    for (const [file, encoded] of files) {
      await this.#bucket.put(backupKey(name, file), encoded.read(), options);
    }
  }

  /** The stored Backup. Throws `BLOB_NOT_FOUND`, `DAMAGED_ARCHIVE`. */
  async loadMetadata(name: string, options: SignalOptions = {}): Promise<StoredBackup> {
    return (await this.open(name, options)).metadata;
  }

  /** Opens a backup to read. Throws `BLOB_NOT_FOUND`, `DAMAGED_ARCHIVE`, errors of the bucket. */
  open(name: string, options: SignalOptions = {}): Promise<StoredArchive> {
    return openArchive(name, {
      ...options,
      bucket: this.#bucket,
      checksums: this.#checksums,
      metadataBytesMax: this.#metadataBytesMax,
    });
  }

  /**
   * Opens the files of a Backup of the cluster. Throws as {@link open}, and `OTHER_BACKUP` if
   * another Backup of this name stored them: the given one failed, or its location points
   * elsewhere.
   */
  async openOf(backup: AnyBackup, options: SignalOptions = {}): Promise<StoredArchive> {
    const { name } = backup.metadata;
    const stored = await this.open(name, options);
    if (isStoredOf(backup, stored.metadata)) return stored;
    const { uid = 'unknown' } = stored.metadata.metadata;
    const text = `the files of backup ${name} in its location belong to another Backup of this name (UID ${uid}). If you want that one, remove this Backup with "kubectl delete backups.velero.io ${name}": the server makes the stored one known`;
    throw new CodedError('OTHER_BACKUP', text);
  }

  /** `[]` without a file. Reads no other file, so runs may be active. Throws `DAMAGED_ARCHIVE`. */
  async loadItemOperations<S extends z.ZodType>(
    name: string,
    element: S,
    options: ObjectOptions = {},
  ): Promise<z.infer<S>[]> {
    return loadList(this.#bucket, backupKey(name, 'itemOperations'), element, options);
  }

  /**
   * Removes the metadata. Files that another cluster stored under this name and UID are then no
   * backup any more. Throws errors of the bucket.
   */
  async disown(name: string, options: SignalOptions = {}): Promise<void> {
    await this.#bucket.delete(backupKey(name, 'metadata'), options);
  }

  get signs(): boolean {
    return canSign(this.#bucket);
  }

  /**
   * Removes the files of the Backup with this UID. Journals and files of other Backups of its name
   * stay. Repeatable: its own journal identifies it and goes last.
   *
   * @returns whether files of another Backup stay. Throws errors of the bucket.
   */
  async deleteOf(name: string, uid: string, options: NotedDeletion = {}): Promise<boolean> {
    return this.#noted({ name, uid }, options, () => this.#folder(name).deleteOf(uid, options));
  }

  /** Whether the backup has a deletion note with a right signature. Throws errors of the bucket. */
  async isNoted(name: string, uid: string, options: SignalOptions = {}): Promise<boolean> {
    return (await this.#notes.stateOf({ name, uid }, options)) === 'noted';
  }

  /** Removes every file of the folder. Repeatable: after a kill, the rest is no backup. */
  async delete(name: string, options: NotedDeletion = {}): Promise<void> {
    await this.#noted({ name }, options, () => this.#folder(name).delete(options));
  }

  /**
   * The newest signed Backup of a list (newest first). Reads a few. Throws errors of the bucket.
   */
  async previousOf(
    backups: readonly AnyBackup[],
    options: SignalOptions,
  ): Promise<PreviousBackup | undefined> {
    for (const backup of backups.slice(0, PREVIOUS_TRIED)) {
      try {
        const { name, metadata, link } = await this.openOf(backup, options);
        const { uid = '' } = metadata.metadata;
        if (link.mac === undefined || !isArchiveName(uid)) continue;
        const { completionTimestamp, expiration } = metadata.status ?? {};
        return {
          name,
          uid,
          mac: link.mac,
          ...(typeof completionTimestamp === 'string' && { completed: completionTimestamp }),
          ...(typeof expiration === 'string' && { expiration }),
        };
      } catch (error) {
        if (!isCode(error, 'BLOB_NOT_FOUND', 'DAMAGED_ARCHIVE', 'OTHER_BACKUP')) throw error;
      }
    }
    return undefined;
  }

  /** Notes a deletion before it and, if that failed (for example in a full bucket), after it. */
  async #noted<T>(
    backup: { readonly name: string; readonly uid?: string },
    { nowNs, ...options }: NotedDeletion,
    remove: () => Promise<T>,
  ): Promise<T> {
    const { name } = backup;
    const uid = nowNs === undefined ? undefined : await this.#uidToNote(backup, options);
    if (uid === undefined || nowNs === undefined) return remove();
    options.assertAllowed?.();
    const isNoted = await this.#notes.put(name, uid, nowNs, options);
    const result = await remove();
    options.assertAllowed?.();
    if (!isNoted) await this.#notes.put(name, uid, nowNs, options);
    const previousOf = async (each: string): Promise<PreviousBackup | undefined> =>
      (await this.#checksums.load(each, options))?.previous;
    await this.#notes.prune(previousOf, { ...options, nowNs });
    return result;
  }

  /** Undefined for an unsigned backup, because no other backup names it. */
  async #uidToNote(
    { name, uid }: { readonly name: string; readonly uid?: string },
    options: SignalOptions,
  ): Promise<string | undefined> {
    try {
      const checksums = await this.#checksums.load(name, options);
      const isThere = await this.has(name, options);
      // Its files may be deleted already. The caller knows that the Backup is deleted.
      const mayBeNamed = isThere ? checksums?.signature !== undefined : canSign(this.#bucket);
      if (!mayBeNamed) return undefined;
      return uid ?? (await this.loadMetadata(name, options)).metadata.uid;
    } catch (error) {
      options.signal?.throwIfAborted();
      this.#logger.debug({ backup: name, error: messageOf(error) }, 'the deletion has no note');
      return undefined;
    }
  }

  #folder(name: string): BackupFolder {
    return new BackupFolder({
      bucket: this.#bucket,
      name,
      logger: this.#logger,
      loadMetadata: (options) => this.loadMetadata(name, options),
    });
  }
}

/** Whether an object exists with these bytes. Reads all of it. Throws errors of the bucket. */
async function holds(
  bucket: Bucket,
  key: string,
  { lengthBytes, sha256 }: Sum,
  options: SignalOptions,
): Promise<boolean> {
  const hash = createHash('sha256');
  let count = 0;
  try {
    for await (const piece of bucket.get(key, options)) {
      hash.update(piece);
      count += piece.length;
    }
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND', 'BLOB_CHANGED')) return false;
    throw error;
  }
  return count === lengthBytes && hash.digest('hex') === sha256;
}
