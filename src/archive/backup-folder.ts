import { z } from 'zod';
import { CodedError, isCode, type Logger, messageOf } from '../base/index.ts';
import type { Bucket, SignalOptions } from '../blob/index.ts';
import { deleteFolder, type DeletionOptions } from './delete-folder.ts';
import type { StoredBackup } from './file-schemas.ts';
import {
  backupFolder,
  backupKey,
  journalFolder,
  journalsFolder,
  moverLogsFolder,
} from './layout.ts';
import { loadList } from './stored-archive.ts';
import { unseal } from './write-once/sealed-bucket.ts';

/** The fields of an operation that name its owner. */
const OPERATION_OWNER = z.looseObject({
  spec: z.looseObject({ backupUID: z.string().optional() }),
});

/** The folder of all files of one name. All methods throw errors of the bucket. */
export class BackupFolder {
  readonly #bucket: Bucket;
  readonly #name: string;
  readonly #logger: Logger;
  readonly #loadMetadata: (options: SignalOptions) => Promise<StoredBackup>;

  constructor(folder: {
    readonly bucket: Bucket;
    readonly name: string;
    readonly logger: Logger;
    /** Throws `BLOB_NOT_FOUND`, `DAMAGED_ARCHIVE`. */
    readonly loadMetadata: (options: SignalOptions) => Promise<StoredBackup>;
  }) {
    this.#bucket = folder.bucket;
    this.#name = folder.name;
    this.#logger = folder.logger;
    this.#loadMetadata = folder.loadMetadata;
  }

  hasBackup(options?: SignalOptions): Promise<boolean> {
    return this.#bucket.has(backupKey(this.#name, 'metadata'), options);
  }

  /** Throws `BACKUP_EXISTS`. */
  async assertFree(options: SignalOptions): Promise<void> {
    if (!(await this.hasBackup(options))) return;
    const text = `backup already exists in object storage: ${backupKey(this.#name, 'metadata')} is there`;
    throw new CodedError('BACKUP_EXISTS', text);
  }

  /**
   * Whether the files belong to the Backup of this UID. The stored Backup decides. Without it
   * (unfinished run), they do unless the folder has a journal or operations of another Backup.
   */
  async isOf(uid: string, options: SignalOptions): Promise<boolean> {
    const name = this.#name;
    try {
      return (await this.#loadMetadata(options)).metadata.uid === uid;
    } catch (error) {
      if (isCode(error, 'DAMAGED_ARCHIVE')) return false;
      if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
    }
    const own = journalFolder(name, uid);
    for await (const key of this.#bucket.list(journalsFolder(name), options)) {
      if (!key.startsWith(own)) return false;
    }
    try {
      const key = backupKey(name, 'itemOperations');
      const operations = await loadList(this.#bucket, key, OPERATION_OWNER, options);
      return operations.every(({ spec }) => ['', uid].includes(spec.backupUID ?? ''));
    } catch (error) {
      if (isCode(error, 'DAMAGED_ARCHIVE')) return false;
      throw error;
    }
  }

  /**
   * Removes files of an incomplete earlier backup. Readers would take them for files of the new
   * backup. Throws `BACKUP_EXISTS`.
   */
  async removeLeftovers(options: DeletionOptions): Promise<void> {
    const operations = backupKey(this.#name, 'itemOperations');
    const journal = journalsFolder(this.#name);
    const moverLogs = moverLogsFolder({ kind: 'Backup', name: this.#name });
    for await (const key of this.#bucket.list(backupFolder(this.#name), options)) {
      // Operations, the journal and the logs of data movers are stored while a backup runs.
      const isOfNow = key === operations || key.startsWith(journal) || key.startsWith(moverLogs);
      if (isOfNow) continue;
      await this.assertFree(options);
      options.assertAllowed?.();
      await this.#bucket.delete(key, options);
    }
  }

  /**
   * Removes journals of other Backups of this name. Until this backup is stored, they may belong to
   * a running one. Failures are only logged, because this backup is complete.
   */
  async removeOtherJournals(uid: string, options: DeletionOptions): Promise<void> {
    if (uid === '') return;
    const own = journalFolder(this.#name, uid);
    try {
      for await (const key of this.#bucket.list(journalsFolder(this.#name), options)) {
        if (key.startsWith(own)) continue;
        options.assertAllowed?.();
        await this.#bucket.delete(key, options);
      }
    } catch (error) {
      const fields = { backup: this.#name, error: messageOf(error) };
      this.#logger.debug(fields, 'the journal of another backup of its name stays in the bucket');
    }
  }

  /**
   * Cleans up after a failed store, so that no reader takes the rest for a backup. Runs even if the
   * signal has aborted. If another Backup of this name has files, or may be storing them, all files
   * stay. Failures are only logged.
   */
  async abandon(
    uid: string,
    because: unknown,
    assertAllowed: () => void = () => undefined,
  ): Promise<void> {
    const name = this.#name;
    try {
      if ((await this.hasBackup()) && (await this.#uidOfBackup()) !== uid) return;
      const keys = await Array.fromAsync(this.#bucket.list(backupFolder(name)));
      const own = journalFolder(name, uid);
      if (keys.some((key) => key.startsWith(journalsFolder(name)) && !key.startsWith(own))) return;
      assertAllowed();
      await this.#bucket.delete(backupKey(name, 'metadata'));
      // With its operations known, they can still be stopped.
      const kept = [backupKey(name, 'log'), backupKey(name, 'itemOperations')];
      for (const key of keys) {
        // The caller also decides about the journal.
        const isOfJournal = key.startsWith(journalsFolder(name));
        // These logs explain the failure.
        const isLog = key.startsWith(moverLogsFolder({ kind: 'Backup', name }));
        if (kept.includes(key) || isOfJournal || isLog) continue;
        assertAllowed();
        await this.#bucket.delete(key);
      }
    } catch (error) {
      this.#logger.warn(
        { backup: name, error: messageOf(error), because: messageOf(because) },
        'files of a backup that could not be stored as a whole stay in the bucket',
      );
    }
  }

  async #uidOfBackup(): Promise<string> {
    return (await this.#loadMetadata({})).metadata.uid ?? '';
  }

  /** Removes files of a UID, and its journal last. Returns whether files of others stay. */
  async deleteOf(uid: string, options: DeletionOptions): Promise<boolean> {
    const { assertAllowed = () => undefined } = options;
    const name = this.#name;
    const own = journalFolder(name, uid);
    const isOwn = await this.isOf(uid, options);
    if (isOwn) {
      // Without metadata, the rest is no backup for any reader.
      assertAllowed();
      await this.#bucket.delete(backupKey(name, 'metadata'), options);
      await unseal(this.#bucket, backupFolder(name), options);
      const others = journalsFolder(name);
      for await (const key of this.#bucket.list(backupFolder(name), options)) {
        if (key.startsWith(others)) continue;
        assertAllowed();
        await this.#bucket.delete(key, options);
      }
    }
    assertAllowed();
    await deleteFolder(this.#bucket, own, options);
    return !isOwn;
  }

  /** Removes every file, the metadata first. */
  async delete(options: DeletionOptions): Promise<void> {
    options.assertAllowed?.();
    await this.#bucket.delete(backupKey(this.#name, 'metadata'), options);
    await unseal(this.#bucket, backupFolder(this.#name), options);
    await deleteFolder(this.#bucket, backupFolder(this.#name), options);
  }
}
