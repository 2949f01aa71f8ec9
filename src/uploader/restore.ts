import { closeSync, constants, mkdirSync, openSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { CodedError, type Logger, messageOf, posix, Semaphore, systemCode } from '../base/index.ts';
import { applyAttributes } from '../codec/index.ts';
import {
  listPieces,
  type ObjectId,
  type ObjectPiece,
  readObject,
  type Repository,
} from '../repository/index.ts';
import { decodeDirectory, type DirectoryEntry } from '../snapshot/index.ts';
import { PieceWriter } from './piece-writer.ts';
import { type RestoreCounters, type RestoreOptions, RestoreReport } from './restore-report.ts';
import { RestoreWriter } from './restore-writer.ts';

/** Entries restored at once. Our choice: windows of the writer must fill. */
const OUTSTANDING_MAX = 4096;
/** Files of several contents open at once. */
const OPEN_FILES_MAX = 64;
const DIRECTORIES_MAX = 8;
const CREATE = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
const DIRECTORY = constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW;
/** Files of one content up to this are made by a thread in one go. */
const WHOLE_FILE_BYTES_MAX = 8 << 20;

/**
 * Restores a tree or one file to a path. What cannot be restored is reported at the end, the rest is
 * done; a file is there whole or not at all. Throws `RESTORE_INCOMPLETE`, `TARGET_UNUSABLE`, and the
 * error of the root itself.
 */
export async function restoreTree(
  repository: Repository,
  root: DirectoryEntry,
  target: string,
  options: RestoreOptions,
): Promise<RestoreCounters> {
  const report = new RestoreReport(options);
  const restore = new TreeRestore(repository, options, report);
  await (root.type === 'd'
    ? restore.restoreRoot(root, target)
    : restore.restoreSingle(root, target));
  report.throwIfFailed();
  syncTarget(target, options.logger);
  return report.counters;
}

/** What was restored shall survive a power cut; Velero does the same. */
function syncTarget(target: string, logger: Logger): void {
  const descriptor = openSync(target, constants.O_RDONLY | constants.O_NONBLOCK);
  try {
    if (posix().syncFilesystem(descriptor)) return;
    logger.warn({ target }, 'the target could not be flushed to disk: syncfs is not available');
  } finally {
    closeSync(descriptor);
  }
}

/** An open directory of the target; paths below go through the descriptor, so that no link can lead them astray. */
interface TargetDirectory {
  readonly descriptor: number;
  /** `/proc/self/fd/N` */
  readonly path: string;
  /** For messages. */
  readonly shown: string;
  /** Made by this restore, or found empty: nothing can be in the way. */
  readonly isNew: boolean;
}

class TreeRestore {
  readonly #report: RestoreReport;
  readonly #repository: Repository;
  readonly #options: RestoreOptions;
  readonly #writer: RestoreWriter;
  readonly #outstanding = new Semaphore(OUTSTANDING_MAX);
  readonly #pieces: PieceWriter;
  readonly #openFiles = new Semaphore(OPEN_FILES_MAX);
  readonly #directories = new Semaphore(DIRECTORIES_MAX);

  constructor(repository: Repository, options: RestoreOptions, report: RestoreReport) {
    this.#repository = repository;
    this.#options = options;
    this.#report = report;
    this.#writer = new RestoreWriter(repository, options.signal);
    this.#pieces = new PieceWriter(repository, this.#writer, options.signal, (bytes) => {
      this.#report.counters.bytes += bytes;
    });
  }

  async restoreRoot(root: DirectoryEntry, target: string): Promise<void> {
    // Before anything is made: a snapshot that cannot be read leaves no trace.
    const entries = await this.#readDirectory(root.objectId);
    const directory = await this.#openRoot(target);
    await this.#fill(directory, root, entries);
  }

  async restoreSingle(entry: DirectoryEntry, target: string): Promise<void> {
    const isDirectory = await fs.stat(target).then(
      (stat) => stat.isDirectory(),
      () => false,
    );
    const path = isDirectory ? join(target, entry.name) : target;
    const directory = await this.#openRoot(dirname(path));
    try {
      const work = this.#restoreEntry(directory, { ...entry, name: basename(path) });
      this.#writer.flush();
      await work;
    } finally {
      closeSync(directory.descriptor);
    }
  }

  async #openRoot(target: string): Promise<TargetDirectory> {
    try {
      await fs.mkdir(target, { recursive: true });
      const path = await fs.realpath(target);
      return openDirectory(path, target, (await fs.readdir(path)).length === 0);
    } catch (cause) {
      const text = `cannot restore to ${target}: ${messageOf(cause)}`;
      throw new CodedError('TARGET_UNUSABLE', text, { cause });
    }
  }

  async #readDirectory(id: ObjectId): Promise<DirectoryEntry[]> {
    const bytes = await readObject(this.#repository.contents, id, { signal: this.#options.signal });
    return decodeDirectory(bytes).entries;
  }

  /** Restores what is in a directory, then its attributes, then closes it. */
  async #fill(
    directory: TargetDirectory,
    self: DirectoryEntry,
    entries: readonly DirectoryEntry[],
  ): Promise<void> {
    const { signal } = this.#options;
    const work: Promise<void>[] = [];
    try {
      for (const entry of entries.filter(({ type }) => type !== 'd')) {
        if (signal.aborted) break;
        if (!this.#outstanding.tryAcquire()) {
          this.#writer.flush();
          await this.#outstanding.acquire();
        }
        const done = this.#restoreEntry(directory, entry).finally(() => {
          this.#outstanding.release();
        });
        work.push(done);
      }
      const children = entries.filter(({ type }) => type === 'd');
      for (const child of children) {
        // Beside the others while there is room, else in this very line of descent.
        const beside = this.#directories.tryAcquire();
        const done = this.#descend(directory, child);
        if (!beside) await done;
        else {
          const released = done.finally(() => {
            this.#directories.release();
          });
          work.push(released);
        }
      }
      this.#writer.flush();
      await Promise.all(work);
      if (!signal.aborted) this.#finishDirectory(directory, self);
    } finally {
      this.#writer.flush();
      await Promise.allSettled(work);
      closeSync(directory.descriptor);
    }
  }

  #finishDirectory(directory: TargetDirectory, self: DirectoryEntry): void {
    try {
      // With "/." the directory is meant, not the link in /proc.
      applyAttributes(`${directory.path}/.`, self);
      this.#report.counters.directories++;
    } catch (error) {
      this.#report.fail(directory.shown, error);
    }
  }

  async #descend(parent: TargetDirectory, entry: DirectoryEntry): Promise<void> {
    const shown = join(parent.shown, entry.name);
    if (this.#options.signal.aborted) return;
    try {
      assertPlainName(entry.name);
      const path = `${parent.path}/${entry.name}`;
      const entries = await this.#readDirectory(entry.objectId);
      const isNew = makeDirectory(path);
      await this.#fill(openDirectory(path, shown, isNew), entry, entries);
    } catch (error) {
      this.#report.fail(shown, inTheWay(error));
    }
  }

  /** Never rejects: a failure is counted and reported at the end. */
  async #restoreEntry(directory: TargetDirectory, entry: DirectoryEntry): Promise<void> {
    const shown = join(directory.shown, entry.name);
    try {
      assertPlainName(entry.name);
      const path = `${directory.path}/${entry.name}`;
      if (entry.type === 's') await this.#restoreSymlink(path, entry);
      else if (entry.type === 'f') await this.#restoreFile(path, entry, directory.isNew);
      else
        throw new CodedError('UNKNOWN_ENTRY_TYPE', `entries of type "${entry.type}" are not known`);
    } catch (error) {
      this.#report.fail(shown, inTheWay(error));
    }
  }

  async #restoreSymlink(path: string, entry: DirectoryEntry): Promise<void> {
    const target = Buffer.from(await readObject(this.#repository.contents, entry.objectId));
    const existing = await fs.readlink(path, { encoding: 'buffer' }).catch(() => undefined);
    if (existing && this.#options.overwrite !== 'always' && existing.equals(target)) {
      this.#report.counters.skipped++;
    } else {
      if (!(await this.#makeRoom(path))) return;
      await fs.symlink(target, path);
      this.#report.counters.symlinks++;
    }
    await fs.lchown(path, entry.uid, entry.gid).catch((error: unknown) => {
      if (systemCode(error) !== 'EPERM') throw error;
    });
    posix().setModificationTime(path, entry.mtimeNs);
  }

  /** Removes what is at the path, unless it is to stay; a directory there is an error. */
  async #makeRoom(path: string): Promise<boolean> {
    const stat = await fs.lstat(path).catch(() => undefined);
    if (!stat) return true;
    if (this.#options.overwrite === 'never') {
      this.#report.counters.skipped++;
      return false;
    }
    if (stat.isDirectory()) throw new CodedError('TARGET_IN_THE_WAY', 'a directory is in the way');
    await fs.rm(path);
    return true;
  }

  async #restoreFile(path: string, entry: DirectoryEntry, isNew: boolean): Promise<void> {
    const { contents } = this.#repository;
    this.#report.counters.filesFound++;
    this.#report.counters.bytesFound += entry.size;
    if (!isNew && (await this.#isSame(path, entry))) {
      this.#report.counters.skipped++;
      this.#report.counters.bytes += entry.size;
      return;
    }
    const pieces = await listPieces(contents, entry.objectId);
    if (!isNew && !(await this.#makeRoom(path))) return;
    const [only] = pieces;
    if (only && pieces.length === 1 && only.count === 1 && only.length <= WHOLE_FILE_BYTES_MAX) {
      await this.#writer.add({
        entry: contents.findOrThrow(only.contentId),
        compressedObject: only.compressed,
        target: { path, attributes: entry },
      });
      this.#report.counters.bytes += only.length;
    } else {
      await this.#restoreLarge(path, entry, pieces);
    }
    this.#report.counters.files++;
  }

  async #isSame(path: string, entry: DirectoryEntry): Promise<boolean> {
    const { overwrite = 'if-different' } = this.#options;
    if (overwrite !== 'if-different') return false;
    const stat = await fs.lstat(path, { bigint: true }).catch(() => undefined);
    if (!stat?.isFile() || Number(stat.size) !== entry.size || stat.mtimeNs !== entry.mtimeNs) {
      return false;
    }
    applyAttributes(path, entry);
    return true;
  }

  async #restoreLarge(
    path: string,
    entry: DirectoryEntry,
    pieces: readonly ObjectPiece[],
  ): Promise<void> {
    await this.#openFiles.acquire();
    try {
      const file = await fs.open(path, CREATE, 0o600);
      try {
        await file.truncate(entry.size);
        await this.#pieces.write(pieces, file.fd, this.#options.sparse === true);
      } catch (error) {
        await fs.rm(path, { force: true });
        throw error;
      } finally {
        await file.close();
      }
      applyAttributes(path, entry);
    } finally {
      this.#openFiles.release();
    }
  }
}

function openDirectory(path: string, shown: string, isNew: boolean): TargetDirectory {
  const descriptor = openSync(path, DIRECTORY);
  return { descriptor, path: `/proc/self/fd/${descriptor}`, shown, isNew };
}

/** Returns false when something of that name is there; opening tells what. */
function makeDirectory(path: string): boolean {
  try {
    mkdirSync(path, { mode: 0o700 });
    return true;
  } catch (error) {
    if (systemCode(error) === 'EEXIST') return false;
    throw error;
  }
}

/** A name that would leave its directory is never restored, whatever the snapshot says. */
function assertPlainName(name: string): void {
  if (name === '' || name === '.' || name === '..' || /[/\0]/.test(name)) {
    throw new CodedError(
      'UNSAFE_NAME',
      `the snapshot holds the unsafe name ${JSON.stringify(name)}`,
    );
  }
}

function inTheWay(error: unknown): unknown {
  const code = systemCode(error);
  if (code === 'ENOTDIR' || code === 'ELOOP') {
    const text = 'a file or symbolic link is in the way of a directory';
    return new CodedError('TARGET_IN_THE_WAY', text, { cause: error });
  }
  return error;
}
