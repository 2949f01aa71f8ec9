import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError } from '../base/index.ts';
import { getSnapshot } from '../snapshot/index.ts';
import { restoreBlocks, restoreTree } from '../uploader/index.ts';
import { hasDoneMark, MARK_DIRECTORY, removeMarks, writeDoneMark } from './restore-done-file.ts';
import { describeWritten, isKept, type WrittenVolume } from './written-volume.ts';
import { type LackingAttributes, RestoreProgress } from './restore-progress.ts';
import { assertMounted, assertSameVolume, identityOf } from './same-volume.ts';
import { countOf, extrasOf, flagOf } from './uploader-config.ts';
import { assertReadable, assertVolume, type VolumeMoveOptions } from './volume.ts';

/** Kubelets report the end of a container within seconds. Our choice. */
const LATE_MS = 15_000;

export interface RestoreVolumeOptions extends VolumeMoveOptions {
  readonly snapshotId: string;
  /** Milliseconds that a node may take to report that a pod continued; default 15 s. */
  readonly lateMs?: number;
  /** The file that a pod waits for until its volume is restored; undefined if no pod waits. */
  readonly doneMark?: {
    readonly name: string;
    /**
     * An earlier mover of the same restore may have written the mark. If it did, the pod may be
     * running, and nothing is written.
     */
    readonly mayBeThere: boolean;
    /** Whether the waiting pod found all its marks and continued. The mark is then gone. */
    readonly wasTaken?: (signal: AbortSignal) => Promise<boolean>;
    /**
     * The value that an earlier mover of the same restore gave to {@link onRestored}. Its mark may
     * exist, so the pod may be running, even if its node reports that late. Only the mark is
     * written then.
     */
    readonly restored?: WrittenVolume | undefined;
    /**
     * Called when all data are in the volume, right before the mark is made. Later movers have to
     * know. The mark is made after it resolves.
     */
    readonly onRestored?: (written: WrittenVolume, signal: AbortSignal) => Promise<void>;
    /** Called as soon as the volume is known to have lost the data of {@link restored}. */
    readonly onLost?: (signal: AbortSignal) => Promise<void>;
  };
}

/** Whether the pod continued. The node may report it with a delay. */
async function isTaken(
  { wasTaken }: NonNullable<RestoreVolumeOptions['doneMark']>,
  lateMs: number,
  signal: AbortSignal,
): Promise<boolean> {
  if ((await wasTaken?.(signal)) === true) return true;
  await sleep(lateMs, undefined, { signal });
  return (await wasTaken?.(signal)) === true;
}

/**
 * Writes a snapshot over a volume. With a mark, the order is data, flush, mark. Throws
 * `SNAPSHOT_NOT_FOUND`, `VOLUME_GONE`, `BAD_MOVER_CONFIG`, `NO_DONE_MARK`, `STALLED`, `CANCELED`,
 * and errors of the restore.
 */
export async function restoreVolume(
  options: RestoreVolumeOptions,
): Promise<{ totalBytes: number } & LackingAttributes> {
  const { repository, path, isBlock, logger, config, snapshotId } = options;
  countOf(config, 'ParallelFilesDownload');
  const sparse = flagOf(config, 'WriteSparseFiles');
  const extras = extrasOf(config);
  const devices = flagOf(config, 'longshore.devices');
  const { doneMark: mark } = options;
  const progress = new RestoreProgress(options);
  const { counters, watch } = progress;
  try {
    await watch.run(async (signal) => {
      await assertVolume(path, isBlock);
      const snapshot = await getSnapshot(repository, snapshotId);
      assertReadable(snapshot);
      const { rootEntry, stats, incomplete } = snapshot;
      // A restore by a CR must be complete: a part of a snapshot would end as Completed.
      if (incomplete !== undefined) {
        throw new CodedError(
          'DAMAGED_SNAPSHOT',
          `snapshot ${snapshotId} is incomplete: ${incomplete}`,
        );
      }
      if (!rootEntry) {
        throw new CodedError('DAMAGED_SNAPSHOT', `snapshot ${snapshotId} has no root`);
      }
      progress.totalBytes = rootEntry.summary?.size ?? stats.totalSize;
      // The kubelet's own directory, before the mount, says nothing about the volume's data.
      if (!isBlock) await assertMounted(path);
      const isRestored = mark?.restored !== undefined && (await isKept(path, mark.restored));
      // Cancel the record now: later movers must not trust it, even if this mover or the pod fails.
      if (mark?.restored && !isRestored) await progress.ask(mark.onLost?.(signal));
      if (mark && (mark.mayBeThere || isRestored)) {
        const isDone =
          (await hasDoneMark(path, mark.name)) ||
          (await isTaken(mark, options.lateMs ?? LATE_MS, signal));
        if (isDone) {
          const text = 'an earlier data mover has already restored the volume';
          logger.info({ snapshot: snapshotId }, text);
          return;
        }
      }
      await progress.ask(options.assertUsable?.('before', signal));
      const volume = await identityOf(path);
      if (!isBlock) await assertMounted(path);
      if (isRestored) {
        logger.info({ snapshot: snapshotId }, 'the data are restored, only the mark is missing');
      } else {
        if (mark) await removeMarks(path, signal);
        const restore = isBlock ? restoreBlocks : restoreTree;
        await restore(repository, rootEntry, path, {
          logger,
          signal,
          counters,
          overwrite: 'always',
          sparse,
          extras,
          devices,
          ...(mark && { leaveOut: MARK_DIRECTORY }),
        });
        counters.isFlushing = false;
      }
      await assertSameVolume(path, volume, 'written');
      await progress.ask(options.assertUsable?.('after', signal));
      if (!mark) return;
      signal.throwIfAborted();
      const beforeMark = async (): Promise<void> =>
        progress.ask(mark.onRestored?.(await describeWritten(path), signal));
      await writeDoneMark({
        volume: path,
        name: mark.name,
        repository,
        signal,
        ...(isRestored ? { root: undefined } : { root: rootEntry, beforeMark }),
      });
    });
    const totalBytes = progress.totalBytes ?? 0;
    watch.finish(totalBytes);
    const { note, firstLacking } = progress;
    return { totalBytes, note, firstLacking };
  } finally {
    watch.stop();
  }
}
