import {
  accessSync,
  type BigIntStats,
  close,
  closeSync,
  constants,
  fchmodSync,
  fstat,
  mkdir,
  open,
} from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import {
  CodedError,
  makeDirectories,
  mapLimited,
  pinnedPath,
  posix,
  randomBytes,
  refusalOf,
  systemCode,
} from '../../base/index.ts';
import type { FileAttributes, SpecialNode } from '../../volume-files/index.ts';
import { readStart } from '../file-data/regular-file.ts';
import type { DiskName } from './restore-names.ts';

const { O_RDONLY, O_WRONLY, O_CREAT, O_EXCL, O_NOFOLLOW, O_DIRECTORY, O_NONBLOCK, W_OK, X_OK } =
  constants;
const DIRECTORY = O_RDONLY | O_DIRECTORY | O_NOFOLLOW;
const CREATE = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW;
/** Pins an entry without opening it: no device wakes up, and no permission is needed. */
const O_PATH = 0o10000000;

const openPath = promisify(open);
const closeDescriptor = promisify(close);
const makeDirectory = promisify(mkdir);
const statDescriptor = promisify(fstat);

/** Names in a restore's temporary directory of hard links, and how many are removed at once. */
const LINK_GROUP = /^[0-9a-f]{32}$/;
const REMOVALS = 64;
const DIRENTS = 1024;

/** A name in a directory, with its type if the file system lists it. */
export interface Named {
  readonly name: Buffer;
  isDirectory(): boolean;
  isFile(): boolean;
  isSymbolicLink(): boolean;
}

/** An entry that a descriptor holds. The entry stays the same, even if the name changes. */
export interface Pinned {
  readonly descriptor: number;
  readonly type: 'f' | 's' | 'other';
  /** The file has only this name, so a change affects no other path. */
  readonly isSingle: boolean;
  readonly size: number;
  /** Set for a FIFO or device node. */
  readonly node: SpecialNode | undefined;
  readonly attributes: FileAttributes;
}

/**
 * An open directory of the target. Entries are reached through its descriptor, and no link is
 * followed. So links cannot lead a restore out of the target, not even links that appear meanwhile.
 * Each instance has an owner, who closes it.
 */
export class TargetDirectory {
  #descriptor: number | undefined;
  #identity: Identity | undefined;
  readonly #count: OpenCount;
  /** For messages. */
  readonly shown: string;
  /** Made by this restore, or empty: no entry can be in the way. */
  readonly isNew: boolean;
  /** Made by this restore, so it inherits attributes from its parent. */
  readonly isMade: boolean;
  /** Whether new entries inherit an access list, because the directory has a default list. */
  givesLists = false;
  /** The error of a directory that is known to be read-only. */
  #refusal: Error | undefined;
  /** The mode before {@link allowChanges} added the owner's permissions. */
  #modeBefore: number | undefined;

  private constructor(
    descriptor: number,
    count: OpenCount,
    shown: string,
    isNew: boolean,
    isMade = isNew,
  ) {
    this.#descriptor = descriptor;
    this.#count = count;
    count.open++;
    this.shown = shown;
    this.isNew = isNew;
    this.isMade = isMade;
  }

  /** Opens or creates the target itself, which may be a link. Throws `TARGET_UNUSABLE`. */
  static async openRoot(target: string): Promise<TargetDirectory> {
    try {
      const made = await makeDirectories(target);
      const descriptor = await openPath(target, O_RDONLY | O_DIRECTORY);
      const isNew = await isEmpty(descriptor);
      const isMade = made.length > 0;
      return new TargetDirectory(descriptor, { open: 0 }, target, isNew, isMade);
    } catch (cause) {
      const text = `cannot restore to ${target}: ${refusalOf(cause)}`;
      throw new CodedError('TARGET_UNUSABLE', text, { cause });
    }
  }

  /** Path of an entry, for calls that do not follow a link at its end. */
  pathOf(name: DiskName): DiskName {
    const path = `${pinnedPath(this.descriptor)}/`;
    return typeof name === 'string' ? path + name : Buffer.concat([Buffer.from(path), name]);
  }

  /** Opens an existing subdirectory for reading. Throws like `fs`: `ENOTDIR` for a file. */
  async open(name: DiskName): Promise<TargetDirectory> {
    const descriptor = await openPath(this.pathOf(name), DIRECTORY);
    return new TargetDirectory(descriptor, this.#count, join(this.shown, String(name)), false);
  }

  /** Opens an existing subdirectory, to change its entries; see {@link allowChanges}. */
  async openToChange(name: DiskName, shown = String(name)): Promise<TargetDirectory> {
    const { descriptor, modeBefore } = await openOwn(this.pathOf(name));
    const shownPath = join(this.shown, shown);
    const directory = new TargetDirectory(descriptor, this.#count, shownPath, false);
    directory.#modeBefore = modeBefore;
    await directory.allowChanges();
    return directory;
  }

  /** Its names as they are on disk. Names that are removed meanwhile may be missing. */
  async *names(): AsyncGenerator<Named> {
    const directory = (await fs.opendir(`${pinnedPath(this.descriptor)}/.`, {
      encoding: 'buffer' as BufferEncoding,
      bufferSize: DIRENTS,
    })) as unknown as AsyncIterable<Named>;
    yield* directory;
  }

  /** The start of a regular file; undefined for any other entry. Follows no link. */
  async startOf(name: DiskName, bytesMax: number): Promise<Buffer | undefined> {
    const flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK;
    const file = await fs.open(this.pathOf(name), flags).catch(() => undefined);
    if (!file) return undefined;
    try {
      if (!(await file.stat()).isFile()) return undefined;
      return await readStart(file, bytesMax);
    } finally {
      await file.close();
    }
  }

  /** Type of the entry at a name; undefined if there is none. Throws other system errors. */
  async typeOf(name: DiskName): Promise<'f' | 'd' | 's' | 'special' | undefined> {
    try {
      const stat = await fs.lstat(this.pathOf(name));
      if (stat.isDirectory()) return 'd';
      return stat.isFile() ? 'f' : stat.isSymbolicLink() ? 's' : 'special';
    } catch (error) {
      if (systemCode(error) === 'ENOENT') return undefined;
      throw error;
    }
  }

  /** Length of the file at a name; 0 for other entries, or none. Throws other system errors. */
  async fileBytesOf(name: DiskName): Promise<number> {
    try {
      const stat = await fs.lstat(this.pathOf(name));
      return stat.isFile() ? stat.size : 0;
    } catch (error) {
      if (systemCode(error) === 'ENOENT') return 0;
      throw error;
    }
  }

  /** Removes a file, a link, or an empty directory. */
  removeNamed(name: DiskName, isDirectory: boolean): Promise<void> {
    const path = this.pathOf(name);
    return isDirectory ? fs.rmdir(path) : fs.unlink(path);
  }

  /** Renames an entry, and replaces another atomically. Throws `EISDIR` for a directory. */
  rename(from: DiskName, to: DiskName): Promise<void> {
    return fs.rename(this.pathOf(from), this.pathOf(to));
  }

  /** Gives a file a second name in another directory. Follows no link. Throws like `fs`. */
  linkTo(name: DiskName, directory: TargetDirectory, newName: DiskName): Promise<void> {
    return fs.link(this.pathOf(name), directory.pathOf(newName));
  }

  /** Identity of the file at a name; undefined if there is none. Throws like `fs`. */
  async identityAt(name: DiskName): Promise<{ device: bigint; inode: bigint } | undefined> {
    try {
      const { dev, ino } = await fs.lstat(this.pathOf(name), { bigint: true });
      return { device: dev, inode: ino };
    } catch (error) {
      if (systemCode(error) === 'ENOENT') return undefined;
      throw error;
    }
  }

  /** Renames a file to a free name; otherwise throws `EEXIST`. */
  async renameNew(from: string, to: DiskName): Promise<void> {
    try {
      await fs.link(this.pathOf(from), this.pathOf(to));
    } catch (error) {
      // File systems without hard links return various errors.
      if (systemCode(error) === 'EEXIST' || (await this.look(to))) throw error;
      await this.rename(from, to);
      return;
    }
    await this.remove(from);
  }

  /**
   * Adds the owner's permissions to an existing directory, if this process is the owner and lacks
   * them. `close` restores the old mode, unless {@link hasNewAttributes} was called.
   */
  async allowChanges(): Promise<void> {
    const path = pinnedPath(this.descriptor);
    try {
      await fs.access(path, W_OK | X_OK);
    } catch (error) {
      const code = systemCode(error);
      if (code === 'EROFS') this.#refusal = error as Error;
      if (code !== 'EACCES') return;
      const { uid, mode } = await statDescriptor(this.descriptor);
      if (uid !== process.geteuid?.()) return;
      await fs.chmod(path, (mode | 0o300) & 0o7777);
      this.#modeBefore ??= mode & 0o7777;
    }
  }

  /** Call it after setting attributes, so that `close` keeps them. */
  hasNewAttributes(): void {
    this.#modeBefore = undefined;
  }

  /** Throws `EROFS` if the directory is known to be read-only. Call it before reading contents. */
  assertWritable(): void {
    if (this.#refusal) throw this.#refusal;
  }

  /** Whether the whole directory is now read-only. */
  isReadOnly(): boolean {
    try {
      accessSync(pinnedPath(this.descriptor), W_OK);
      return false;
    } catch (error) {
      return systemCode(error) === 'EROFS';
    }
  }

  /**
   * Takes a shared lock until `close`. Returns whether no other process has a lock. Returns true on
   * a file system without locks.
   */
  lock(): boolean {
    const isAlone = posix().tryLock(this.descriptor) !== false;
    posix().tryLock(this.descriptor, 'shared');
    return isAlone;
  }

  /** Removes temporary files of a killed restore. */
  async removeUnfinished(): Promise<void> {
    for await (const { name } of this.names()) {
      if (!isUnfinished(String(name))) continue;
      // The file may be removed already. Or it is a directory with names of hard-linked files.
      await this.remove(String(name)).catch(() => this.removeLinks(String(name)));
    }
  }

  /** Removes a restore's directory with names of hard-linked files. Other files in it stay. */
  async removeLinks(name: string): Promise<void> {
    const directory = await this.open(name).catch(() => undefined);
    if (!directory) return;
    try {
      const remove = (names: readonly string[]): Promise<unknown> =>
        mapLimited(names, REMOVALS, (each) => directory.remove(each).catch(() => undefined));
      let batch: string[] = [];
      for await (const named of directory.names()) {
        if (LINK_GROUP.test(String(named.name))) batch.push(String(named.name));
        if (batch.length < DIRENTS) continue;
        await remove(batch);
        batch = [];
      }
      await remove(batch);
    } finally {
      directory.close();
    }
    await this.removeNamed(name, true).catch(() => undefined);
  }

  /** Opens a subdirectory, or creates it. Throws if another entry has the name. */
  async enter(name: DiskName, shown = String(name)): Promise<TargetDirectory> {
    const path = this.pathOf(name);
    try {
      await makeDirectory(path, 0o700);
    } catch (error) {
      if (systemCode(error) !== 'EEXIST') throw error;
      return this.openToChange(name, shown);
    }
    const descriptor = await openPath(path, DIRECTORY);
    return new TargetDirectory(descriptor, this.#count, join(this.shown, shown), true);
  }

  /**
   * Replaces a file or link by a new directory. An error or a kill leaves the file. If the system
   * cannot exchange names, a kill may leave the file under a temporary name.
   */
  async replaceByDirectory(name: DiskName, shown: string): Promise<TargetDirectory> {
    const unfinished = unfinishedName();
    const directory = await this.enter(unfinished, shown);
    try {
      const old = await this.#swap(unfinished, name);
      try {
        await this.removeNamed(old, false);
      } catch (error) {
        // For example, another process has replaced the file by a directory.
        if (old === unfinished) posix().exchange(this.pathOf(old), this.pathOf(name));
        else {
          await this.rename(name, unfinished);
          await this.rename(old, name);
        }
        throw error;
      }
      return directory;
    } catch (error) {
      directory.close();
      await this.removeNamed(unfinished, true).catch(() => undefined);
      throw error;
    }
  }

  /** Gives a new entry the name of an old one. Returns the new name of the old one. */
  async #swap(unfinished: string, name: DiskName): Promise<string> {
    if (posix().exchange(this.pathOf(unfinished), this.pathOf(name))) return unfinished;
    const aside = unfinishedName();
    await this.rename(name, aside);
    try {
      await this.rename(unfinished, name);
    } catch (error) {
      await this.rename(aside, name);
      throw error;
    }
    return aside;
  }

  /** Throws `TARGET_CHANGED` if the directory could not be opened again. */
  get descriptor(): number {
    if (this.#descriptor === undefined) throw wasMoved();
    return this.#descriptor;
  }

  /** Open directories of this target. */
  get openCount(): number {
    return this.#count.open;
  }

  /** Closes the descriptor while a subdirectory is in use, because trees may be very deep. */
  async park(): Promise<void> {
    this.#identity = await identityOf(this.descriptor);
    this.#release();
  }

  /**
   * Opens the directory again, as the parent of `below`. If `below` was moved meanwhile, the
   * identity differs, and it throws `TARGET_CHANGED`.
   */
  async unpark(below: TargetDirectory): Promise<void> {
    const descriptor = await openPath(below.pathOf('..'), DIRECTORY);
    const found = await identityOf(descriptor);
    const { device, inode, bornNs } = this.#identity ?? {};
    if (found.device !== device || found.inode !== inode || found.bornNs !== bornNs) {
      closeSync(descriptor);
      throw wasMoved();
    }
    this.#descriptor = descriptor;
    this.#count.open++;
  }

  /** Creates a new empty file. */
  create(name: DiskName): Promise<fs.FileHandle> {
    return fs.open(this.pathOf(name), CREATE, 0o600);
  }

  symlink(name: DiskName, target: Buffer): Promise<void> {
    return fs.symlink(target, this.pathOf(name));
  }

  readlink(name: DiskName): Promise<Buffer | undefined> {
    return fs.readlink(this.pathOf(name), { encoding: 'buffer' }).catch(() => undefined);
  }

  /** The entry at a name, without following a link; undefined if there is none. */
  async look(name: DiskName): Promise<{ isDirectory: boolean } | undefined> {
    const stat = await fs.lstat(this.pathOf(name)).catch(() => undefined);
    return stat && { isDirectory: stat.isDirectory() };
  }

  /** Removes a file or a link. `rm` would empty a directory that replaces it meanwhile. */
  remove(name: DiskName): Promise<void> {
    return fs.unlink(this.pathOf(name));
  }

  /** Pins the entry at a name during the task, also a link; undefined if there is none. */
  async pin<T>(name: DiskName, task: (pinned: Pinned | undefined) => Promise<T>): Promise<T> {
    let descriptor: number;
    try {
      descriptor = await openPath(this.pathOf(name), O_PATH | O_NOFOLLOW);
    } catch (error) {
      if (systemCode(error) !== 'ENOENT') throw error;
      return task(undefined);
    }
    try {
      return await task(await pinnedAt(descriptor));
    } finally {
      await closeDescriptor(descriptor);
    }
  }

  /** Synchronous: closing a directory never waits for a disk. */
  close(): void {
    if (this.#descriptor === undefined) return;
    const mode = this.#modeBefore;
    this.#modeBefore = undefined;
    try {
      if (mode !== undefined) fchmodSync(this.#descriptor, mode);
    } catch {
      // The owner may have changed. The old mode is not essential.
    }
    this.#release();
  }

  #release(): void {
    if (this.#descriptor === undefined) return;
    closeSync(this.#descriptor);
    this.#descriptor = undefined;
    this.#count.open--;
  }
}

/** Start of a temporary name. Sixteen hexadecimal digits follow. */
const UNFINISHED = '.longshore-restore-';

/** Whether a name is temporary. */
export const isUnfinished = (name: string): boolean =>
  /^[0-9a-f]{16}$/.test(name.startsWith(UNFINISHED) ? name.slice(UNFINISHED.length) : '');

/** Parallel restores must not collide, so each process starts at a random number. */
let nextUnfinished: bigint | undefined;

export function unfinishedName(): string {
  nextUnfinished = BigInt.asUintN(
    64,
    (nextUnfinished ?? Buffer.from(randomBytes(8)).readBigUInt64BE()) + 1n,
  );
  return UNFINISHED + nextUnfinished.toString(16).padStart(16, '0');
}

interface OpenCount {
  open: number;
}

/** The number of a free inode is reused. The birth time, if any, tells both files apart. */
interface Identity {
  readonly device: bigint;
  readonly inode: bigint;
  readonly bornNs: bigint;
}

async function identityOf(descriptor: number): Promise<Identity> {
  const stat = await statDescriptor(descriptor, { bigint: true });
  return { device: stat.dev, inode: stat.ino, bornNs: stat.birthtimeNs };
}

const wasMoved = (): CodedError =>
  new CodedError('TARGET_CHANGED', 'another process moved a directory while it was restored');

/** Opens a directory. Adds missing permissions if this process is its owner. */
async function openOwn(
  path: string | Buffer,
): Promise<{ descriptor: number; modeBefore: number | undefined }> {
  try {
    return { descriptor: await openPath(path, DIRECTORY), modeBefore: undefined };
  } catch (error) {
    if (systemCode(error) !== 'EACCES') throw error;
    const held = await openPath(path, O_PATH | O_DIRECTORY | O_NOFOLLOW);
    try {
      const { uid, mode } = await statDescriptor(held);
      if (uid !== process.geteuid?.()) throw error;
      await fs.chmod(pinnedPath(held), (mode | 0o700) & 0o7777);
      const descriptor = await openPath(pinnedPath(held), O_RDONLY | O_DIRECTORY);
      return { descriptor, modeBefore: mode & 0o7777 };
    } finally {
      await closeDescriptor(held);
    }
  }
}

/** Reads only one entry, because a directory may have millions. */
async function isEmpty(descriptor: number): Promise<boolean> {
  const entries = await fs.opendir(`${pinnedPath(descriptor)}/.`);
  try {
    return (await entries.read()) === null;
  } finally {
    await entries.close();
  }
}

function nodeOf(stat: BigIntStats): SpecialNode | undefined {
  if (stat.isFIFO()) return { kind: 'fifo', device: 0n };
  if (stat.isCharacterDevice()) return { kind: 'char', device: stat.rdev };
  return stat.isBlockDevice() ? { kind: 'block', device: stat.rdev } : undefined;
}

/** Describes an open descriptor. */
export function pinnedAt(descriptor: number): Promise<Pinned> {
  return new Promise((resolve, reject) => {
    fstat(descriptor, { bigint: true }, (error, stat) => {
      if (error) {
        reject(error);
        return;
      }
      resolve({
        descriptor,
        type: stat.isFile() ? 'f' : stat.isSymbolicLink() ? 's' : 'other',
        isSingle: stat.nlink === 1n,
        size: Number(stat.size),
        node: nodeOf(stat),
        attributes: {
          mode: Number(stat.mode) & 0o7777,
          uid: Number(stat.uid),
          gid: Number(stat.gid),
          mtimeNs: stat.mtimeNs,
        },
      });
    });
  });
}
