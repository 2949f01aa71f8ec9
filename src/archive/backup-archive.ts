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
import { settled, withFiles } from './checksums.ts';
import { ChecksumsFile } from './checksums-file.ts';
import type { DeletionOptions } from './delete-folder.ts';
import { DeletionNotes, type PreviousBackup } from './deletion-notes.ts';
import {
  type BackupUpdate,
  type EncodedFile,
  encodeFiles,
  type NewBackup,
  stateIn,
  sumsOf,
  uidIn,
} from './encoded-files.ts';
import { backupSchema, type StoredBackup } from './files.ts';
import { gunzipped } from './gzip.ts';
import { holds } from './holds.ts';
import {
  type BackupFile,
  backupFolder,
  backupKey,
  BACKUPS_FOLDER,
  isArchiveName,
} from './layout.ts';
import { putLogTail } from './log-tail.ts';
import type { ScratchFile } from './scratch-file.ts';
import { canSign, encryptsFiles } from './signature.ts';
import { type AnyBackup, isFinal, isStoredOf } from './states.ts';
import { loadList, openArchive, type StoredArchive } from './stored-archive.ts';
import { assertNotApart, keepsApart, seal } from './write-once/seal.ts';

export interface ArchiveOptions {
  /**
   * Told of what does not end the call: a log that could not be stored, a file of ours that cannot
   * be read.
   */
  readonly logger?: Logger;
  /** Of the stored Backup, where a reader has no use for a longer one. */
  readonly metadataBytesMax?: number;
}

/** Our choice: backups of the last minutes may have been deleted. */
const PREVIOUS_TRIED = 3;

/** With `nowNs` the deletion leaves a note. See {@link DeletionNotes}. */
type NotedDeletion = DeletionOptions & { readonly nowNs?: Nanoseconds };

/**
 * Backups in a backup storage location, where and as Velero 1.18 has them (pkg/persistence).
 * Readers take a backup for one that is there when its `velero-backup.json` is, and for a whole one
 * by the phase in it: so that file is written after all others, and deleted before them.
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

  /** Names of folders, of which some may be no backup yet, or none any more. */
  list(options?: SignalOptions): AsyncIterable<string> {
    return this.#bucket.listFolders(BACKUPS_FOLDER, options);
  }

  has(name: string, options?: SignalOptions): Promise<boolean> {
    return this.#folder(name).hasBackup(options);
  }

  /**
   * Stores a new backup. Where something fails, all but log and operations is removed again, as far
   * as the bucket is there, unless the process ends, whose work another one goes on with. Of two
   * clusters that store a backup of one name at the same time one at most does, and what the other
   * one has put stays its own. Throws `BACKUP_EXISTS`, and what the bucket throws.
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
        // Who puts this one has put all others.
        if (file === 'metadata') await this.#putNew(name, 'checksums', held, { ...options, uid });
        // Operations are stored while a backup runs.
        if (file === 'itemOperations') {
          await this.#bucket.put(backupKey(name, file), encoded.read(), {
            ...options,
            ownerUid: uid,
          });
        } else await this.#putNew(name, file, encoded, { ...options, uid });
      }
    } catch (error) {
      // What is there is another one's.
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
   * In a bucket that is written once: puts the files of a backup that is over under Velero's names,
   * of which its own is the last. Elsewhere they are there already. May be repeated: whoever finds
   * that the files say so, and may have been killed before, calls it. Throws what the bucket
   * throws.
   */
  async seal(name: string, uid: string, options: DeletionOptions = {}): Promise<void> {
    const last = backupKey(name, 'metadata');
    await seal(this.#bucket, backupFolder(name), { ...options, uid, last });
  }

  /**
   * The same, for whoever does not know whether the Backup of a UID is over, by the phase that is
   * stored: what stored it may have been cut off before it was published. Reads nothing in a bucket
   * that is not written once. Throws what the bucket throws.
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
      // Whoever deletes it removes the rest.
      if (!isCode(error, 'FILES_DELETED')) throw error;
    }
  }

  /**
   * Throws `FILES_APART` where its files are those of a location that was written once, and is not
   * any more.
   */
  assertNotApart(name: string, options: SignalOptions = {}): Promise<void> {
    return assertNotApart(this.#bucket, backupFolder(name), options);
  }

  /** The log is for people: without it the backup is still one. */
  async #putLog(name: string, log: ScratchFile, options: ObjectOptions): Promise<void> {
    try {
      await this.#bucket.put(backupKey(name, 'log'), log.read(), options);
    } catch (error) {
      options.signal?.throwIfAborted();
      this.#logger.error({ backup: name, error: messageOf(error) }, 'Error uploading log file');
    }
  }

  /**
   * Stores files of a backup anew: operations, volume infos, results, contents, and the Backup
   * itself last. A kill between any two leaves a backup that is read without a word, in the state
   * that its own file tells. Throws `FILES_APART`, and what the bucket throws.
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
   * Adds text to the log of a backup after its run, in place of what an earlier call added. May be
   * repeated. The log passes through a file in `directory`. Throws what the bucket throws,
   * `SCRATCH_FULL`, `SCRATCH_FAILED`.
   */
  async setLogTail(
    name: string,
    text: string,
    { directory, signal }: { readonly directory: string } & SignalOptions,
  ): Promise<void> {
    await putLogTail(this.#bucket, backupKey(name, 'log'), text, { directory, signal });
  }

  /**
   * The log, in pieces. Throws `BLOB_NOT_FOUND` where none was stored, `DAMAGED_ARCHIVE`, and what
   * the bucket throws.
   */
  readLog(name: string, options: SignalOptions = {}): AsyncIterable<Uint8Array> {
    const key = backupKey(name, 'log');
    return gunzipped(this.#bucket.get(key, options), { key, bytesMax: Infinity });
  }

  /**
   * What is there with other bytes is of an earlier try of this backup, and is replaced, or of
   * another one's. Throws `BACKUP_EXISTS` then.
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
    // Its own answer may have been lost.
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

  /** The Backup as it is stored; throws `BLOB_NOT_FOUND`, `DAMAGED_ARCHIVE`. */
  async loadMetadata(name: string, options: SignalOptions = {}): Promise<StoredBackup> {
    return (await this.open(name, options)).metadata;
  }

  /**
   * A backup to be read. Throws `BLOB_NOT_FOUND`, `DAMAGED_ARCHIVE`, and what the bucket throws.
   */
  open(name: string, options: SignalOptions = {}): Promise<StoredArchive> {
    return openArchive(name, {
      ...options,
      bucket: this.#bucket,
      checksums: this.#checksums,
      metadataBytesMax: this.#metadataBytesMax,
    });
  }

  /**
   * Opens the files of a Backup of the cluster. Throws what {@link open} throws, and `OTHER_BACKUP`
   * if another Backup of this name has stored them: the given one failed, or its location points
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

  /**
   * `[]` where there is no file. Reads no other file, so it serves a backup that runs as well.
   * Throws `DAMAGED_ARCHIVE`.
   */
  async loadItemOperations<S extends z.ZodType>(
    name: string,
    element: S,
    options: ObjectOptions = {},
  ): Promise<z.infer<S>[]> {
    return loadList(this.#bucket, backupKey(name, 'itemOperations'), element, options);
  }

  /**
   * Removes the file that stands for the whole backup. Files that somebody else has stored under
   * its name and UID are then no backup any more. Throws errors of the bucket.
   */
  async disown(name: string, options: SignalOptions = {}): Promise<void> {
    await this.#bucket.delete(backupKey(name, 'metadata'), options);
  }

  /** Whether backups are signed as they are stored. */
  get signs(): boolean {
    return canSign(this.#bucket);
  }

  /**
   * Removes what the Backup of a UID has stored, and nothing of another one of its name, of this
   * cluster or of another: whose journal stays, and whose files. May be repeated: its own journal,
   * by which it is known here, goes last.
   *
   * @returns whether files of another Backup stay. Throws what the bucket throws.
   */
  async deleteOf(name: string, uid: string, options: NotedDeletion = {}): Promise<boolean> {
    return this.#noted({ name, uid }, options, () => this.#folder(name).deleteOf(uid, options));
  }

  /**
   * Removes every file of the folder. May be repeated: a kill in the middle leaves what nobody
   * takes for a backup.
   */
  async delete(name: string, options: NotedDeletion = {}): Promise<void> {
    await this.#noted({ name }, options, () => this.#folder(name).delete(options));
  }

  /**
   * The newest signed Backup of a list, newest first. The next backup names it. Looks at a few.
   * Throws errors of the bucket.
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

  /** Notes a deletion before and, if that failed (as in a full bucket), after it. */
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

  /** Undefined for a backup that nothing can name, because it has no signature. */
  async #uidToNote(
    { name, uid }: { readonly name: string; readonly uid?: string },
    options: SignalOptions,
  ): Promise<string | undefined> {
    try {
      const checksums = await this.#checksums.load(name, options);
      const isThere = await this.has(name, options);
      // Its files may be gone already: whoever deletes the Backup knows that.
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
