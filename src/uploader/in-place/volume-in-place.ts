import { constants } from 'node:fs';
import * as fs from 'node:fs/promises';
import { CodedError, messageOf, pinnedPath, systemCode } from '../../base/index.ts';
import type { Repository } from '../../repository/index.ts';
import { deviceBytes } from '../upload/device-upload.ts';
import { PieceWriter } from '../restore/piece-writer.ts';
import { newRestoreCounters, RestoreReport } from '../restore/restore-report.ts';
import { rawVolumeOf } from '../restore/restore-volume.ts';
import { RestoreWriter } from '../restore/restore-writer.ts';
import { FileComparer } from './difference.ts';
import { DifferenceWriter } from './difference-writer.ts';
import { FilePieces } from './file-pieces.ts';
import { asPartlyWritten } from './partly-written-error.ts';
import { Guard } from './open-files-guard.ts';
import {
  type InPlaceCounters,
  type InPlaceOptions,
  newInPlaceCounters,
  WriteBudget,
} from './in-place-report.ts';
import { RangeComparer } from './range-comparer.ts';

const { O_RDONLY, O_RDWR, O_EXCL, O_NONBLOCK } = constants;

/**
 * Brings a device, or an image of exactly the volume's size, back to a snapshot. Reads it, and
 * writes the differing contents. Finds all differences before the first write. Throws
 * `TARGET_UNUSABLE`, `TARGET_IN_USE`, `WRITE_LIMIT`, and errors of `restoreBlocks`.
 */
export async function restoreBlocksInPlace(
  repository: Repository,
  root: Parameters<typeof rawVolumeOf>[1],
  target: string,
  options: InPlaceOptions,
): Promise<InPlaceCounters> {
  const { signal, counters = newRestoreCounters(), result = newInPlaceCounters() } = options;
  const entry = await rawVolumeOf(repository.contents, root);
  counters.filesFound++;
  counters.bytesFound += entry.size;
  const volume = await openVolume(target, entry.size, options.dryRun === true);
  const report = new RestoreReport({ ...options, counters });
  try {
    await using guard = await Guard.over(
      { path: target, descriptor: volume.handle.fd, ...volume.device },
      options,
    );
    const pieces = new FilePieces(repository, entry, signal);
    const comparer = new FileComparer(repository, new RangeComparer(repository, signal), signal, {
      onCompared: (bytes, isRead) => {
        counters.bytes += bytes;
        counters.bytesSkipped += bytes;
        if (isRead) result.bytesCompared += bytes;
      },
    });
    const difference = await comparer.compare(pieces, volume.handle.fd);
    result.bytesDifferent = difference.bytes;
    if (difference.pieces === 0) result.unchanged++;
    else {
      await options.onChange?.({ kind: 'change', path: target, bytes: difference.bytes });
      new WriteBudget(options.maxWriteBytes).assertEnough(result);
      result.changed++;
      const writer = new PieceWriter(
        repository,
        new RestoreWriter(repository, signal),
        signal,
        (bytes) => {
          result.bytesWritten += bytes;
          counters.bytesSkipped -= bytes;
        },
      );
      if (options.dryRun !== true) {
        const differences = new DifferenceWriter(repository, writer, signal);
        await differences.assertThere(pieces, difference);
        try {
          await differences.write(pieces, difference, volume.handle.fd);
          counters.isFlushing = true;
          await volume.handle.sync();
        } catch (error) {
          throw asPartlyWritten(error);
        }
      }
    }
    counters.files++;
    if (options.dryRun !== true) await guard.assertStillUnused();
  } catch (error) {
    if (!isTold(error)) report.fail(target, error);
    else throw error;
  } finally {
    await volume.handle.close();
  }
  report.throwIfFailed();
  return result;
}

/** Errors whose message needs no "cannot restore" before it. */
const isTold = (error: unknown): boolean =>
  error instanceof CodedError && ['TARGET_IN_USE', 'WRITE_LIMIT'].includes(error.code);

async function openVolume(
  target: string,
  sizeBytes: number,
  isReadOnly: boolean,
): Promise<{ handle: fs.FileHandle; device: { deviceNumber?: number } }> {
  const unusable = (what: string, cause?: unknown): CodedError =>
    new CodedError('TARGET_UNUSABLE', `cannot restore to ${target}: ${what}`, { cause });
  // Checked before it is opened for writing, and opened again through the checked descriptor.
  const looked = await fs.open(target, O_RDONLY | O_NONBLOCK).catch((cause: unknown) => {
    const isMissing = systemCode(cause) === 'ENOENT';
    const text = 'it does not exist; --in-place needs the volume that is to be brought back';
    throw unusable(isMissing ? text : messageOf(cause), cause);
  });
  try {
    const stat = await looked.stat();
    const isDevice = stat.isBlockDevice();
    if (!isDevice && !stat.isFile()) {
      throw unusable('it is neither a block device nor an image file');
    }
    const found = isDevice ? await deviceBytes(pinnedPath(looked.fd)) : stat.size;
    if (found !== sizeBytes) {
      throw unusable(
        `it has ${found} bytes, but the volume of the snapshot has ${sizeBytes}; --in-place needs the same size`,
      );
    }
    // The kernel refuses `O_EXCL` for a device that is mounted, or part of another device.
    const flags = (isReadOnly ? O_RDONLY : O_RDWR) | O_NONBLOCK | (isDevice ? O_EXCL : 0);
    const handle = await fs.open(pinnedPath(looked.fd), flags).catch((cause: unknown) => {
      if (systemCode(cause) !== 'EBUSY') throw unusable(messageOf(cause), cause);
      const text = `${target} is in use: it is mounted, or a part of another device; unmount it first`;
      throw new CodedError('TARGET_IN_USE', text, { cause });
    });
    return { handle, device: isDevice ? { deviceNumber: stat.rdev } : {} };
  } finally {
    await looked.close();
  }
}
