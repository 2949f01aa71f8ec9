import * as fs from 'node:fs/promises';
import { CodedError, isCode, messageOf } from '../base/index.ts';
import {
  type ContentManager,
  listPieces,
  readObject,
  type Repository,
} from '../repository/index.ts';
import { decodeDirectory, type DirectoryEntry } from '../snapshot/index.ts';
import { PieceWriter } from './piece-writer.ts';
import { type RestoreCounters, type RestoreOptions, RestoreReport } from './restore-report.ts';
import { RestoreWriter } from './restore-writer.ts';
import { deviceBytes } from './upload.ts';

/**
 * Restores the one file of a raw-volume snapshot over a device or an image.
 * Throws `TARGET_UNUSABLE`, `NOT_A_RAW_VOLUME`, `RESTORE_INCOMPLETE`.
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
  const file = await openVolume(target, entry.size, options);
  counters.bytesFound += entry.size;
  counters.filesFound++;
  try {
    await volume.write(pieces, file.fd, options.sparse === true && file.isNew);
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

async function rawVolumeOf(
  contents: ContentManager,
  root: DirectoryEntry,
): Promise<DirectoryEntry> {
  if (root.type === 'f') return root;
  const { entries } = decodeDirectory(await readObject(contents, root.objectId));
  const [file] = entries;
  if (file?.type === 'f' && entries.length === 1) return file;
  const text = 'this snapshot is not of a raw volume: it does not hold exactly one file';
  throw new CodedError('NOT_A_RAW_VOLUME', text);
}

async function openVolume(
  target: string,
  sizeBytes: number,
  { sparse }: RestoreOptions,
): Promise<{ handle: fs.FileHandle; fd: number; isNew: boolean }> {
  const stat = await fs.stat(target).catch(() => undefined);
  const unusable = (what: string, cause?: unknown): CodedError =>
    new CodedError('TARGET_UNUSABLE', `cannot restore to ${target}: ${what}`, { cause });
  if (stat && !stat.isFile() && !stat.isBlockDevice()) {
    throw unusable('it is neither a block device nor an image file');
  }
  try {
    if (stat?.isBlockDevice()) {
      const available = await deviceBytes(target);
      if (available < sizeBytes) {
        throw unusable(`the device has ${available} bytes and the volume needs ${sizeBytes}`);
      }
      const handle = await fs.open(target, 'r+');
      return { handle, fd: handle.fd, isNew: false };
    }
    const handle = await fs.open(target, 'w', 0o600);
    if (sparse === true) await handle.truncate(sizeBytes);
    return { handle, fd: handle.fd, isNew: true };
  } catch (cause) {
    if (isCode(cause, 'TARGET_UNUSABLE')) throw cause;
    throw unusable(messageOf(cause), cause);
  }
}
