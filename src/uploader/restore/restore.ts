import * as fs from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import {
  CodedError,
  messageOf,
  Semaphore,
  shareOfDescriptors,
  systemCode,
} from '../../base/index.ts';
import { DEFAULT_LIST, type ThreadPool } from '../../volume-files/index.ts';
import type { ObjectId, Repository } from '../../repository/index.ts';
import { type DirectoryEntry, streamDirectory } from '../../snapshot/index.ts';
import { EntryRestore, hasAllAttributes, restored } from './restore-entry.ts';
import { type DiskName, diskNameOf, inTheWay, RawNames } from './restore-names.ts';
import {
  type EntryOptions,
  incompleteSnapshot,
  type RestoreCounters,
  type RestoreOptions,
  RestoreReport,
} from './restore-report.ts';
import { hasAllXattrs } from '../listing/previous-entries.ts';
import { RestoreWriter } from './restore-writer.ts';
import { pinnedAt, TargetDirectory } from './target-directory.ts';

/** Entries restored at once. Our choice: windows of the writer must fill. */
const OUTSTANDING_MAX = 4096;
/** Directories restored at once; their files share requests. Our choice. */
const DIRECTORIES_MAX = 16;
/** Share of the descriptors that this process may have. */
const HELD_DIRECTORIES_SHARE = 1 / 4;
/** In deeper trees, the descriptors of upper directories are closed meanwhile. Our choice. */
const HELD_DIRECTORIES_MAX = 4096;
/**
 * Restores a tree or one file to a path. Continues after failures, and reports them at the end. A
 * file is restored whole or not at all. Throws `RESTORE_INCOMPLETE`, `TARGET_UNUSABLE`,
 * `SNAPSHOT_INCOMPLETE` for a partly read single file, and the error of the root itself.
 */
export async function restoreTree(
  repository: Repository,
  root: DirectoryEntry,
  target: string,
  options: RestoreOptions,
): Promise<RestoreCounters> {
  const report = new RestoreReport(options);
  const { signal } = report;
  const inPlace = options.inPlace?.(report);
  const own = { ...options, signal, inPlace };
  const restore = new TreeRestore(repository, own, report);
  await (root.type === 'd'
    ? restore.restoreRoot(root, target)
    : restore.restoreSingle(root, target));
  return report.counters;
}

/**
 * Has its own walk, in the order of the work. The files of a part of a directory fill the writer's
 * windows before its subdirectories are entered. An open directory of the target goes along.
 * Damaged parts are skipped.
 */
class TreeRestore {
  readonly #report: RestoreReport;
  readonly #repository: Repository;
  readonly #options: EntryOptions;
  readonly #pool: ThreadPool;
  readonly #writer: RestoreWriter;
  readonly #outstanding = new Semaphore(OUTSTANDING_MAX);
  readonly #entries: EntryRestore;
  readonly #heldDirectoriesMax = shareOfDescriptors(HELD_DIRECTORIES_SHARE, HELD_DIRECTORIES_MAX);
  readonly #directories = new Semaphore(DIRECTORIES_MAX);
  #rootShown = '';
  /** No other restore into the same target runs. */
  #isAlone = false;
  /** The snapshot records all extended attributes, and all are restored. */
  #isExact = false;

  constructor(repository: Repository, options: EntryOptions, report: RestoreReport) {
    const { dataPath } = repository;
    if (!dataPath) throw new TypeError('a restore needs a repository opened with a data path');
    this.#repository = repository;
    this.#options = options;
    this.#pool = dataPath.pool;
    this.#report = report;
    this.#writer = new RestoreWriter(repository, options.signal);
    this.#entries = new EntryRestore(repository, this.#writer, options, report);
  }

  async restoreRoot(root: DirectoryEntry, target: string): Promise<void> {
    this.#isExact = this.#options.extras?.xattrs !== false && hasAllXattrs(root);
    // An unreadable snapshot or an empty selection must leave no trace, so check it first.
    await this.#options.selection?.assertSome(this.#context, root);
    const entries = await this.#readDirectory(root.objectId, '');
    this.#rootShown = target === '/' ? '' : target;
    const directory = await this.#openRoot(target);
    try {
      this.#options.inPlace?.assertRoot(directory);
      await this.#lookForLists(directory);
      await this.#entries.openLinks(directory);
      const self = restored(root, this.#options);
      await this.#fill(directory, self, entries, () => this.#entries.closeLinks());
      await this.#finish(directory);
    } finally {
      await this.#entries.closeLinks();
      directory.close();
    }
  }

  async restoreSingle(entry: DirectoryEntry, target: string): Promise<void> {
    const incomplete = entry.summary?.incomplete;
    if (incomplete !== undefined) throw incompleteSnapshot('file', incomplete);
    this.#isExact = this.#options.extras?.xattrs !== false && hasAllXattrs(entry);
    const { parent, name } = await placeOfSingle(entry, target);
    const directory = await this.#openRoot(parent);
    try {
      await this.#removeUnfinished(directory);
      await this.#lookForLists(directory);
      const own = { ...restored(entry, this.#options), name: String(name) };
      const work = this.#entries.restore(directory, own, name);
      this.#writer.flush();
      await work;
      await this.#finish(directory);
    } finally {
      directory.close();
    }
  }

  async #openRoot(target: string): Promise<TargetDirectory> {
    const directory = await TargetDirectory.openRoot(target);
    this.#report.isReadOnly = () => directory.isReadOnly();
    await directory.allowChanges();
    // A restore in place already holds the lock.
    this.#isAlone = this.#options.inPlace !== undefined || directory.lock();
    return directory;
  }

  /** Removes temporary files of a killed restore, unless another restore is running. */
  async #removeUnfinished(directory: TargetDirectory): Promise<void> {
    if (this.#isAlone && !directory.isNew) await directory.removeUnfinished();
  }

  /** Makes the restored data survive a power cut, as Velero does. */
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

  /** Entries in stored order, with the first part read already. `path` is '' for the root. */
  async #readDirectory(
    id: ObjectId,
    path: string,
  ): Promise<AsyncIterable<readonly DirectoryEntry[]>> {
    const { signal, selection, owner, leaveOut, extras } = this.#options;
    const isAsStored = !owner && extras?.xattrs !== false;
    const all = streamDirectory(this.#repository.contents, id, { signal });
    const batches = selection ? selection.entriesOf(this.#context, path, all) : all;
    const names = new RawNames();
    const own = (found: readonly DirectoryEntry[]): readonly DirectoryEntry[] => {
      const isRoot = path === '' && leaveOut !== undefined;
      const different = withoutRepeated(found).filter((entry) => this.#isFirst(names, path, entry));
      const entries = isRoot ? different.filter(({ name }) => name !== leaveOut) : different;
      return isAsStored ? entries : entries.map((entry) => restored(entry, this.#options));
    };
    const first = await batches.next();
    return (async function* () {
      if (first.done !== true) yield own(first.value);
      for await (const entries of batches) yield own(entries);
    })();
  }

  /** Whether new entries inherit access lists. A new directory has those of its parent. */
  async #lookForLists(directory: TargetDirectory, parent?: TargetDirectory): Promise<void> {
    if (!this.#isExact) return;
    if (parent && directory.isNew) directory.givesLists = parent.givesLists;
    else {
      const extra = await this.#pool.readExtraOf(directory.descriptor).catch(() => undefined);
      directory.givesLists = extra?.includes(`"${DEFAULT_LIST}"`) === true;
    }
  }

  /** Two entries must not get the same name on disk. */
  #isFirst(names: RawNames, path: string, entry: DirectoryEntry): boolean {
    try {
      names.assertFirst(entry);
      return true;
    } catch (error) {
      this.#report.fail(`${this.#rootShown}${path}/${entry.name}`, error);
      return false;
    }
  }

  /** Restores the entries of a directory, then its attributes, which may forbid access. */
  async #fill(
    directory: TargetDirectory,
    self: DirectoryEntry,
    batches: AsyncIterable<readonly DirectoryEntry[]>,
    beforeAttributes?: () => Promise<void>,
  ): Promise<void> {
    // These promises never reject: failures are reported. The set holds only unfinished work.
    const work = new Set<Promise<void>>();
    try {
      await this.#removeUnfinished(directory);
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
      track(this.#entries.restore(directory, entry), () => {
        this.#outstanding.release();
      });
    }
    for (const child of entries) {
      if (child.type !== 'd') continue;
      // Restores in parallel while there is room, else in this call.
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
      const { inPlace } = this.#options;
      const { descriptor } = directory;
      const dropsLists = directory.isMade && directory.givesLists;
      // The owner of the target may have set attributes of its root.
      const isExact = inPlace?.isExact === true && directory.shown !== this.#rootShown;
      const wanted = { ...self, dropsLists, isExact };
      const isSame =
        !directory.isNew &&
        (await hasAllAttributes(this.#repository, await pinnedAt(descriptor), wanted));
      if (isSame && inPlace) return;
      if (!isSame) {
        const notSet = await this.#pool.setAttributes(directory.descriptor, wanted, false);
        this.#report.noteNotSet(directory.shown, notSet);
        directory.hasNewAttributes();
      }
      this.#report.counters.directories++;
    } catch (error) {
      this.#report.fail(directory.shown, error);
    }
  }

  async #enter(parent: TargetDirectory, entry: DirectoryEntry): Promise<TargetDirectory> {
    const { inPlace } = this.#options;
    return inPlace ? inPlace.enter(parent, entry) : parent.enter(diskNameOf(entry), entry.name);
  }

  /** `settle` waits for all other work in the parent, so the parent can be closed. */
  async #descend(
    parent: TargetDirectory,
    entry: DirectoryEntry,
    settle?: () => Promise<void>,
  ): Promise<void> {
    const shown = join(parent.shown, entry.name);
    if (this.#options.signal.aborted) return;
    try {
      diskNameOf(entry);
      const entries = await this.#readDirectory(
        entry.objectId,
        shown.slice(this.#rootShown.length),
      );
      const directory = await this.#enter(parent, entry);
      try {
        await this.#lookForLists(directory, parent);
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
}

/**
 * Drops repeated entries. Kopia stores a name twice if a listing returned it twice. An entry with
 * other contents may be another file whose name Kopia could not store. This entry stays and is
 * reported.
 */
const withoutRepeated = (entries: readonly DirectoryEntry[]): readonly DirectoryEntry[] =>
  entries.filter(({ name, type, objectId, extra }, i) => {
    const next = entries[i + 1];
    if (next?.name !== name || next.type !== type || next.objectId !== objectId) return true;
    return next.extra !== extra;
  });

/**
 * Place of a single file: in a directory, or instead of an existing file. The user may name a link.
 * Refuses other types: a device would become a regular file in memory, and `/dev/null` would break
 * for every process.
 */
async function placeOfSingle(
  entry: DirectoryEntry,
  target: string,
): Promise<{ parent: string; name: DiskName }> {
  const found = await fs.stat(target).catch(() => undefined);
  if (!found) return { parent: dirname(target), name: basename(target) };
  if (found.isFile()) {
    const path = await fs.realpath(target);
    return { parent: dirname(path), name: basename(path) };
  }
  if (!found.isDirectory()) {
    const text = `cannot restore to ${target}: it is a device, pipe or socket; use --block to write to a device, and snapshot cat to write to a pipe`;
    throw new CodedError('TARGET_UNUSABLE', text);
  }
  // The name comes from the snapshot, and must not lead out of the target.
  return { parent: target, name: diskNameOf(entry) };
}

/** Lost data leave the right size and time, so lost files look whole. */
function notFlushed(cause: unknown): Error {
  const text = `not all of it reached the disk (${messageOf(cause)}); check the disk and restore everything again, on the command line with --overwrite always`;
  return Object.assign(new Error(text, { cause }), { code: systemCode(cause) });
}
