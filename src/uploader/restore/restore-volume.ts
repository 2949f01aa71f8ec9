import { constants, fsync, type Stats } from 'node:fs';
import * as fs from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { promisify } from 'node:util';
import { CodedError, isCode, messageOf, pinnedPath, systemCode } from '../../base/index.ts';
import {
  type ContentManager,
  listPieces,
  readObject,
  type Repository,
} from '../../repository/index.ts';
import { decodeDirectory, type DirectoryEntry, isCheckpointed } from '../../snapshot/index.ts';
import { CHECKPOINT_REASON } from '../upload/open-tree-store.ts';
import { assertWhole, PieceWriter } from './piece-writer.ts';
import {
  incompleteSnapshot,
  type RestoreCounters,
  type RestoreOptions,
  RestoreReport,
} from './restore-report.ts';
import { RestoreWriter } from './restore-writer.ts';
import { deviceBytes } from '../upload/device-upload.ts';
import { targetRoot } from './same-mount.ts';
import { TargetDirectory, unfinishedName } from './target-directory.ts';

const flush = promisify(fsync);
const { O_WRONLY, O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK } = constants;
const NO_VOLUME = 'it is neither a block device nor an image file';
const IS_THERE = 'it already exists, and is not to be overwritten';

/**
 * Restores the file of a raw-volume snapshot over a device or an image. Refuses an incomplete
 * snapshot, because its pieces are not at their real offsets. With `overwrite: 'never'` writes only
 * a new image. Throws `TARGET_UNUSABLE`, `TARGET_IN_USE`, `NOT_A_RAW_VOLUME`,
 * `SNAPSHOT_INCOMPLETE`, `RESTORE_INCOMPLETE`.
 */
export async function restoreBlocks(
  repository: Repository,
  root: DirectoryEntry,
  target: string,
  options: RestoreOptions,
): Promise<RestoreCounters> {
  const entry = await rawVolumeOf(repository.contents, root);
  const report = new RestoreReport(options);
  const { counters } = report;
  const writer = new RestoreWriter(repository, options.signal);
  const volume = new PieceWriter(repository, writer, options.signal, (bytes) => {
    counters.bytes += bytes;
  });
  const pieces = await listPieces(repository.contents, entry.objectId);
  try {
    assertWhole(entry, pieces);
  } catch (error) {
    report.fail(target, error);
    report.throwIfFailed();
  }
  const file = await openVolume(target, entry.size, options);
  counters.bytesFound += entry.size;
  counters.filesFound++;
  try {
    await volume.write(pieces, file.fd, options.sparse === true && file.isNew);
    counters.isFlushing = true;
    await file.handle.sync();
    await file.replacement?.publish();
    counters.files++;
  } catch (error) {
    const isFull = systemCode(error) === 'ENOSPC' && file.replacement !== undefined;
    report.fail(target, isFull ? noRoom(error) : error);
  } finally {
    await file.handle.close();
    await file.replacement?.close();
  }
  report.throwIfFailed();
  return counters;
}

/** The only file of a raw-volume snapshot. Throws `NOT_A_RAW_VOLUME`, `SNAPSHOT_INCOMPLETE`. */
export async function rawVolumeOf(
  contents: ContentManager,
  root: DirectoryEntry,
): Promise<DirectoryEntry> {
  if (root.type === 'f') {
    if (isCheckpointed(root.name)) throw incompleteSnapshot('volume', CHECKPOINT_REASON);
    return root;
  }
  const { entries, summary } = decodeDirectory(await readObject(contents, root.objectId));
  if (summary?.incomplete !== undefined) throw incompleteSnapshot('volume', summary.incomplete);
  const [file] = entries;
  if (file?.type === 'f' && entries.length === 1) return file;
  const text = 'this snapshot is not of a raw volume: it does not hold exactly one file';
  throw new CodedError('NOT_A_RAW_VOLUME', text);
}

interface OpenVolume {
  readonly handle: fs.FileHandle;
  readonly fd: number;
  readonly isNew: boolean;
  readonly replacement?: Replacement | undefined;
}

async function openVolume(
  target: string,
  sizeBytes: number,
  { sparse, overwrite, ownTarget }: RestoreOptions,
): Promise<OpenVolume> {
  const unusable = (what: string, cause?: unknown): CodedError =>
    new CodedError('TARGET_UNUSABLE', `cannot restore to ${target}: ${what}`, { cause });
  let isMade = false;
  const create = (): Promise<fs.FileHandle> => {
    isMade = true;
    return fs.open(target, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600);
  };
  const open = async (): Promise<fs.FileHandle> => {
    if (overwrite === 'never') return create();
    try {
      return await fs.open(target, O_WRONLY | O_NONBLOCK);
    } catch (error) {
      if (systemCode(error) !== 'ENOENT') throw error;
      return create();
    }
  };
  // Check the opened file, because the name may lead elsewhere by then.
  const handle = await open().catch((cause: unknown) => {
    if (overwrite === 'never' && systemCode(cause) === 'EEXIST') throw unusable(IS_THERE, cause);
    const isOther = ['EISDIR', 'ENXIO'].includes(systemCode(cause) ?? '');
    throw unusable(isOther ? NO_VOLUME : messageOf(cause), cause);
  });
  let replacement: Replacement | undefined;
  try {
    const stat = await handle.stat();
    if (stat.isBlockDevice()) {
      const available = await deviceBytes(pinnedPath(handle.fd));
      if (available < sizeBytes) {
        throw unusable(`the device has ${available} bytes, but the volume needs ${sizeBytes}`);
      }
      if (ownTarget !== true) return { handle, fd: handle.fd, isNew: false };
      const own = await openAlone(handle, target);
      await handle.close();
      return { handle: own, fd: own.fd, isNew: false };
    }
    if (!stat.isFile()) throw unusable(NO_VOLUME);
    if (!isMade && ownTarget === true) replacement = await Replacement.of(target, handle.fd, stat);
    if (replacement) await handle.close();
    const image = replacement?.handle ?? handle;
    await image.truncate(0);
    if (sparse === true) await image.truncate(sizeBytes);
    return { handle: image, fd: image.fd, isNew: true, replacement };
  } catch (cause) {
    // The handle may be closed already.
    await handle.close().catch(() => undefined);
    await replacement?.handle.close().catch(() => undefined);
    await replacement?.close();
    if (isCode(cause, 'TARGET_UNUSABLE', 'TARGET_IN_USE')) throw cause;
    throw unusable(messageOf(cause), cause);
  }
}

/** Codes of a directory in which this process can make no file. */
const NO_FILES = ['EACCES', 'EPERM', 'EROFS'];

/** A new image beside an existing one. A failure or a kill leaves the existing image. */
class Replacement {
  readonly handle: fs.FileHandle;
  readonly #directory: TargetDirectory;
  readonly #unfinished: string;
  readonly #name: string;
  #isPublished = false;

  private constructor(
    handle: fs.FileHandle,
    directory: TargetDirectory,
    unfinished: string,
    name: string,
  ) {
    this.handle = handle;
    this.#directory = directory;
    this.#unfinished = unfinished;
    this.#name = name;
  }

  /** Undefined if no file beside it can take its name: then the image itself is written. */
  static async of(target: string, fd: number, old: Stats): Promise<Replacement | undefined> {
    const path = await fs.realpath(target);
    const directory = await TargetDirectory.openRoot(dirname(path));
    const unfinished = unfinishedName();
    try {
      // A file that is mounted by itself, for example into a container.
      const isMount =
        targetRoot(path, fd).mountId !== targetRoot(path, directory.descriptor).mountId;
      if (directory.lock() && !isMount) await directory.removeUnfinished();
      const handle = isMount ? undefined : await directory.create(unfinished).catch(unlessRefused);
      if (!handle) {
        directory.close();
        return undefined;
      }
      await handle.chown(old.uid, old.gid).catch(() => undefined);
      await handle.chmod(old.mode & 0o7777).catch(() => undefined);
      return new Replacement(handle, directory, unfinished, basename(path));
    } catch (error) {
      directory.close();
      throw error;
    }
  }

  /** Gives it the name of the existing image. Call it when all bytes are on the disk. */
  async publish(): Promise<void> {
    await this.#directory.rename(this.#unfinished, this.#name);
    this.#isPublished = true;
    // Some file systems cannot flush directories.
    await flush(this.#directory.descriptor).catch(() => undefined);
  }

  async close(): Promise<void> {
    if (!this.#isPublished) await this.#directory.remove(this.#unfinished).catch(() => undefined);
    this.#directory.close();
  }
}

function unlessRefused(error: unknown): undefined {
  if (!NO_FILES.includes(systemCode(error) ?? '')) throw error;
}

function noRoom(cause: unknown): Error {
  const text = `${messageOf(cause)}. There is no room for a new image beside the existing one: use --in-place, or remove the old image first`;
  return Object.assign(new Error(text, { cause }), { code: systemCode(cause) });
}

/** The kernel refuses `O_EXCL` for a device that is mounted, or part of another device. */
async function openAlone(device: fs.FileHandle, target: string): Promise<fs.FileHandle> {
  try {
    return await fs.open(pinnedPath(device.fd), O_WRONLY | O_NONBLOCK | O_EXCL);
  } catch (cause) {
    if (systemCode(cause) !== 'EBUSY') throw cause;
    const text = `${target} is in use: it is mounted, or a part of another device; unmount it first`;
    throw new CodedError('TARGET_IN_USE', text, { cause });
  }
}
