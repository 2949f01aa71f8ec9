import { z } from 'zod';
import {
  asError,
  CodedError,
  goJson,
  isCode,
  type Logger,
  messageOf,
  silentLogger,
} from '../base/index.ts';
import type { Body, Bucket, SignalOptions } from '../blob/index.ts';
import {
  type Checksums,
  ChecksumRules,
  checksumsSchema,
  settled,
  sinceOthers,
  stateOf,
  sumOf,
  withFiles,
} from './checksums.ts';
import { damaged } from './damage.ts';
import {
  backupSchema,
  type NativeSnapshot,
  type ResourceList,
  type ResourceNames,
  type Results,
  RESULTS,
  namesIn,
  type StoredBackup,
  VOLUME_SNAPSHOT,
} from './files.ts';
import { gunzipped } from './gzip.ts';
import { holds } from './holds.ts';
import {
  decodeJson,
  encodeJsonGzip,
  encodeListsGzip,
  goJsonIndented,
  wholeOf,
} from './json-file.ts';
import {
  type BackupFile,
  backupFolder,
  backupKey,
  BACKUPS_FOLDER,
  journalFolder,
  journalsFolder,
  moverLogsFolder,
} from './layout.ts';
import { putLogTail } from './log-tail.ts';
import { ScratchFile, type Sum } from './scratch-file.ts';
import { isFinal } from './states.ts';
import { assertNotApart, keepsApart, seal, unseal } from './write-once/seal.ts';
import { BACKUP_VOLUME_INFO, type BackupVolumeInfo } from './volume-infos.ts';
import { loadList, StoredArchive } from './stored-archive.ts';

/** Files of a backup that change after its run. */
export interface BackupUpdate {
  readonly itemOperations?: readonly object[];
  readonly volumeInfos?: readonly BackupVolumeInfo[];
  readonly results?: Results;
  readonly podVolumeBackups?: readonly object[];
  /** The whole new tarball. Stays the caller's. */
  readonly contents?: ScratchFile;
  /** Put last: its phase is what readers go by. */
  readonly metadata?: object;
}

/** All files of a backup, at the end of its run. */
export interface NewBackup extends Required<BackupUpdate> {
  /** Compressed; stays the caller's. */
  readonly log?: ScratchFile;
  /** Or kinds with their names, both sorted, which are read once for each call. */
  readonly resourceList: ResourceList | ResourceNames;
  readonly volumeSnapshots: readonly NativeSnapshot[];
}

/** Bytes to be put. */
interface Stored {
  readonly sum: Sum;
  read(): Body;
}

/** `assertAllowed`: right before each deletion; another process may have stored files under the same name since. */
export type DeletionOptions = SignalOptions & { readonly assertAllowed?: () => void };

export interface ArchiveOptions {
  /** Told of what does not end the call: a log that could not be stored, a file of ours that cannot be read. */
  readonly logger?: Logger;
  /** Of the stored Backup, where a reader has no use for a longer one. */
  readonly metadataBytesMax?: number;
}

/** As much of an operation as tells whose it is. */
const OPERATION_OWNER = z.looseObject({
  spec: z.looseObject({ backupUID: z.string().optional() }),
});

/**
 * Backups in a backup storage location, where and as Velero 1.18 has them (pkg/persistence). Readers take a backup for one that is there when
 * its `velero-backup.json` is, and for a whole one by the phase in it: so that file is written after all others, and deleted before them.
 */
export class BackupArchive {
  readonly #bucket: Bucket;
  readonly #logger: Logger;
  readonly #metadataBytesMax: number | undefined;

  constructor(bucket: Bucket, { logger = silentLogger, metadataBytesMax }: ArchiveOptions = {}) {
    this.#bucket = bucket;
    this.#logger = logger;
    this.#metadataBytesMax = metadataBytesMax;
  }

  /** Names of folders, of which some may be no backup yet, or none any more. */
  list(options?: SignalOptions): AsyncIterable<string> {
    return this.#bucket.listFolders(BACKUPS_FOLDER, options);
  }

  has(name: string, options?: SignalOptions): Promise<boolean> {
    return this.#bucket.has(backupKey(name, 'metadata'), options);
  }

  /**
   * Stores a new backup. Where something fails, all but log and operations is removed again, as far as the bucket is there, unless the process
   * ends, whose work another one goes on with. Of two clusters that store a backup of one name at the same time one at most does, and what the other one
   * has put stays its own. Throws `BACKUP_EXISTS`, and what the bucket throws.
   */
  async put(name: string, backup: NewBackup, options: DeletionOptions = {}): Promise<void> {
    await this.#assertFree(name, options);
    const { log, ...rest } = backup;
    const uid = uidIn(backup.metadata);
    await this.#removeOthers(name, options);
    if (log) await this.#putLog(name, log, options);
    const files = await encoded(rest);
    const sums = sumsOf(files);
    const checksums = settled(
      withFiles(undefined, sums, undefined),
      sums,
      stateIn(backup.metadata),
    );
    try {
      const bytes = encodedChecksums(checksums);
      const held: Stored = { sum: sumOf(bytes), read: () => [bytes] };
      await this.#putNew(name, 'checksums', held, { ...options, uid });
      for (const [file, stored] of files) {
        // Who puts this one has put all others.
        if (file === 'metadata') await this.#putNew(name, 'checksums', held, { ...options, uid });
        // Operations are stored while a backup runs.
        if (file === 'itemOperations') {
          await this.#bucket.put(backupKey(name, file), stored.read(), options);
        } else await this.#putNew(name, file, stored, { ...options, uid });
      }
    } catch (error) {
      // What is there is another one's.
      if (isCode(error, 'BACKUP_EXISTS')) throw error;
      const reason = options.signal?.reason as { readonly by?: unknown } | undefined;
      if (!isCode(reason, 'CANCELED') || reason?.by !== 'shutdown') {
        await this.#abandon(name, error, options.assertAllowed);
      }
      throw error;
    }
    await this.#removeOtherJournals(name, uid, options);
    await this.#sealIfOver(name, backup.metadata, options);
  }

  async #assertFree(name: string, options: SignalOptions): Promise<void> {
    if (!(await this.has(name, options))) return;
    const text = `backup already exists in object storage: ${backupKey(name, 'metadata')} is there`;
    throw new CodedError('BACKUP_EXISTS', text);
  }

  async #sealIfOver(name: string, metadata: object, options: DeletionOptions): Promise<void> {
    if (isFinal(backupSchema.parse(metadata))) await this.seal(name, uidIn(metadata), options);
  }

  /**
   * In a bucket that is written once: puts the files of a backup that is over under Velero's names, of which its own is the last. Elsewhere they are there
   * already. May be repeated: whoever finds that the files say so, and may have been killed before, calls it. Throws what the bucket throws.
   */
  async seal(name: string, uid: string, options: DeletionOptions = {}): Promise<void> {
    const last = backupKey(name, 'metadata');
    await seal(this.#bucket, backupFolder(name), { ...options, uid, last });
  }

  /**
   * The same, for whoever does not know whether the Backup of a UID is over, by the phase that is stored: what stored it may have been cut off before it was published.
   * Reads nothing in a bucket that is not written once. Throws what the bucket throws.
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

  /** Throws `FILES_APART` where its files are those of a location that was written once, and is not any more. */
  assertNotApart(name: string, options: SignalOptions = {}): Promise<void> {
    return assertNotApart(this.#bucket, backupFolder(name), options);
  }

  /** The log is for people: without it the backup is still one. */
  async #putLog(name: string, log: ScratchFile, options: SignalOptions): Promise<void> {
    try {
      await this.#bucket.put(backupKey(name, 'log'), log.read(), options);
    } catch (error) {
      options.signal?.throwIfAborted();
      this.#logger.error({ backup: name, error: messageOf(error) }, 'Error uploading log file');
    }
  }

  /** What an earlier backup of the name left behind, that was not whole, would be read as a part of this one. */
  async #removeOthers(name: string, options: DeletionOptions): Promise<void> {
    const operations = backupKey(name, 'itemOperations');
    const journal = journalsFolder(name);
    const moverLogs = moverLogsFolder({ kind: 'Backup', name });
    for await (const key of this.#bucket.list(backupFolder(name), options)) {
      // Operations, the journal and the logs of data movers are stored while a backup runs.
      const isOfNow = key === operations || key.startsWith(journal) || key.startsWith(moverLogs);
      if (isOfNow) continue;
      await this.#assertFree(name, options);
      options.assertAllowed?.();
      await this.#bucket.delete(key, options);
    }
  }

  /** Until a backup is stored they tell of another one that may be made under its name. One that stays is no part of this one, which is stored by now. */
  async #removeOtherJournals(name: string, uid: string, options: DeletionOptions): Promise<void> {
    if (uid === '') return;
    const own = journalFolder(name, uid);
    try {
      for await (const key of this.#bucket.list(journalsFolder(name), options)) {
        if (key.startsWith(own)) continue;
        options.assertAllowed?.();
        await this.#bucket.delete(key, options);
      }
    } catch (error) {
      const fields = { backup: name, error: messageOf(error) };
      this.#logger.debug(fields, 'the journal of another backup of its name stays in the bucket');
    }
  }

  /** Nobody may take what is there for a backup. The signal may have ended already, and this is still to be done. */
  async #abandon(
    name: string,
    because: unknown,
    assertAllowed: () => void = () => undefined,
  ): Promise<void> {
    try {
      assertAllowed();
      await this.#bucket.delete(backupKey(name, 'metadata'));
      // With its operations known, they can still be told to stop.
      const kept = [backupKey(name, 'log'), backupKey(name, 'itemOperations')];
      for await (const key of this.#bucket.list(backupFolder(name))) {
        // Who made the backup also decides what becomes of its journal.
        const isOfJournal = key.startsWith(journalsFolder(name));
        // They tell why, as its own log does.
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

  /**
   * Stores files of a backup anew: operations, volume infos, results, contents, and the Backup itself last. A kill between any two leaves a
   * backup that is read without a word, in the state that its own file tells. Throws `FILES_APART`, and what the bucket throws.
   */
  async update(name: string, update: BackupUpdate, options: DeletionOptions = {}): Promise<void> {
    await this.assertNotApart(name, options);
    const files = await encoded(update);
    // Operations change often, and their file has a checksum inside.
    const isHeld = [...files.keys()].some((file) => file !== 'itemOperations');
    const sums = sumsOf(files);
    const before = isHeld ? await this.#checksumsBefore(name, options) : undefined;
    const state = update.metadata && stateIn(update.metadata);
    if (before) await this.#putChecksums(name, withFiles(before, sums, state), options);
    await this.#putFiles(name, files, options);
    if (before) await this.#putChecksums(name, settled(before, sums, state), options);
    if (update.metadata) await this.#sealIfOver(name, update.metadata, options);
  }

  /** Undefined where the backup has none, as one of Velero's. */
  async #checksumsBefore(name: string, options: SignalOptions): Promise<Checksums | undefined> {
    const checksums = await this.#loadChecksums(name, options);
    if (!checksums) return undefined;
    const key = backupKey(name, 'metadata');
    return sinceOthers(
      checksums,
      await decodeJson(this.#bucket.get(key, options), key, backupSchema),
    );
  }

  /**
   * Adds text to the log of a backup after its run, in place of what an earlier call added. May be repeated. The log passes through a file in
   * `directory`. Throws what the bucket throws, `SCRATCH_FULL`, `SCRATCH_FAILED`.
   */
  async setLogTail(
    name: string,
    text: string,
    { directory, signal }: { readonly directory: string } & SignalOptions,
  ): Promise<void> {
    await putLogTail(this.#bucket, backupKey(name, 'log'), text, { directory, signal });
  }

  /** The log, in pieces. Throws `BLOB_NOT_FOUND` where none was stored, `DAMAGED_ARCHIVE`, and what the bucket throws. */
  readLog(name: string, options: SignalOptions = {}): AsyncIterable<Uint8Array> {
    const key = backupKey(name, 'log');
    return gunzipped(this.#bucket.get(key, options), { key, bytesMax: Infinity });
  }

  /** What is there with other bytes is of an earlier try of this backup, and is replaced, or of another one's. Throws `BACKUP_EXISTS` then. */
  async #putNew(
    name: string,
    file: BackupFile,
    stored: Stored,
    { uid, ...options }: SignalOptions & { readonly uid: string },
  ): Promise<void> {
    const key = backupKey(name, file);
    try {
      await this.#bucket.put(key, stored.read(), { ...options, ifAbsent: true });
      return;
    } catch (error) {
      if (!isCode(error, 'BLOB_EXISTS')) throw error;
    }
    // Its own answer may have been lost.
    if (await holds(this.#bucket, key, stored.sum, options)) return;
    if (!(await this.#isOf(name, uid, options))) {
      const text = `backup already exists in object storage: another one of its name, as of another cluster, stores ${key} at this moment`;
      throw new CodedError('BACKUP_EXISTS', text);
    }
    await this.#bucket.put(key, stored.read(), options);
  }

  async #putFiles(
    name: string,
    files: ReadonlyMap<BackupFile, Stored>,
    options: SignalOptions,
  ): Promise<void> {
    for (const [file, stored] of files) {
      await this.#bucket.put(backupKey(name, file), stored.read(), options);
    }
  }

  async #putChecksums(name: string, checksums: Checksums, options: SignalOptions): Promise<void> {
    await this.#bucket.put(backupKey(name, 'checksums'), [encodedChecksums(checksums)], options);
  }

  /** A file of ours that cannot be read must not keep a backup from being restored. */
  async #loadChecksums(name: string, options: SignalOptions): Promise<Checksums | undefined> {
    const key = backupKey(name, 'checksums');
    try {
      return await decodeJson(this.#bucket.get(key, options), key, checksumsSchema);
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND')) return undefined;
      if (!isCode(error, 'DAMAGED_ARCHIVE')) throw error;
      this.#logger.warn(
        { key, error: messageOf(error) },
        'checksums cannot be read, and are not used',
      );
      return undefined;
    }
  }

  /** The Backup as it is stored; throws `BLOB_NOT_FOUND`, `DAMAGED_ARCHIVE`. */
  async loadMetadata(name: string, options: SignalOptions = {}): Promise<StoredBackup> {
    return (await this.open(name, options)).metadata;
  }

  /** A backup to be read. Throws `BLOB_NOT_FOUND`, `DAMAGED_ARCHIVE`, and what the bucket throws. */
  async open(name: string, options: SignalOptions = {}): Promise<StoredArchive> {
    const { metadata, rules } = await this.#opened(name, options);
    const reload = async (asked: SignalOptions): Promise<ChecksumRules> =>
      (await this.#opened(name, asked)).rules;
    return new StoredArchive({ bucket: this.#bucket, name, metadata, rules, reload });
  }

  async #opened(
    name: string,
    options: SignalOptions,
  ): Promise<{ readonly metadata: StoredBackup; readonly rules: ChecksumRules }> {
    const key = backupKey(name, 'metadata');
    const bytes = await wholeOf(this.#bucket.get(key, options), key, this.#metadataBytesMax);
    const metadata = await decodeJson([bytes], key, backupSchema);
    if (metadata.metadata.name !== name) {
      throw damaged(key, `it is of backup "${metadata.metadata.name.slice(0, 253)}"`);
    }
    const rules = new ChecksumRules(await this.#loadChecksums(name, options), metadata);
    await wholeOf(rules.checked('metadata', key, [bytes]), key);
    return { metadata, rules };
  }

  /** `[]` where there is no file. Reads no other file, so it serves a backup that runs as well. Throws `DAMAGED_ARCHIVE`. */
  async loadItemOperations<S extends z.ZodType>(
    name: string,
    element: S,
    options: SignalOptions = {},
  ): Promise<z.infer<S>[]> {
    return loadList(this.#bucket, backupKey(name, 'itemOperations'), element, options);
  }

  /**
   * Removes what the Backup of a UID has stored, and nothing of another one of its name, of this cluster or of another: whose journal stays, and
   * whose files. May be repeated: its own journal, by which it is known here, goes last.
   *
   * @returns whether files of another Backup stay. Throws what the bucket throws.
   */
  async deleteOf(name: string, uid: string, options: DeletionOptions = {}): Promise<boolean> {
    const { assertAllowed = () => undefined } = options;
    const own = journalFolder(name, uid);
    const isOwn = await this.#isOf(name, uid, options);
    if (isOwn) {
      // From here on nobody takes the rest for a backup.
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

  /**
   * Whose the files of a name are: by the Backup among them. Where none is, as of a run that has not ended, they are this one's unless another one
   * has a journal there, or operations.
   */
  async #isOf(name: string, uid: string, options: SignalOptions): Promise<boolean> {
    try {
      return (await this.loadMetadata(name, options)).metadata.uid === uid;
    } catch (error) {
      if (isCode(error, 'DAMAGED_ARCHIVE')) return false;
      if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
    }
    const own = journalFolder(name, uid);
    for await (const key of this.#bucket.list(journalsFolder(name), options)) {
      if (!key.startsWith(own)) return false;
    }
    try {
      const operations = await this.loadItemOperations(name, OPERATION_OWNER, options);
      return operations.every(({ spec }) => ['', uid].includes(spec.backupUID ?? ''));
    } catch (error) {
      if (isCode(error, 'DAMAGED_ARCHIVE')) return false;
      throw error;
    }
  }

  /** Removes every file of the folder. May be repeated: a kill in the middle leaves what nobody takes for a backup. */
  async delete(name: string, options: DeletionOptions = {}): Promise<void> {
    options.assertAllowed?.();
    await this.#bucket.delete(backupKey(name, 'metadata'), options);
    await unseal(this.#bucket, backupFolder(name), options);
    await deleteFolder(this.#bucket, backupFolder(name), options);
  }
}

/** Every object that the listing names; one that fails does not keep the others. Throws the first failure. */
export async function deleteFolder(
  bucket: Bucket,
  folder: string,
  options: DeletionOptions,
): Promise<void> {
  const failures: unknown[] = [];
  for await (const key of bucket.list(folder, options)) {
    options.assertAllowed?.();
    await bucket.delete(key, options).catch((error: unknown) => failures.push(error));
  }
  if (failures.length > 0) throw asError(failures[0]);
}

type Encoded = Omit<NewBackup, 'log'>;

/** In the order in which they are put. */
async function encoded(files: Partial<Encoded>): Promise<Map<BackupFile, Stored>> {
  const stored = new Map<BackupFile, Stored>();
  const add = (file: BackupFile, bytes: Buffer): void => {
    stored.set(file, { sum: sumOf(bytes), read: () => [bytes] });
  };
  const lists = {
    itemOperations: files.itemOperations,
    volumeInfos: files.volumeInfos?.map(BACKUP_VOLUME_INFO),
    volumeSnapshots: files.volumeSnapshots?.map(VOLUME_SNAPSHOT),
    podVolumeBackups: files.podVolumeBackups,
  };
  for (const [file, list] of Object.entries(lists)) {
    if (list) add(file as BackupFile, await encodeJsonGzip(nullIfNone(file as BackupFile, list)));
  }
  if (files.resourceList) {
    add('resourceList', await encodeListsGzip(namesIn(files.resourceList)));
  }
  if (files.results) add('results', await encodeJsonGzip(RESULTS(files.results)));
  const { contents, metadata } = files;
  if (contents) stored.set('contents', { sum: contents.finish(), read: () => contents.read() });
  if (metadata) add('metadata', Buffer.from(goJsonIndented(metadata)));
  return stored;
}

/** Lists that Velero makes as it needs them: without an element they are `null`. */
const nullIfNone = (file: BackupFile, list: readonly unknown[]): readonly unknown[] | null =>
  list.length === 0 && (file === 'podVolumeBackups' || file === 'volumeSnapshots') ? null : list;

const sumsOf = (files: ReadonlyMap<BackupFile, Stored>): Map<BackupFile, Sum | undefined> =>
  new Map([...files].map(([file, { sum }]) => [file, file === 'itemOperations' ? undefined : sum]));

const encodedChecksums = (checksums: Checksums): Buffer => Buffer.from(`${goJson(checksums)}\n`);

const stateIn = (metadata: object): string => stateOf(backupSchema.parse(metadata));

const uidIn = (metadata: object): string => backupSchema.parse(metadata).metadata.uid ?? '';
