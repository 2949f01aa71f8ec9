import * as fs from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { CodedError, messageOf, Semaphore, shareOfDescriptors, systemCode } from '../base/index.ts';
import { RUNS_AS_OWNER, type ThreadPool } from '../volume-files/index.ts';
import {
  listPieces,
  type ObjectId,
  type ObjectPiece,
  parseObjectId,
  readObject,
  type Repository,
} from '../repository/index.ts';
import { type DirectoryEntry, streamDirectory } from '../snapshot/index.ts';
import { assertWhole, PieceWriter } from './piece-writer.ts';
import {
  incompleteSnapshot,
  type RestoreCounters,
  type RestoreOptions,
  RestoreReport,
} from './restore-report.ts';
import { RestoreWriter } from './restore-writer.ts';
import { type Pinned, TargetDirectory } from './target-directory.ts';

/** Entries restored at once. Our choice: windows of the writer must fill. */
const OUTSTANDING_MAX = 4096;
/** Files of several contents open at once. */
const OPEN_FILES_MAX = 64;
const DIRECTORIES_MAX = 8;
/** Shares of the descriptors that this process may have: files, entries that are held on to, directories on the way down. */
const OPEN_FILES_SHARE = 1 / 8;
const PINS_SHARE = 1 / 8;
const HELD_DIRECTORIES_SHARE = 1 / 4;
/** Deeper trees than this one give the descriptors of the directories above back meanwhile. Our choice. */
const HELD_DIRECTORIES_MAX = 4096;
/** Files of one content up to this are made by a thread in one go. */
const WHOLE_FILE_BYTES_MAX = 8 << 20;

/**
 * Restores a tree or one file to a path. What cannot be restored is reported at the end, the rest is
 * done; a file is there whole or not at all. Throws `RESTORE_INCOMPLETE`, `TARGET_UNUSABLE`, `SNAPSHOT_INCOMPLETE` for a single
 * file that was not read to its end, and the error of the root itself.
 */
export async function restoreTree(
  repository: Repository,
  root: DirectoryEntry,
  target: string,
  options: RestoreOptions,
): Promise<RestoreCounters> {
  const report = new RestoreReport(options);
  const restore = new TreeRestore(repository, { ...options, signal: report.signal }, report);
  await (root.type === 'd'
    ? restore.restoreRoot(root, target)
    : restore.restoreSingle(root, target));
  return report.counters;
}

/**
 * A walk of its own, since its order is that of the work: the files of a part of a directory fill the writer's windows before
 * the directories in that part are entered, an open directory of the target goes along, and what is damaged is left out.
 */
class TreeRestore {
  readonly #report: RestoreReport;
  readonly #repository: Repository;
  readonly #options: RestoreOptions;
  readonly #pool: ThreadPool;
  readonly #writer: RestoreWriter;
  readonly #outstanding = new Semaphore(OUTSTANDING_MAX);
  readonly #pieces: PieceWriter;
  readonly #openFiles = new Semaphore(shareOfDescriptors(OPEN_FILES_SHARE, OPEN_FILES_MAX));
  readonly #pins = new Semaphore(shareOfDescriptors(PINS_SHARE, OUTSTANDING_MAX));
  readonly #heldDirectoriesMax = shareOfDescriptors(HELD_DIRECTORIES_SHARE, HELD_DIRECTORIES_MAX);
  readonly #directories = new Semaphore(DIRECTORIES_MAX);
  #rootShown = '';

  constructor(repository: Repository, options: RestoreOptions, report: RestoreReport) {
    const { dataPath } = repository;
    if (!dataPath) throw new TypeError('a restore needs a repository opened with a data path');
    this.#repository = repository;
    this.#options = options;
    this.#pool = dataPath.pool;
    this.#report = report;
    this.#writer = new RestoreWriter(repository, options.signal);
    this.#pieces = new PieceWriter(repository, this.#writer, options.signal, (bytes) => {
      this.#report.counters.bytes += bytes;
    });
  }

  async restoreRoot(root: DirectoryEntry, target: string): Promise<void> {
    // Before anything is made: a snapshot that cannot be read, or has nothing that is meant, leaves no trace.
    await this.#options.selection?.assertSome(this.#context, root);
    const entries = await this.#readDirectory(root.objectId, '');
    this.#rootShown = target === '/' ? '' : target;
    const directory = await TargetDirectory.openRoot(target);
    try {
      await this.#fill(directory, this.#owned(root), entries);
      await this.#finish(directory);
    } finally {
      directory.close();
    }
  }

  async restoreSingle(entry: DirectoryEntry, target: string): Promise<void> {
    const incomplete = entry.summary?.incomplete;
    if (incomplete !== undefined) throw incompleteSnapshot('file', incomplete);
    const path = await placeOfSingle(entry, target);
    const directory = await TargetDirectory.openRoot(dirname(path));
    try {
      const work = this.#restoreEntry(directory, { ...this.#owned(entry), name: basename(path) });
      this.#writer.flush();
      await work;
      await this.#finish(directory);
    } finally {
      directory.close();
    }
  }

  /** What was restored shall survive a power cut; Velero does the same. */
  async #finish(target: TargetDirectory): Promise<void> {
    this.#report.throwIfFailed();
    this.#report.counters.isFlushing = true;
    let isFlushed = false;
    try {
      isFlushed = await this.#pool.syncFilesystem(target.descriptor);
    } catch (error) {
      this.#report.fail(target.shown, notFlushed(error));
      this.#report.throwIfFailed();
    }
    if (isFlushed) return;
    this.#options.logger.warn(
      { target: target.shown },
      'the target could not be flushed to disk: syncfs is not available',
    );
  }

  get #context(): { repository: Repository; signal: AbortSignal } {
    return { repository: this.#repository, signal: this.#options.signal };
  }

  /** Entries in stored order, of which the first part has been read. `path` is '' for the root. */
  async #readDirectory(
    id: ObjectId,
    path: string,
  ): Promise<AsyncIterable<readonly DirectoryEntry[]>> {
    const { signal, selection, owner, leaveOut } = this.#options;
    const all = streamDirectory(this.#repository.contents, id, { signal });
    const batches = selection ? selection.entriesOf(this.#context, path, all) : all;
    const own = (found: readonly DirectoryEntry[]): readonly DirectoryEntry[] => {
      const isRoot = path === '' && leaveOut !== undefined;
      const entries = isRoot ? found.filter(({ name }) => name !== leaveOut) : found;
      return owner ? entries.map((entry) => this.#owned(entry)) : entries;
    };
    const first = await batches.next();
    return (async function* () {
      if (first.done !== true) yield own(first.value);
      for await (const entries of batches) yield own(entries);
    })();
  }

  /** What ran as its owner must not run as another one. */
  #owned(entry: DirectoryEntry): DirectoryEntry {
    const { owner } = this.#options;
    if (!owner) return entry;
    const keeps = entry.type === 'd' || (owner.uid === entry.uid && owner.gid === entry.gid);
    return { ...entry, ...owner, mode: keeps ? entry.mode : entry.mode & ~RUNS_AS_OWNER };
  }

  /** Restores what is in a directory, then its attributes; between the two it can still be searched. */
  async #fill(
    directory: TargetDirectory,
    self: DirectoryEntry,
    batches: AsyncIterable<readonly DirectoryEntry[]>,
    beforeAttributes?: () => Promise<void>,
  ): Promise<void> {
    // None of it rejects: failures are reported. Only what is not done yet is held.
    const work = new Set<Promise<void>>();
    try {
      for await (const entries of batches) await this.#fillPart(directory, entries, work);
    } catch (error) {
      this.#report.fail(directory.shown, error);
    }
    this.#writer.flush();
    await Promise.all(work);
    await beforeAttributes?.();
    if (!this.#options.signal.aborted) await this.#finishDirectory(directory, self);
  }

  async #fillPart(
    directory: TargetDirectory,
    entries: readonly DirectoryEntry[],
    work: Set<Promise<void>>,
  ): Promise<void> {
    const { signal } = this.#options;
    const track = (task: Promise<void>, release: () => void): void => {
      const done = task.finally(() => {
        release();
        work.delete(done);
      });
      work.add(done);
    };
    for (const entry of entries) {
      if (entry.type === 'd') continue;
      if (signal.aborted) return;
      if (!this.#outstanding.tryAcquire()) {
        this.#writer.flush();
        await this.#outstanding.acquire();
      }
      track(this.#restoreEntry(directory, entry), () => {
        this.#outstanding.release();
      });
    }
    for (const child of entries) {
      if (child.type !== 'd') continue;
      // Beside the others while there is room, else in this very line of descent.
      if (this.#directories.tryAcquire()) {
        track(this.#descend(directory, child), () => {
          this.#directories.release();
        });
        continue;
      }
      await this.#descend(directory, child, async () => {
        this.#writer.flush();
        await Promise.all(work);
      });
    }
  }

  async #finishDirectory(directory: TargetDirectory, self: DirectoryEntry): Promise<void> {
    try {
      await this.#pool.setAttributes(directory.descriptor, self, false);
      this.#report.counters.directories++;
    } catch (error) {
      this.#report.fail(directory.shown, error);
    }
  }

  /** With `settle`, which ends all other work in the parent, that one need not stay open. */
  async #descend(
    parent: TargetDirectory,
    entry: DirectoryEntry,
    settle?: () => Promise<void>,
  ): Promise<void> {
    const shown = join(parent.shown, entry.name);
    if (this.#options.signal.aborted) return;
    try {
      assertPlainName(entry.name);
      const entries = await this.#readDirectory(
        entry.objectId,
        shown.slice(this.#rootShown.length),
      );
      const directory = await parent.enter(entry.name);
      try {
        let reopen: (() => Promise<void>) | undefined;
        if (settle && directory.openCount > this.#heldDirectoriesMax) {
          await settle();
          await parent.park();
          reopen = () => parent.unpark(directory);
        }
        await this.#fill(directory, entry, entries, reopen);
      } finally {
        directory.close();
      }
    } catch (error) {
      this.#report.fail(shown, inTheWay(error));
    }
  }

  /** Never rejects: a failure is counted and reported at the end. */
  async #restoreEntry(directory: TargetDirectory, entry: DirectoryEntry): Promise<void> {
    const shown = join(directory.shown, entry.name);
    try {
      assertPlainName(entry.name);
      if (entry.type === 's') await this.#restoreSymlink(directory, entry);
      else if (entry.type === 'f') await this.#restoreFile(directory, entry);
      else
        throw new CodedError('UNKNOWN_ENTRY_TYPE', `entries of type "${entry.type}" are not known`);
    } catch (error) {
      this.#report.fail(shown, inTheWay(error));
    }
  }

  async #restoreSymlink(directory: TargetDirectory, entry: DirectoryEntry): Promise<void> {
    const { name } = entry;
    const target = Buffer.from(await readObject(this.#repository.contents, entry.objectId));
    if (!directory.isNew && (await this.#isSameLink(directory, entry, target))) {
      this.#report.counters.skipped++;
      return;
    }
    if (!(await this.#makeRoom(directory, name))) return;
    await directory.symlink(name, target);
    this.#report.counters.symlinks++;
    if (await this.#adopt(directory, entry, (pinned) => pinned.type === 's')) return;
    const text = 'another process replaced it while it was restored';
    throw new CodedError('TARGET_CHANGED', text);
  }

  async #isSameLink(
    directory: TargetDirectory,
    entry: DirectoryEntry,
    target: Buffer,
  ): Promise<boolean> {
    if (this.#options.overwrite === 'always') return false;
    const existing = await directory.readlink(entry.name);
    if (!existing?.equals(target)) return false;
    return this.#adopt(directory, entry, (pinned) => pinned.type === 's');
  }

  /** Removes what has the name, unless it is to stay; a directory there is an error. */
  async #makeRoom(directory: TargetDirectory, name: string): Promise<boolean> {
    const found = directory.isNew ? undefined : await directory.look(name);
    if (!found) return true;
    if (this.#options.overwrite === 'never') {
      this.#report.counters.skipped++;
      return false;
    }
    if (found.isDirectory) throw new CodedError('TARGET_IN_THE_WAY', 'a directory is in the way');
    await directory.remove(name);
    return true;
  }

  async #restoreFile(directory: TargetDirectory, entry: DirectoryEntry): Promise<void> {
    this.#report.counters.filesFound++;
    this.#report.counters.bytesFound += entry.size;
    if (!directory.isNew && (await this.#isSame(directory, entry))) {
      this.#report.counters.skipped++;
      this.#report.counters.bytes += entry.size;
      this.#report.counters.bytesSkipped += entry.size;
      return;
    }
    if (await this.#restoreContents(directory, entry)) this.#report.counters.files++;
  }

  /** False when what is there already is to stay. */
  async #restoreContents(directory: TargetDirectory, entry: DirectoryEntry): Promise<boolean> {
    const { signal } = this.#options;
    const { contents } = this.#repository;
    if (parseObjectId(entry.objectId).indirections === 0) {
      const [only] = await listPieces(contents, entry.objectId, { signal });
      if (only && only.length <= WHOLE_FILE_BYTES_MAX) {
        assertWhole(entry, [only]);
        return this.#restoreWhole(directory, entry, only);
      }
    }
    // Thousands of entries are restored at once, and large files have many pieces: only those of open files are held.
    await this.#openFiles.acquire();
    try {
      signal.throwIfAborted();
      const pieces = await listPieces(contents, entry.objectId, { signal });
      assertWhole(entry, pieces);
      if (!(await this.#makeRoom(directory, entry.name))) return false;
      await this.#restoreLarge(directory, entry, pieces);
      return true;
    } finally {
      this.#openFiles.release();
    }
  }

  async #restoreWhole(
    directory: TargetDirectory,
    entry: DirectoryEntry,
    { contentId, compressed, length }: ObjectPiece,
  ): Promise<boolean> {
    if (!(await this.#makeRoom(directory, entry.name))) return false;
    await this.#writer.add({
      entry: this.#repository.contents.findOrThrow(contentId),
      compressedObject: compressed,
      target: { path: directory.pathOf(entry.name), attributes: entry },
    });
    this.#report.counters.bytes += length;
    return true;
  }

  /** Whether the file is there already; its attributes are mended if need be. */
  async #isSame(directory: TargetDirectory, entry: DirectoryEntry): Promise<boolean> {
    const { overwrite = 'if-different' } = this.#options;
    if (overwrite !== 'if-different') return false;
    return this.#adopt(
      directory,
      entry,
      ({ type, size, attributes }) =>
        type === 'f' && size === entry.size && attributes.mtimeNs === entry.mtimeNs,
    );
  }

  /** Gives what is there the entry's attributes; false when it is not what was expected. */
  async #adopt(
    directory: TargetDirectory,
    entry: DirectoryEntry,
    isExpected: (pinned: Pinned) => boolean,
  ): Promise<boolean> {
    await this.#pins.acquire();
    try {
      return await directory.pin(entry.name, async (pinned) => {
        if (!pinned || !isExpected(pinned)) return false;
        if (hasAttributes(pinned, entry)) return true;
        // A second name may be anywhere: such a file is replaced rather than changed.
        if (!pinned.isSingle) return false;
        await this.#pool.setAttributes(pinned.descriptor, entry, pinned.type === 's');
        return true;
      });
    } finally {
      this.#pins.release();
    }
  }

  async #restoreLarge(
    directory: TargetDirectory,
    entry: DirectoryEntry,
    pieces: readonly ObjectPiece[],
  ): Promise<void> {
    const file = await directory.create(entry.name);
    try {
      await file.truncate(entry.size);
      await this.#pieces.write(pieces, file.fd, this.#options.sparse === true);
      // Its time says that it is whole. A power cut must not keep that and lose the bytes: the next restore would leave it alone.
      if (this.#options.overwrite !== 'always') await file.datasync();
      await this.#pool.setAttributes(file.fd, entry, false);
      // Some file systems tell only now that the bytes did not find room.
      await file.close();
    } catch (error) {
      // The error that came first matters.
      await file.close().catch(() => undefined);
      await directory.remove(entry.name).catch(() => undefined);
      throw error;
    }
  }
}

function hasAttributes({ attributes, type }: Pinned, entry: DirectoryEntry): boolean {
  const { uid, gid, mode, mtimeNs } = attributes;
  const isOwned = uid === entry.uid && gid === entry.gid;
  return isOwned && mtimeNs === entry.mtimeNs && (type === 's' || mode === entry.mode);
}

/**
 * Where a single file goes: into a directory, else in the place of the file that is named. Whoever names it may name a link. What
 * is no file stays: a device would become a file of memory, and `/dev/null` one for every process of the machine.
 */
async function placeOfSingle(entry: DirectoryEntry, target: string): Promise<string> {
  const found = await fs.stat(target).catch(() => undefined);
  if (!found) return target;
  if (found.isFile()) return fs.realpath(target);
  if (!found.isDirectory()) {
    const text = `cannot restore to ${target}: it is a device, pipe or socket; use --block to write to a device, and snapshot cat to write to a pipe`;
    throw new CodedError('TARGET_UNUSABLE', text);
  }
  // The name is what the snapshot says: it must not lead out of the target.
  assertPlainName(entry.name);
  return join(target, entry.name);
}

/** What is lost has the right size and time all the same: nobody can tell it from what is whole. */
function notFlushed(cause: unknown): Error {
  const text = `not all of it reached the disk (${messageOf(cause)}); check the disk and restore everything again, on the command line with --overwrite always`;
  return Object.assign(new Error(text, { cause }), { code: systemCode(cause) });
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
