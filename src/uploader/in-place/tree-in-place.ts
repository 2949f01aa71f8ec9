import { constants } from 'node:fs';
import * as fs from 'node:fs/promises';
import { CodedError, messageOf, systemCode } from '../../base/index.ts';
import type { Repository } from '../../repository/index.ts';
import { type DirectoryEntry, streamDirectory, type WalkedEntry } from '../../snapshot/index.ts';
import { hasAllXattrs } from '../listing/previous-entries.ts';
import { restoreTree } from '../restore/restore.ts';
import { diskPathOf } from '../restore/restore-names.ts';
import {
  incompleteSnapshot,
  newRestoreCounters,
  RestoreReport,
} from '../restore/restore-report.ts';
import { TargetDirectory } from '../restore/target-directory.ts';
import { FilesInPlace } from './files-in-place.ts';
import { assertRestorable, assertRoom } from './preconditions.ts';
import { Guard } from './open-files-guard.ts';
import {
  type InPlaceCounters,
  type InPlaceOptions,
  newInPlaceCounters,
  WriteBudget,
} from './in-place-report.ts';
import { assertNoMountBelow, type TargetRoot, targetRoot } from '../restore/same-mount.ts';
import { type SurveyTask, TreeSurvey } from './tree-survey.ts';

/**
 * Brings an existing directory back to a snapshot. Compares files, and writes the differing ones.
 * Then removes extra entries, unless something failed before. A later run completes an interrupted
 * run. Throws `DAMAGED_BLOB` and `TARGET_FULL` before anything is changed. Also throws
 * `TARGET_UNUSABLE`, `TARGET_IN_USE`, `MOUNT_BELOW_TARGET`, `WRITE_LIMIT`. An incomplete snapshot
 * is `SNAPSHOT_INCOMPLETE`. For other codes see `restoreTree`.
 */
export async function restoreTreeInPlace(
  repository: Repository,
  root: DirectoryEntry,
  target: string,
  options: InPlaceOptions,
): Promise<InPlaceCounters> {
  assertComplete(root, options);
  await assertTree(repository, root, options);
  const result = options.result ?? newInPlaceCounters();
  const { handle, path } = await openTarget(target);
  try {
    assertNoMountBelow(path);
    await using guard = await Guard.over({ path: target, descriptor: handle.fd }, options);
    const run = new TreeInPlace(repository, root, targetRoot(path, handle.fd), options);
    await options.selection?.assertSome({ repository, signal: options.signal }, root);
    const removesLast = options.removeFirst !== true && options.keepExtra !== true;
    const assertFits = async (): Promise<void> => {
      if (removesLast) await assertRoom(target, root, () => run.countRoom());
    };
    if (options.dryRun === true) {
      (await run.survey('count', result)).throwIfFailed();
      await run.assertRestorable();
      await assertFits();
      return result;
    }
    await run.assertRestorable();
    await assertFits();
    if (options.maxWriteBytes !== undefined) {
      const counted = newInPlaceCounters();
      (await run.survey('count', counted)).throwIfFailed();
      new WriteBudget(options.maxWriteBytes).assertEnough(counted);
      assertNotAllRemoved(root, counted);
      // From here on the counters are about the writes.
      if (options.counters) Object.assign(options.counters, newRestoreCounters());
    }
    if (options.removeFirst === true) {
      const removal = await run.survey('remove', result);
      if (removal.signal.aborted) removal.throwIfFailed();
      await run.restore(result);
      // A failed removal did not stop the restore.
      removal.throwIfFailed();
    } else {
      await run.restore(result);
      (await run.survey('remove', result)).throwIfFailed();
    }
    await guard.assertStillUnused();
  } finally {
    await handle.close();
  }
  return result;
}

class TreeInPlace {
  readonly #repository: Repository;
  readonly #root: DirectoryEntry;
  readonly #target: TargetRoot;
  readonly #options: InPlaceOptions;
  /** Budget for all changes. */
  readonly #budget: WriteBudget;

  constructor(
    repository: Repository,
    root: DirectoryEntry,
    target: TargetRoot,
    options: InPlaceOptions,
  ) {
    this.#repository = repository;
    this.#root = root;
    this.#target = target;
    this.#options = options;
    this.#budget = new WriteBudget(options.maxWriteBytes);
  }

  /** Returns the report with the failures. */
  async survey(task: SurveyTask, result: InPlaceCounters): Promise<RestoreReport> {
    const { onChange, ...options } = this.#options;
    const isTold = this.#options.dryRun === true || task === 'remove';
    const counters = task === 'count' ? options.counters : undefined;
    const report = new RestoreReport({ ...options, counters: counters ?? newRestoreCounters() });
    const survey = new TreeSurvey(
      {
        repository: this.#repository,
        options: { ...options, ...(isTold && onChange && { onChange }) },
        report,
        result,
        files: this.#files(report, result),
        budget: this.#budget,
        root: this.#target,
      },
      task,
    );
    const directory = await TargetDirectory.openRoot(this.#target.path);
    report.isReadOnly = () => directory.isReadOnly();
    if (task === 'remove') await directory.allowChanges();
    try {
      await survey.run(this.#root, directory);
      // The restore flushed its own writes before.
      if (task === 'remove' && result.removed > 0 && !report.signal.aborted) {
        await this.#repository.dataPath?.pool.syncFilesystem(directory.descriptor);
      }
    } finally {
      directory.close();
    }
    return report;
  }

  /** Counts new bytes, and entries that would be removed. Contents are not compared. */
  async countRoom(): Promise<InPlaceCounters> {
    const counted = newInPlaceCounters();
    // The restore reports unreadable entries.
    await this.survey('room', counted);
    this.#options.signal.throwIfAborted();
    return counted;
  }

  async assertRestorable(): Promise<void> {
    const differs = this.#differs.bind(this);
    await assertRestorable(this.#repository, this.#root, this.#options, differs);
  }

  /** Whether a restore needs the contents of an entry. */
  async #differs(walked: WalkedEntry): Promise<boolean> {
    const report = new RestoreReport({ ...this.#options, counters: newRestoreCounters() });
    const files = this.#files(report, newInPlaceCounters());
    let directory = await TargetDirectory.openRoot(this.#target.path);
    const opened = [directory];
    try {
      for (const name of diskPathOf(walked).slice(0, -1))
        opened.push((directory = await directory.open(name)));
      const look = await files.look(directory, walked.entry);
      return look.kind !== 'same' && look.kind !== 'attributes';
    } catch {
      this.#options.signal.throwIfAborted();
      return true;
    } finally {
      for (const each of opened.reverse()) each.close();
    }
  }

  async restore(result: InPlaceCounters): Promise<void> {
    const { logger, signal, selection, owner, extras, devices = false } = this.#options;
    const counters = this.#options.counters ?? newRestoreCounters();
    await restoreTree(this.#repository, this.#root, this.#target.path, {
      logger,
      signal,
      counters,
      inPlace: (report) => this.#files(report, result),
      // For files that are written whole.
      sparse: true,
      devices,
      ...(selection && { selection }),
      ...(owner && { owner }),
      ...(extras && { extras }),
    });
  }

  #files(report: RestoreReport, result: InPlaceCounters): FilesInPlace {
    const keepsXattrs = this.#options.extras?.xattrs === false || !hasAllXattrs(this.#root);
    const options = { ...this.#options, keepsXattrs };
    const [repository, root, budget] = [this.#repository, this.#target, this.#budget];
    return new FilesInPlace({ repository, report, options, result, root, budget });
  }
}

/** An empty snapshot, perhaps of an unmounted volume, writes no bytes. Throws `WRITE_LIMIT`. */
function assertNotAllRemoved({ summary }: DirectoryEntry, { removed }: InPlaceCounters): void {
  if (!summary || removed === 0 || summary.files + summary.symlinks > 0) return;
  const text = `this snapshot has no file at all, and ${removed} entries of the target would be removed; nothing was removed. Without --max-write they are`;
  throw new CodedError('WRITE_LIMIT', text);
}

async function openTarget(target: string): Promise<{ handle: fs.FileHandle; path: string }> {
  try {
    const path = await fs.realpath(target);
    return { handle: await fs.open(path, constants.O_RDONLY | constants.O_DIRECTORY), path };
  } catch (cause) {
    const code = systemCode(cause);
    const reason =
      code === 'ENOENT'
        ? 'it does not exist; --in-place needs the directory that is to be brought back'
        : code === 'ENOTDIR'
          ? 'it is not a directory; a raw volume needs --block'
          : messageOf(cause);
    throw new CodedError('TARGET_UNUSABLE', `cannot restore to ${target}: ${reason}`, { cause });
  }
}

/** A restore would remove entries that the backup could not read. Throws `SNAPSHOT_INCOMPLETE`. */
function assertComplete(root: DirectoryEntry, { keepExtra }: InPlaceOptions): void {
  if (root.type !== 'd') {
    const text =
      'this is a single file, and --in-place is for a directory or, with --block, for a raw volume: restore it without --in-place';
    throw new CodedError('TARGET_UNUSABLE', text);
  }
  const { incomplete, numFailed = 0, numIgnoredErrors = 0 } = root.summary ?? {};
  if (keepExtra === true) return;
  if (incomplete !== undefined) throw incompleteSnapshot('directory', incomplete);
  const missing = numFailed + numIgnoredErrors;
  if (missing === 0) return;
  const text = `this snapshot lacks ${missing} entries that could not be read when it was made, and --in-place would remove them: use --keep-extra, or choose another snapshot`;
  throw new CodedError('SNAPSHOT_INCOMPLETE', text);
}

/**
 * Throws `TARGET_UNUSABLE` for a snapshot of a raw volume. Its only file is named by the path of
 * the device. A restore would remove the whole directory.
 */
async function assertTree(
  { contents }: Repository,
  { objectId }: DirectoryEntry,
  { signal }: InPlaceOptions,
): Promise<void> {
  for await (const [file, more] of streamDirectory(contents, objectId, { signal })) {
    if (more !== undefined || file?.type !== 'f' || !file.name.startsWith('/')) return;
    const text =
      'this snapshot is of a raw volume, and the target is a directory: a raw volume is restored to a device of its size (--block, or a PVC with volumeMode Block)';
    throw new CodedError('TARGET_UNUSABLE', text);
  }
}
