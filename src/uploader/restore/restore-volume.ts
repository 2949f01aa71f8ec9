import { constants } from 'node:fs';
import * as fs from 'node:fs/promises';
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
    counters.files++;
  } catch (error) {
    report.fail(target, error);
  } finally {
    await file.handle.close();
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

async function openVolume(
  target: string,
  sizeBytes: number,
  { sparse, overwrite, unusedDevice }: RestoreOptions,
): Promise<{ handle: fs.FileHandle; fd: number; isNew: boolean }> {
  const unusable = (what: string, cause?: unknown): CodedError =>
    new CodedError('TARGET_UNUSABLE', `cannot restore to ${target}: ${what}`, { cause });
  const create = (): Promise<fs.FileHandle> =>
    fs.open(target, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600);
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
  try {
    const stat = await handle.stat();
    if (stat.isBlockDevice()) {
      const available = await deviceBytes(pinnedPath(handle.fd));
      if (available < sizeBytes) {
        throw unusable(`the device has ${available} bytes, but the volume needs ${sizeBytes}`);
      }
      if (unusedDevice !== true) return { handle, fd: handle.fd, isNew: false };
      const own = await openAlone(handle, target);
      await handle.close();
      return { handle: own, fd: own.fd, isNew: false };
    }
    if (!stat.isFile()) throw unusable(NO_VOLUME);
    await handle.truncate(0);
    if (sparse === true) await handle.truncate(sizeBytes);
    return { handle, fd: handle.fd, isNew: true };
  } catch (cause) {
    await handle.close();
    if (isCode(cause, 'TARGET_UNUSABLE', 'TARGET_IN_USE')) throw cause;
    throw unusable(messageOf(cause), cause);
  }
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
