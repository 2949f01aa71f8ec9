import { isUtf8 } from 'node:buffer';
import { join } from 'node:path';
import {
  decodeGoUtf8,
  mapLimited,
  Semaphore,
  shareOfDescriptors,
  systemCode,
} from '../../base/index.ts';
import { readObject, type Repository } from '../../repository/index.ts';
import { type Batches, type DirectoryEntry, streamDirectory } from '../../snapshot/index.ts';
import { NameSet } from '../listing/name-set.ts';
import { nodeIn } from '../../volume-files/index.ts';
import { hasAllAttributes, mayMake, restored } from '../restore/restore-entry.ts';
import {
  type DiskName,
  diskNameOf,
  keyOfEntry,
  keyOfName,
  RawNames,
} from '../restore/restore-names.ts';
import type { RestoreReport } from '../restore/restore-report.ts';
import {
  isUnfinished,
  type Named,
  pinnedAt,
  type TargetDirectory,
} from '../restore/target-directory.ts';
import { BackupRules } from './backup-rules.ts';
import type { FilesInPlace } from './files-in-place.ts';
import type {
  Change,
  ChangeKind,
  InPlaceCounters,
  InPlaceOptions,
  WriteBudget,
} from './in-place-report.ts';
import { isDirectoryIn, removeTree } from './remove-tree.ts';
import { assertSameMount, type TargetRoot } from '../restore/same-mount.ts';

/** Entries compared in parallel. */
const COMPARED_MAX = 64;
/** Directories surveyed in parallel. */
const DIRECTORIES_MAX = 8;
/** Directories open on the way down. */
const HELD_SHARE = 1 / 8;
const HELD_MAX = 1024;
/** This directory belongs to the file system, which needs it for repairs. */
const LOST_AND_FOUND = 'lost+found';

export interface SurveyParts {
  readonly repository: Repository;
  readonly options: InPlaceOptions;
  readonly report: RestoreReport;
  readonly result: InPlaceCounters;
  readonly files: FilesInPlace;
  readonly root: TargetRoot;
  readonly budget: WriteBudget;
}

/**
 * `count` counts all differences. `room` counts the bytes of new and grown files, and reads no
 * contents. `remove` removes extra entries.
 */
export type SurveyTask = 'count' | 'room' | 'remove';

/** The parent of a directory. */
interface Above {
  readonly parent: TargetDirectory | undefined;
  readonly path: string;
  readonly rules: BackupRules | undefined;
}

/** A directory of the target. `names` are keys of all names in the snapshot. */
interface Known {
  readonly names: NameSet;
  readonly path: string;
  readonly rules: BackupRules | undefined;
}

/** The key of a listed name. */
const keyOfListed = (name: Buffer): string => keyOfName(isUtf8(name) ? decodeGoUtf8(name) : name);

/** Undefined if there is no such entry. Throws like `fs`. */
async function identityOf(directory: TargetDirectory, name: DiskName): Promise<string | undefined> {
  const found = await directory.identityAt(name);
  return found && `${found.device} ${found.inode}`;
}

/** Compares a snapshot and a target, directory by directory, before anything is written. */
export class TreeSurvey {
  readonly #parts: SurveyParts;
  readonly #task: SurveyTask;
  readonly #directories = new Semaphore(DIRECTORIES_MAX);
  readonly #heldMax = shareOfDescriptors(HELD_SHARE, HELD_MAX);

  constructor(parts: SurveyParts, task: SurveyTask) {
    this.#parts = parts;
    this.#task = task;
  }

  async run(root: DirectoryEntry, target: TargetDirectory): Promise<void> {
    const { files, options, repository, report } = this.#parts;
    files.assertRoot(target);
    const { excluded, logger } = options;
    const { signal } = report;
    try {
      const rules =
        excluded && (await BackupRules.of(excluded, target, { repository, logger, signal }));
      await this.#visit(root, target, '', rules);
    } catch (error) {
      report.fail(this.#shown(''), error);
    }
  }

  /** Without `directory`, all its entries are to be created. */
  async #visit(
    entry: DirectoryEntry,
    directory: TargetDirectory | undefined,
    path: string,
    rules: BackupRules | undefined,
  ): Promise<void> {
    const { report } = this.#parts;
    const { signal } = report;
    const names = new NameSet();
    let count = 0;
    // These promises never reject.
    const beside = new Set<Promise<void>>();
    try {
      for await (const entries of this.#entriesOf(entry, path, names)) {
        signal.throwIfAborted();
        this.#parts.options.onStep?.();
        count += entries.length;
        const files = entries.filter(({ type }) => type !== 'd');
        if (this.#task !== 'remove') {
          await mapLimited(files, COMPARED_MAX, (file) =>
            this.#task === 'count'
              ? this.#count(file, directory, path)
              : this.#countRoom(file, directory, path),
          );
        }
        for (const child of entries) {
          if (child.type === 'd')
            await this.#enter(child, { parent: directory, path, rules }, beside);
        }
      }
    } catch (error) {
      // The snapshot's entries are unknown here, so nothing counts as extra.
      report.fail(this.#shown(path), error);
      return;
    } finally {
      await Promise.all(beside);
    }
    if (!directory) return;
    // The backup stores a cache as an empty directory.
    if (count > 0 || (await rules?.isCache(directory)) !== true) {
      await this.#extras(directory, entry, { names, path, rules });
    }
    if (this.#task !== 'room' && !signal.aborted) await this.#attributes(directory, entry, path);
  }

  /** Counts or sets attributes. A removal has changed the time of its directory. */
  async #attributes(
    directory: TargetDirectory,
    entry: DirectoryEntry,
    path: string,
  ): Promise<void> {
    const { files, options, report, repository } = this.#parts;
    // The owner of the target may have set attributes of its root.
    const wanted = { ...restored(entry, options), isExact: files.isExact && path !== '' };
    const pinned = await pinnedAt(directory.descriptor);
    if (await hasAllAttributes(repository, pinned, wanted)) return;
    if (this.#task === 'count') {
      await this.#tell('attributes', path, 0);
      return;
    }
    // Set again; the restore has already counted it.
    await repository.dataPath?.pool
      .setAttributes(directory.descriptor, wanted, false)
      .catch((error: unknown) => {
        report.fail(this.#shown(path), error);
      });
    directory.hasNewAttributes();
  }

  /** Adds the bytes that a new file needs beyond the length of the old file. */
  async #countRoom(
    entry: DirectoryEntry,
    directory: TargetDirectory | undefined,
    path: string,
  ): Promise<void> {
    try {
      const found = (await directory?.fileBytesOf(diskNameOf(entry))) ?? 0;
      this.#parts.result.bytesDifferent += Math.max(0, entry.size - found);
    } catch (error) {
      this.#parts.report.fail(this.#shown(`${path}/${entry.name}`), error);
    }
  }

  /** The selected entries. Records all names of the snapshot. */
  #entriesOf({ objectId }: DirectoryEntry, path: string, names: NameSet): Batches {
    const { repository, report, options } = this.#parts;
    const { signal } = report;
    const { selection } = options;
    const isRemoving = this.#task === 'remove';
    const rawNames = new RawNames();
    const all = (async function* () {
      for await (const entries of streamDirectory(repository.contents, objectId, { signal })) {
        for (const entry of entries) {
          // An unsafe name never was in this directory. Throw, so that nothing counts as extra.
          if (isRemoving) diskNameOf(entry);
          rawNames.assertFirst(entry);
          names.add(keyOfEntry(entry));
        }
        yield entries;
      }
    })();
    return selection ? selection.entriesOf({ repository, signal }, path, all) : all;
  }

  /** Surveys in parallel while there is room, else in this call. */
  async #enter(child: DirectoryEntry, above: Above, beside: Set<Promise<void>>): Promise<void> {
    if (!this.#directories.tryAcquire()) {
      await this.#descend(child, above, () => Promise.all(beside));
      return;
    }
    const work = this.#descend(child, above).finally(() => {
      this.#directories.release();
      beside.delete(work);
    });
    beside.add(work);
  }

  /** `settle` waits for other work in the parent, which can then be closed. Never rejects. */
  async #descend(
    entry: DirectoryEntry,
    { parent, path: pathAbove, rules: rulesAbove }: Above,
    settle?: () => Promise<unknown>,
  ): Promise<void> {
    const { root, report } = this.#parts;
    const path = `${pathAbove}/${entry.name}`;
    try {
      diskNameOf(entry);
      const directory = await this.#open(parent, entry, path);
      if (!directory) {
        if (this.#task !== 'remove') await this.#visit(entry, undefined, path, undefined);
        return;
      }
      try {
        assertSameMount(directory.descriptor, root.mountId, directory.shown);
        const isDeep = settle !== undefined && directory.openCount > this.#heldMax;
        if (isDeep) {
          await settle();
          await parent?.park();
        }
        try {
          const rules = await rulesAbove?.enter(entry, directory);
          await this.#visit(entry, directory, path, rules);
        } finally {
          if (isDeep) await parent?.unpark(directory);
        }
      } finally {
        directory.close();
      }
    } catch (error) {
      report.fail(this.#shown(path), error);
    }
  }

  async #open(
    parent: TargetDirectory | undefined,
    entry: DirectoryEntry,
    path: string,
  ): Promise<TargetDirectory | undefined> {
    const name = diskNameOf(entry);
    try {
      const found = await (this.#task === 'remove'
        ? parent?.openToChange(name)
        : parent?.open(name));
      if (!found && this.#task === 'count') await this.#tell('create', path, 0);
      return found;
    } catch (error) {
      const code = systemCode(error) ?? '';
      if (!['ENOENT', 'ENOTDIR', 'ELOOP'].includes(code)) throw error;
      if (this.#task !== 'count') return undefined;
      this.#parts.result.bytesRemoved += (await parent?.fileBytesOf(name)) ?? 0;
      await this.#tell(code === 'ENOENT' ? 'create' : 'replace', path, 0);
      return undefined;
    }
  }

  async #count(
    found: DirectoryEntry,
    directory: TargetDirectory | undefined,
    path: string,
  ): Promise<void> {
    const { files, options, report, result } = this.#parts;
    const entry = restored(found, options);
    const shown = `${path}/${entry.name}`;
    try {
      diskNameOf(entry);
      if (entry.type === 's') {
        const kind = directory ? await this.#kindOfLink(entry, directory) : 'create';
        if (directory && kind === 'replace') await this.#countInTheWay(directory, entry, path);
        if (kind === 'same') result.unchanged++;
        else await this.#tell(kind, shown, 0);
        return;
      }
      const node = nodeIn(entry.extra);
      if (node && !mayMake(node, options)) {
        const isThere = directory && (await files.look(directory, entry)).kind === 'same';
        if (isThere === true) result.unchanged++;
        return;
      }
      if (!directory) {
        await this.#tell('create', shown, entry.size);
        return;
      }
      const { kind, bytes, bytesRemoved } = await files.look(directory, entry);
      result.bytesRemoved += bytesRemoved;
      if (kind === 'replace') await this.#countDirectory(directory, entry, path);
      if (kind === 'same') result.unchanged++;
      else await this.#tell(kind, shown, bytes);
    } catch (error) {
      report.fail(this.#shown(shown), error);
    }
  }

  /** A file or link replaces a directory. Throws like the restore if something must stay. */
  async #countDirectory(
    directory: TargetDirectory,
    entry: DirectoryEntry,
    path: string,
  ): Promise<void> {
    const name = diskNameOf(entry);
    if ((await directory.typeOf(name)) !== 'd') return;
    await this.#parts.files.lookAtDirectory(directory, name, (below, bytes) =>
      this.#tell('remove', `${path}/${entry.name}${below}`, bytes),
    );
  }

  /** A link replaces any entry. */
  async #countInTheWay(
    directory: TargetDirectory,
    entry: DirectoryEntry,
    path: string,
  ): Promise<void> {
    this.#parts.result.bytesRemoved += await directory.fileBytesOf(diskNameOf(entry));
    await this.#countDirectory(directory, entry, path);
  }

  async #kindOfLink(
    entry: DirectoryEntry,
    directory: TargetDirectory,
  ): Promise<ChangeKind | 'same'> {
    const name = diskNameOf(entry);
    const type = await directory.typeOf(name);
    if (type === undefined) return 'create';
    if (type !== 's') return 'replace';
    const wanted = await readObject(this.#parts.repository.contents, entry.objectId);
    if (!(await directory.readlink(name))?.equals(wanted)) return 'replace';
    const isSame = await directory.pin(
      name,
      async (pinned) =>
        pinned !== undefined && hasAllAttributes(this.#parts.repository, pinned, entry),
    );
    return isSame ? 'same' : 'attributes';
  }

  /** Counts or removes entries that the snapshot lacks. */
  async #extras(
    directory: TargetDirectory,
    entry: DirectoryEntry,
    { names, path, rules }: Known,
  ): Promise<void> {
    const { report } = this.#parts;
    const { signal } = report;
    const directories: Buffer[] = [];
    try {
      const aliases = await this.#aliases(directory, entry, names);
      if (!aliases) return;
      for await (const named of directory.names()) {
        signal.throwIfAborted();
        this.#parts.options.onStep?.();
        if (!(await this.#isExtra(directory, named, { names, path, rules, aliases }))) continue;
        if (this.#task === 'room') {
          // Always removed: a killed restore in place may have left most of a large file.
          const isLeft = isUnfinished(String(named.name)) && named.isFile();
          if (isLeft && this.#parts.options.dryRun !== true) {
            await directory.removeNamed(named.name, false);
          } else this.#parts.result.removed++;
          continue;
        }
        if (await isDirectoryIn(directory, named)) directories.push(named.name);
        else await this.#remove(directory, named.name, path);
      }
      for (const name of directories) {
        await this.#removeDirectory(directory, name, path, rules);
      }
    } catch (error) {
      report.fail(this.#shown(path), error);
    }
  }

  /**
   * Entries of the snapshot that the file system lists under other names, as identities. Some file
   * systems ignore case and keep an older spelling. VFAT drops a dot at the end. Undefined if the
   * snapshot has every listed name.
   */
  async #aliases(
    directory: TargetDirectory,
    { objectId }: DirectoryEntry,
    names: NameSet,
  ): Promise<ReadonlySet<string> | undefined> {
    const { repository, report, options } = this.#parts;
    const { signal } = report;
    let [count, found] = [0, 0];
    for await (const { name } of directory.names()) {
      signal.throwIfAborted();
      options.onStep?.();
      count++;
      if (names.has(keyOfListed(name))) found++;
    }
    if (found === count) return undefined;
    const aliases = new Set<string>();
    if (found === names.size) return aliases;
    const listed = new NameSet();
    for await (const { name } of directory.names()) listed.add(keyOfListed(name));
    for await (const entries of streamDirectory(repository.contents, objectId, { signal })) {
      const missing = entries.filter((entry) => !listed.has(keyOfEntry(entry)));
      options.onStep?.();
      await mapLimited(missing, COMPARED_MAX, async (entry) => {
        try {
          aliases.add((await identityOf(directory, diskNameOf(entry))) ?? '');
        } catch {
          // Unsafe and too long names have no entry.
        }
      });
    }
    aliases.delete('');
    return aliases;
  }

  async #isExtra(
    directory: TargetDirectory,
    named: Named,
    { names, path, rules, aliases }: Known & { readonly aliases: ReadonlySet<string> },
  ): Promise<boolean> {
    const { options, result } = this.#parts;
    const name = decodeGoUtf8(named.name);
    const isText = isUtf8(named.name);
    if (names.has(keyOfListed(named.name))) return false;
    if (aliases.size > 0 && aliases.has((await identityOf(directory, named.name)) ?? '')) {
      return false;
    }
    // Kopia replaces characters of names that are not UTF-8. This entry may be stored.
    if (!isText && names.has(name)) {
      result.kept++;
      return false;
    }
    if (isUnfinished(name)) return true;
    const isDirectory = await isDirectoryIn(directory, named);
    const isTaken = options.selection?.takes(`${path}/${name}`, isDirectory) !== false;
    const isOfFileSystem = path === '' && name === LOST_AND_FOUND && isDirectory;
    // Snapshots hold no devices, pipes and sockets, so their absence proves nothing.
    const isSpecial =
      !isDirectory &&
      !named.isFile() &&
      !named.isSymbolicLink() &&
      (await directory.typeOf(named.name)) === 'special';
    const isLeftOut =
      rules !== undefined &&
      rules.leavesOut(name, isDirectory, isDirectory ? 0 : await directory.fileBytesOf(named.name));
    if (options.keepExtra !== true && isTaken && !isOfFileSystem && !isSpecial && !isLeftOut) {
      return true;
    }
    result.kept++;
    return false;
  }

  async #remove(directory: TargetDirectory, name: Buffer, path: string): Promise<void> {
    const shown = `${path}/${String(name)}`;
    try {
      const bytes = await directory.fileBytesOf(name);
      if (this.#task === 'remove') {
        this.#parts.budget.take(bytes);
        await directory.removeNamed(name, false);
      }
      await this.#tell('remove', shown, bytes);
    } catch (error) {
      this.#parts.report.fail(this.#shown(shown), error);
    }
  }

  async #removeDirectory(
    directory: TargetDirectory,
    name: Buffer,
    path: string,
    rules: BackupRules | undefined,
  ): Promise<void> {
    const { root, options, report, budget } = this.#parts;
    const { signal } = report;
    const shown = `${path}/${String(name)}`;
    const isRemoving = this.#task === 'remove';
    const { selection } = options;
    const takes = (below: string, isDirectory: boolean, bytes: number): boolean =>
      selection?.takes(shown + below, isDirectory) !== false &&
      rules?.leavesOut(String(name) + below, isDirectory, bytes) !== true;
    try {
      await removeTree(directory, name, {
        signal,
        mountId: root.mountId,
        dryRun: !isRemoving,
        ...(isRemoving && { beforeFile: (bytes: number) => budget.take(bytes) }),
        takes,
        keepsAll: (below) => Promise.resolve(rules?.isCache(below) ?? false),
        onRemoved: (below, bytes) => this.#tell('remove', shown + below, bytes),
      });
    } catch (error) {
      report.fail(this.#shown(shown), error);
    }
  }

  async #tell(kind: ChangeKind, path: string, bytes: number): Promise<void> {
    const { options, result } = this.#parts;
    if (kind === 'remove') result.removed++;
    else if (kind === 'create') result.created++;
    else if (kind === 'change') result.changed++;
    else if (kind === 'replace') result.replaced++;
    else result.attributes++;
    if (kind === 'remove') result.bytesRemoved += bytes;
    else result.bytesDifferent += bytes;
    const change: Change = { kind, path: this.#shown(path), bytes };
    await options.onChange?.(change);
  }

  #shown(path: string): string {
    return join(this.#parts.root.path, path);
  }
}
