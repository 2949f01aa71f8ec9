import { join } from 'node:path';
import { CodedError, Semaphore, shareOfDescriptors, systemCode } from '../../base/index.ts';
import {
  listPieces,
  type ObjectPiece,
  parseObjectId,
  readObject,
  type Repository,
} from '../../repository/index.ts';
import type { DirectoryEntry } from '../../snapshot/index.ts';
import {
  CAPABILITY,
  type FileAttributes,
  nodeIn,
  NOT_SET,
  type NotSet,
  RUNS_AS_OWNER,
  type SpecialNode,
  type ThreadPool,
  withoutXattrs,
} from '../../volume-files/index.ts';
import { HardLinks, linkGroupOf, type LinkOutcome } from './hard-links.ts';
import { assertWhole, PieceWriter } from './piece-writer.ts';
import { type DiskName, diskNameOf, inTheWay } from './restore-names.ts';
import type { EntryOptions, RestoreOptions, RestoreReport } from './restore-report.ts';
import type { RestoreWriter } from './restore-writer.ts';
import { type Pinned, type TargetDirectory, unfinishedName } from './target-directory.ts';

/** Files of several contents that are open at once. */
const OPEN_FILES_MAX = 64;
/** Shares of the descriptors that this process may have: for files, and for pinned entries. */
const OPEN_FILES_SHARE = 1 / 8;
const PINS_SHARE = 1 / 8;
const PINS_MAX = 4096;
/** A thread creates a file of one content up to this size in one task. */
const WHOLE_FILE_BYTES_MAX = 8 << 20;

/** Restores files and symbolic links into directories of the target. */
export class EntryRestore {
  readonly #report: RestoreReport;
  readonly #repository: Repository;
  readonly #options: EntryOptions;
  readonly #pool: ThreadPool;
  readonly #writer: RestoreWriter;
  readonly #pieces: PieceWriter;
  readonly #openFiles = new Semaphore(shareOfDescriptors(OPEN_FILES_SHARE, OPEN_FILES_MAX));
  #links: HardLinks | undefined;
  readonly #pins = new Semaphore(shareOfDescriptors(PINS_SHARE, PINS_MAX));

  constructor(
    repository: Repository,
    writer: RestoreWriter,
    options: EntryOptions,
    report: RestoreReport,
  ) {
    const { dataPath } = repository;
    if (!dataPath) throw new TypeError('a restore needs a repository opened with a data path');
    this.#repository = repository;
    this.#options = options;
    this.#pool = dataPath.pool;
    this.#report = report;
    this.#writer = writer;
    this.#pieces = new PieceWriter(repository, writer, options.signal, (bytes) => {
      this.#report.counters.bytes += bytes;
    });
  }

  /** Restores later names of one file as hard links, below this root. */
  async openLinks(root: TargetDirectory): Promise<void> {
    if (this.#options.extras?.links !== false) this.#links = await HardLinks.open(root);
  }

  async closeLinks(): Promise<void> {
    const links = this.#links;
    this.#links = undefined;
    await links?.close();
  }

  /** Restores an entry under `diskName`, else its own name. Never rejects: counts failures. */
  async restore(
    directory: TargetDirectory,
    entry: DirectoryEntry,
    diskName?: DiskName,
  ): Promise<void> {
    const shown = join(directory.shown, entry.name);
    try {
      const own: NamedEntry = { ...entry, at: diskName ?? diskNameOf(entry) };
      if (entry.type === 's') await this.#restoreSymlink(directory, own);
      else if (entry.type === 'f') {
        const node = nodeIn(entry.extra);
        if (node) await this.#restoreNode(directory, own, node);
        else await this.#restoreLinked(directory, own);
      } else
        throw new CodedError('UNKNOWN_ENTRY_TYPE', `entries of type "${entry.type}" are not known`);
    } catch (error) {
      this.#report.fail(shown, inTheWay(error));
    }
  }

  /** Makes a FIFO or a device node. Never opens one. */
  async #restoreNode(
    directory: TargetDirectory,
    entry: NamedEntry,
    node: SpecialNode,
  ): Promise<void> {
    const isSame = (found: Pinned): boolean => isSameNode(found.node, node);
    const { counters } = this.#report;
    const { inPlace, overwrite } = this.#options;
    const isMakeable = mayMake(node, this.#options);
    const isKept = overwrite !== 'always' || inPlace !== undefined || !isMakeable;
    const mayBeThere = isKept && !directory.isNew;
    if (mayBeThere && (await this.#adopt(directory, entry, isSame, isMakeable))) {
      counters.skipped++;
      inPlace?.onSameLink();
      return;
    }
    const lacks = (): void => {
      this.#report.noteNotSet(join(directory.shown, entry.name), NOT_SET.node);
    };
    if (!isMakeable) {
      lacks();
      return;
    }
    let isMade = true;
    const isPut = await this.#putAt(directory, entry, async ({ name: at }) => {
      isMade = await this.#pool.makeNode(directory.pathOf(at), node);
      if (!isMade) throw new Error('this process cannot make it');
      const own = { ...entry, ...newAttributes(directory, entry), at };
      if (await this.#adopt(directory, own, isSame)) return false;
      throw wasReplaced();
    }).catch((error: unknown) => {
      if (isMade) throw error;
      lacks();
      return false;
    });
    if (isPut) counters.files++;
  }

  /** Makes a name of a hard-linked file a link to its first restored name. */
  async #restoreLinked(directory: TargetDirectory, entry: NamedEntry): Promise<void> {
    const links = this.#links;
    const group = links && linkGroupOf(entry);
    if (!links || group === undefined) {
      await this.#restoreFile(directory, entry);
      return;
    }
    const { inPlace, overwrite } = this.#options;
    const { at: name } = entry;
    const removeDirectory = async (): Promise<void> => {
      if (!inPlace) throw new CodedError('TARGET_IN_THE_WAY', 'a directory is in the way');
      await inPlace.removeDirectory(directory, name);
    };
    const keepsExisting = overwrite === 'never' && !inPlace;
    await links.inTurn(group, async () => {
      const outcome = await links.link(group, { directory, name, keepsExisting, removeDirectory });
      let isSet = outcome.kind !== 'refused';
      if (outcome.kind === 'first' || outcome.kind === 'refused') {
        const isThere = await this.#restoreFile(directory, entry);
        if (isThere && isSet) isSet = await links.keep(group, directory, name);
      } else this.#countLink(entry, outcome);
      if (!isSet) this.#report.noteNotSet(join(directory.shown, entry.name), NOT_SET.link);
    });
  }

  #countLink(entry: DirectoryEntry, outcome: LinkOutcome): void {
    const { counters } = this.#report;
    const { inPlace } = this.#options;
    counters.filesFound++;
    counters.bytesFound += entry.size;
    counters.bytes += entry.size;
    counters.bytesSkipped += entry.size;
    if (outcome.kind === 'linked') {
      counters.files++;
      inPlace?.onWhole(entry, !outcome.replaced);
    } else {
      counters.skipped++;
      inPlace?.onSameLink();
    }
  }

  async #restoreSymlink(directory: TargetDirectory, entry: NamedEntry): Promise<void> {
    const target = Buffer.from(await readObject(this.#repository.contents, entry.objectId));
    if (!directory.isNew && (await this.#isSameLink(directory, entry, target))) {
      this.#report.counters.skipped++;
      return;
    }
    const isPut = await this.#putAt(directory, entry, async (made) => {
      // A new link is whole at once, so it needs no temporary name.
      const at = made.replaces ? made.name : entry.at;
      await directory.symlink(at, target);
      const isLink = (pinned: Pinned): boolean => pinned.type === 's';
      if (await this.#adopt(directory, { ...entry, at }, isLink)) return !made.replaces;
      throw wasReplaced();
    });
    if (isPut) this.#report.counters.symlinks++;
  }

  /**
   * Makes an entry under a temporary name, and renames it when it is whole. A kill or a failure
   * leaves the old entry. `make` returns true if it has renamed the entry itself. Returns false if
   * the old entry stays. A directory stays unless the restore is in place.
   */
  async #putAt(
    directory: TargetDirectory,
    entry: NamedEntry,
    make: (made: Unfinished) => Promise<boolean>,
  ): Promise<boolean> {
    const { at: name } = entry;
    const { inPlace, overwrite } = this.#options;
    const found = directory.isNew ? undefined : await directory.look(name);
    if (found && !inPlace) {
      if (overwrite === 'never') {
        this.#report.counters.skipped++;
        return false;
      }
      if (found.isDirectory) throw new CodedError('TARGET_IN_THE_WAY', 'a directory is in the way');
    }
    directory.assertWritable();
    const unfinished = unfinishedName();
    const replaces = found !== undefined;
    const replacesDirectory = found?.isDirectory === true;
    try {
      if (!(await make({ name: unfinished, replaces, replacesDirectory }))) {
        if (replacesDirectory) await inPlace?.removeDirectory(directory, name);
        if (replaces) await directory.rename(unfinished, name);
        else await directory.renameNew(unfinished, name);
      }
    } catch (error) {
      await directory.remove(unfinished).catch(() => undefined);
      throw error;
    }
    inPlace?.onWhole(entry, !found);
    return true;
  }

  async #isSameLink(
    directory: TargetDirectory,
    entry: NamedEntry,
    target: Buffer,
  ): Promise<boolean> {
    if (this.#options.overwrite === 'always') return false;
    const existing = await directory.readlink(entry.at);
    if (!existing?.equals(target)) return false;
    return this.#adopt(directory, entry, (pinned) => pinned.type === 's');
  }

  /** Returns whether the file now matches the snapshot. */
  async #restoreFile(directory: TargetDirectory, entry: NamedEntry): Promise<boolean> {
    this.#report.counters.filesFound++;
    this.#report.counters.bytesFound += entry.size;
    const { inPlace } = this.#options;
    if (inPlace) {
      if (!directory.isNew && (await inPlace.patch(directory, entry))) return true;
      entry.keptExtra = inPlace.beforeWhole(entry);
    } else if (!directory.isNew && (await this.#isSame(directory, entry))) {
      this.#report.counters.skipped++;
      this.#report.counters.bytes += entry.size;
      this.#report.counters.bytesSkipped += entry.size;
      return true;
    }
    try {
      const isPut = await this.#restoreContents(directory, entry);
      if (isPut) this.#report.counters.files++;
      return isPut;
    } catch (error) {
      // The old file and the new file do not both fit.
      if (systemCode(error) !== 'ENOSPC' || directory.isNew) throw error;
      if (!(await inPlace?.patchWithoutRoom(directory, entry))) throw error;
      return true;
    }
  }

  /** Returns false if the existing entry stays. */
  async #restoreContents(directory: TargetDirectory, entry: NamedEntry): Promise<boolean> {
    const { signal } = this.#options;
    const { contents } = this.#repository;
    if (parseObjectId(entry.objectId).indirections === 0) {
      const [only] = await listPieces(contents, entry.objectId, { signal });
      if (only && only.length <= WHOLE_FILE_BYTES_MAX) {
        assertWhole(entry, [only]);
        return this.#restoreWhole(directory, entry, only);
      }
    }
    // Large files have many pieces, so only open files hold theirs.
    await this.#openFiles.acquire();
    try {
      signal.throwIfAborted();
      const pieces = await listPieces(contents, entry.objectId, { signal });
      assertWhole(entry, pieces);
      return await this.#putAt(directory, entry, async ({ name }) => {
        const notSet = await this.#restoreLarge(directory, { ...entry, at: name }, pieces);
        this.#report.noteNotSet(join(directory.shown, entry.name), notSet);
        return false;
      });
    } finally {
      this.#openFiles.release();
    }
  }

  async #restoreWhole(
    directory: TargetDirectory,
    entry: NamedEntry,
    { contentId, compressed, length }: ObjectPiece,
  ): Promise<boolean> {
    const isPut = await this.#putAt(directory, entry, async (made) => {
      const { replaces } = made;
      const place = { path: directory.pathOf(entry.at), replaces };
      const path = directory.pathOf(made.name);
      const notSet = await this.#writer.add({
        entry: this.#repository.contents.findOrThrow(contentId),
        compressedObject: compressed,
        target: {
          path,
          attributes: newAttributes(directory, entry),
          ...(!made.replacesDirectory && { place }),
        },
      });
      this.#report.noteNotSet(join(directory.shown, entry.name), notSet);
      return !made.replacesDirectory;
    });
    if (isPut) this.#report.counters.bytes += length;
    return isPut;
  }

  /** Whether the file already exists. Corrects its attributes if needed. */
  async #isSame(directory: TargetDirectory, entry: NamedEntry): Promise<boolean> {
    const { overwrite = 'if-different' } = this.#options;
    if (overwrite !== 'if-different') return false;
    return this.#adopt(
      directory,
      entry,
      ({ type, size, attributes }) =>
        type === 'f' && size === entry.size && attributes.mtimeNs === entry.mtimeNs,
    );
  }

  /**
   * Sets the entry's attributes on the existing file. Returns false if another file took its place,
   * or if the attributes differ and this restore may not change them.
   */
  async #adopt(
    directory: TargetDirectory,
    entry: NamedEntry,
    isExpected: (pinned: Pinned) => boolean,
    mayChange = true,
  ): Promise<boolean> {
    await this.#pins.acquire();
    try {
      return await directory.pin(entry.at, async (pinned) => {
        if (!pinned || !isExpected(pinned)) return false;
        const isExact = this.#options.inPlace?.isExact === true && pinned.type !== 's';
        const wanted = { ...entry, isExact };
        if (await hasAllAttributes(this.#repository, pinned, wanted)) return true;
        // The file may have a name outside the target, so it is replaced, not changed.
        if (!pinned.isSingle || !mayChange) return false;
        const notSet = await this.#pool.setAttributes(
          pinned.descriptor,
          wanted,
          pinned.type === 's',
        );
        this.#report.noteNotSet(join(directory.shown, entry.name), notSet);
        return true;
      });
    } finally {
      this.#pins.release();
    }
  }

  async #restoreLarge(
    directory: TargetDirectory,
    entry: NamedEntry,
    pieces: readonly ObjectPiece[],
  ): Promise<NotSet> {
    const file = await directory.create(entry.at);
    try {
      await file.truncate(entry.size);
      await this.#pieces.write(pieces, file.fd, this.#options.sparse === true);
      // Its time will mark it as whole, so its bytes must reach the disk first.
      if (this.#options.overwrite !== 'always') await file.datasync();
      const notSet = await this.#pool.setAttributes(
        file.fd,
        newAttributes(directory, entry),
        false,
      );
      // Some file systems report a lack of space only now.
      await file.close();
      return notSet;
    } catch (error) {
      // The earlier error matters.
      await file.close().catch(() => undefined);
      throw error;
    }
  }
}

/** An entry with its name on disk. */
interface NamedEntry extends DirectoryEntry {
  readonly at: DiskName;
  /** Extended attributes of the replaced file, if the snapshot does not record any. */
  keptExtra?: string | undefined;
}

/** Attributes for a new entry. */
const newAttributes = (directory: TargetDirectory, entry: NamedEntry): FileAttributes => {
  const { mode, uid, gid, mtimeNs, extra, keptExtra } = entry;
  const dropsLists = directory.givesLists;
  return { mode, uid, gid, mtimeNs, extra: keptExtra ?? extra, dropsLists };
};

/** An entry under its temporary name, and facts about the old entry. */
interface Unfinished {
  readonly name: string;
  readonly replaces: boolean;
  /** A directory has the name, and is removed once the entry is whole. */
  readonly replacesDirectory: boolean;
}

const wasReplaced = (): CodedError =>
  new CodedError('TARGET_CHANGED', 'another process replaced it while it was restored');

export const mayMake = (
  { kind }: SpecialNode,
  { devices }: Pick<RestoreOptions, 'devices'>,
): boolean => kind === 'fifo' || devices === true;

export const isSameNode = (a: SpecialNode | undefined, b: SpecialNode): boolean =>
  a?.kind === b.kind && a.device === b.device;

/** The entry with the owner and the extended attributes of the options. */
export function restored(
  entry: DirectoryEntry,
  { owner, extras }: Pick<RestoreOptions, 'owner' | 'extras'>,
): DirectoryEntry {
  const own = owned(entry, owner);
  return extras?.xattrs === false ? { ...own, extra: withoutXattrs(own.extra, () => true) } : own;
}

/** A setuid program must not run as another owner. */
export function owned(entry: DirectoryEntry, owner: RestoreOptions['owner']): DirectoryEntry {
  if (!owner) return entry;
  const keeps = entry.type === 'd' || (owner.uid === entry.uid && owner.gid === entry.gid);
  const mode = keeps ? entry.mode : entry.mode & ~RUNS_AS_OWNER;
  const extra = keeps ? entry.extra : withoutXattrs(entry.extra, (name) => name === CAPABILITY);
  return { ...entry, ...owner, mode, extra };
}

/** Whether a file has all attributes of the entry; with `isExact`, no others. */
export async function hasAllAttributes(
  { dataPath }: Repository,
  pinned: Pinned,
  entry: DirectoryEntry & Pick<FileAttributes, 'isExact'>,
): Promise<boolean> {
  if (!hasAttributes(pinned, entry)) return false;
  const { extra, isExact = false } = entry;
  if (extra === undefined && !isExact) return true;
  return (await dataPath?.pool.hasExtra(pinned.descriptor, extra, isExact)) === true;
}

/** Whether an existing file has the entry's owner, mode and time. */
function hasAttributes({ attributes, type }: Pinned, entry: DirectoryEntry): boolean {
  const { uid, gid, mode, mtimeNs } = attributes;
  const isOwned = uid === entry.uid && gid === entry.gid;
  return isOwned && mtimeNs === entry.mtimeNs && (type === 's' || mode === entry.mode);
}
