import { CodedError, formatBytes, isCanceled, messageOf, printable } from '../base/index.ts';
import { getSnapshot, loadPoliciesOf } from '../snapshot/index.ts';
import {
  type Change,
  type InPlaceCounters,
  newInPlaceCounters,
  restoreBlocksInPlace,
  restoreTreeInPlace,
} from '../uploader/index.ts';
import { type LackingAttributes, RestoreProgress } from './restore-progress.ts';
import { assertMounted, assertSameVolume, identityOf } from './same-volume.ts';
import { extrasOf, flagOf } from './uploader-config.ts';
import { assertReadable, assertVolume, type VolumeMoveOptions } from './volume.ts';

/** Report lines that are kept, and characters of each. The report goes into a CR. Our choices. */
const LINES_MAX = 50;
const LINE_CHARS_MAX = 200;

/** Changes that a restore in place made to a volume, or would make. */
export interface InPlaceReport extends InPlaceCounters {
  readonly dryRun: boolean;
  /** Size of the snapshot. */
  readonly totalBytes: number;
  /** The first entries that differed, a line each: action, path and bytes. */
  readonly changes: readonly string[];
}

export interface RestoreInPlaceOptions extends Omit<VolumeMoveOptions, 'config'> {
  /** `dataMoverConfig`: whether extended attributes, hard links and devices are restored. */
  readonly config?: Readonly<Record<string, string>>;
  readonly snapshotId: string;
  readonly dryRun: boolean;
  readonly keepExtra: boolean;
  readonly removeFirst?: boolean | undefined;
  readonly deleteExcluded?: boolean | undefined;
  readonly maxWriteBytes?: number | undefined;
  /** Aborted, with an error as its reason, if another pod uses the volume. Stops at once. */
  readonly usedByOther: AbortSignal;
  /** Called when all is done, before the result counts. */
  readonly onDone: (report: InPlaceReport, signal: AbortSignal) => Promise<void>;
}

/**
 * Brings a mounted volume back to a snapshot, and writes only the differences. A later run
 * completes an interrupted run. Throws `SNAPSHOT_NOT_FOUND`, `VOLUME_GONE`, `STALLED`, `CANCELED`,
 * `TARGET_IN_USE`, `WRITE_LIMIT`, and errors of the restore.
 */
export async function restoreVolumeInPlace(
  options: RestoreInPlaceOptions,
): Promise<InPlaceReport & LackingAttributes> {
  const { repository, path, isBlock, logger, snapshotId, usedByOther, dryRun } = options;
  const extras = extrasOf(options.config ?? {});
  const devices = flagOf(options.config ?? {}, 'longshore.devices');
  const result = newInPlaceCounters();
  const changes: string[] = [];
  let steps = 0;
  const progress = new RestoreProgress(
    options,
    () => result.removed + result.bytesWritten + result.bytesCompared + steps,
  );
  const { counters, watch } = progress;
  const onChange = (change: Change): void => {
    if (changes.length < LINES_MAX) changes.push(lineOf(change, path));
    logger.debug({ ...change }, 'the volume differs from the snapshot');
  };
  try {
    return await watch.run(async (given) => {
      const signal = AbortSignal.any([given, usedByOther]);
      await assertVolume(path, isBlock);
      const snapshot = await getSnapshot(repository, snapshotId);
      assertReadable(snapshot);
      const { rootEntry, stats, incomplete } = snapshot;
      if (incomplete !== undefined) {
        const text = `snapshot ${snapshotId} is incomplete: ${incomplete}`;
        throw new CodedError('SNAPSHOT_INCOMPLETE', text);
      }
      if (!rootEntry) {
        throw new CodedError('DAMAGED_SNAPSHOT', `snapshot ${snapshotId} has no root`);
      }
      const totalBytes = rootEntry.summary?.size ?? stats.totalSize;
      progress.totalBytes = totalBytes;
      if (!isBlock) await assertMounted(path);
      await progress.ask(options.assertUsable?.('before', signal));
      const volume = await identityOf(path);
      const restore = isBlock ? restoreBlocksInPlace : restoreTreeInPlace;
      const keepsExcluded = !isBlock && !options.keepExtra && options.deleteExcluded !== true;
      const excluded = keepsExcluded
        ? { policies: await loadPoliciesOf(repository, snapshot), root: rootEntry, path: '' }
        : undefined;
      await restore(repository, rootEntry, path, {
        excluded,
        extras,
        devices,
        removeFirst: options.removeFirst === true,
        logger,
        signal,
        counters,
        result,
        dryRun,
        keepExtra: options.keepExtra,
        onChange,
        ...(options.maxWriteBytes !== undefined && { maxWriteBytes: options.maxWriteBytes }),
        onStep: () => steps++,
        onUnchecked: (text) => logger.debug({ text }, 'could not check everything'),
      });
      counters.isFlushing = false;
      if (!isBlock) await assertMounted(path);
      await assertSameVolume(path, volume, 'written');
      await progress.ask(options.assertUsable?.('after', signal));
      signal.throwIfAborted();
      const report = { dryRun, totalBytes, ...result, changes };
      await progress.ask(options.onDone(report, signal));
      watch.finish(totalBytes);
      const { note, firstLacking } = progress;
      return { ...report, note, firstLacking };
    });
  } catch (error) {
    if (usedByOther.aborted) throw usedByOther.reason;
    throw withState(error, result, dryRun);
  } finally {
    watch.stop();
  }
}

/** Users must learn whether the failed restore changed the volume. */
function withState(error: unknown, result: InPlaceCounters, dryRun: boolean): unknown {
  const { bytesWritten, removed, created, replaced, attributes } = result;
  const isTouched = bytesWritten + removed + created + replaced + attributes > 0;
  if (dryRun || !isTouched || isCanceled(error)) return error;
  const text = `${messageOf(error)} (${formatBytes(bytesWritten)} had been written and ${removed} entries removed: the volume may hold files or blocks of before and of the snapshot; restore it again)`;
  return new Error(text, { cause: error });
}

function lineOf({ kind, path, bytes }: Change, root: string): string {
  const shown = printable(path.slice(root.length) || '/');
  const kept = shown.length > LINE_CHARS_MAX ? `${shown.slice(0, LINE_CHARS_MAX)}...` : shown;
  return `${kind} ${kept}${bytes > 0 ? ` (${formatBytes(bytes)})` : ''}`;
}
