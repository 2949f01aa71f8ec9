import * as fs from 'node:fs/promises';
import { dirname } from 'node:path';
import { CanceledError, CodedError, formatBytes, type Logger, printable } from '../base/index.ts';
import type { Repository } from '../repository/index.ts';
import {
  getSnapshot,
  listReadableSnapshots,
  type Policy,
  policySchema,
  putPolicy,
  type Snapshot,
  type SourceInfo,
} from '../snapshot/index.ts';
import {
  createSnapshot,
  deviceBytes,
  newRestoreCounters,
  newUploadCounters,
  restoreBlocks,
  restoreTree,
} from '../uploader/index.ts';
import { type Progress, type ProgressWatch, watchProgress } from './progress.ts';

/** Who asks: part of the path that snapshots are recorded under, and a tag (Velero: pkg/uploader/types.go). */
export const REQUESTOR = 'snapshot-data-upload-download';
const UPLOADER = 'kopia';
const PIN = 'velero-pin';
/** UID of the DataUpload: one that is served again, after its mover was killed or cut off, finds what that one finished. */
export const UPLOAD_TAG = 'longshore-data-upload';
/** Velero keeps all snapshots until their backup is deleted: the largest number that its policy can hold. */
const KEEP_ALL = 2 ** 31 - 1;
const ERRORS_SHOWN_MAX = 11;

/** Velero's client of every repository. */
export const REPOSITORY_CLIENT = { username: 'default', hostname: 'default' };

export interface VolumeMoveOptions {
  readonly repository: Repository;
  /** Where the volume is mounted, or its device. */
  readonly path: string;
  readonly isBlock: boolean;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  /** `spec.dataMoverConfig`. */
  readonly config: Readonly<Record<string, string>>;
  /** Called at a bounded rate, never going back; a last time with all done. */
  readonly onProgress: (progress: Progress) => void;
  readonly progressIntervalMs: number;
  /** When nothing moves for this long, no byte, no entry, no answer of the storage, the move fails. */
  readonly stallMs: number;
  /** What an ended move may take to stop without any sign of life, before it is left behind; default 30 s. */
  readonly graceMs?: number;
}

export interface BackupVolumeOptions extends VolumeMoveOptions {
  readonly sourceNamespace: string;
  readonly sourcePvc: string;
  readonly operationId: string;
  /** UID of the DataUpload. */
  readonly uid: string;
  /** Compressor for the data; none without it, as Velero's data mover has it. */
  readonly compression?: string | undefined;
  /** Large files read at once, where {@link VolumeMoveOptions.config} does not say. */
  readonly parallelFiles?: number | undefined;
}

export interface BackupVolumeResult {
  readonly snapshotId: string;
  readonly totalBytes: number;
  readonly incrementalBytes: number;
}

/** Under which source the volume of a PVC is recorded, in any repository of Velero. */
export const volumeSource = (namespace: string, pvc: string): SourceInfo => ({
  host: REPOSITORY_CLIENT.hostname,
  userName: REPOSITORY_CLIENT.username,
  path: `${REQUESTOR}/${UPLOADER}/${namespace}/${pvc}`,
});

/**
 * Stores a volume as Velero's data mover does: policy, tags, pin and source are its own. Whatever of the volume can't
 * be read fails the backup, and no snapshot is left that looks whole. What an earlier mover of the DataUpload has stored to
 * the end, without its word coming through, is the result: a second snapshot would stay for good, since only one is named
 * on the CR.
 * Throws `VOLUME_INCOMPLETE`, `BAD_MOVER_CONFIG`, `STALLED`, `CANCELED`, and what the upload throws.
 */
export async function backupVolume(options: BackupVolumeOptions): Promise<BackupVolumeResult> {
  const { repository, path, isBlock, logger, config } = options;
  const source = volumeSource(options.sourceNamespace, options.sourcePvc);
  const parallel = countOf(config, 'ParallelFilesUpload') ?? options.parallelFiles;
  const counters = newUploadCounters();
  let estimate: number | undefined;
  const unread: UnreadEntry[] = [];
  const progress = watchProgress(options, () => {
    const doneBytes = counters.bytesRead + counters.cachedBytes;
    const entries = counters.files + counters.cachedFiles + counters.directories + counters.skipped;
    const checked = entries + counters.errors + counters.objectsChecked;
    return {
      doneBytes,
      totalBytes: estimate === undefined ? undefined : Math.max(estimate, doneBytes),
      moved: doneBytes + counters.bytesPacked + checked + repository.tasksDone,
      answers: repository.answers,
      waitsFor: repository.isWaitingForStorage ? 'storage' : 'volume',
    };
  });
  try {
    const { id, snapshot, isNew } = await progress.run(async (signal) => {
      await assertVolume(path, isBlock);
      const before = await finishedBefore(repository, source, options.uid);
      if (before) {
        logger.info({ snapshot: before.id }, 'an earlier data mover has stored the volume already');
        // How much of it was new, nobody knows any more.
        return { id: before.id, snapshot: before, isNew: false };
      }
      await putPolicy(repository, source, volumePolicy(parallel, options.compression));
      await repository.flush();
      estimate = await estimatedBytes(options, source);
      const created = await createSnapshot(repository, path, {
        source,
        logger,
        signal,
        counters,
        block: isBlock,
        onFailure: ({ error, ignored }) => {
          if (!ignored && unread.length < ERRORS_SHOWN_MAX) unread.push(error);
        },
        description: 'Kopia Uploader',
        pins: [PIN],
        tags: {
          'snapshot-requester': REQUESTOR,
          'snapshot-uploader': UPLOADER,
          'velero.io/async-operation-id': options.operationId,
          [UPLOAD_TAG]: options.uid,
        },
        accept: (_root, { errors }) => {
          if (errors > 0) throw incomplete(errors, unread);
        },
        ...(parallel !== undefined && { parallel }),
      });
      return { ...created, isNew: true };
    });
    if (snapshot.incomplete !== undefined) throw endOf(progress);
    const totalBytes = snapshot.stats.totalSize;
    progress.finish(totalBytes);
    const incrementalBytes = !isNew
      ? 0
      : isBlock
        ? counters.bytesNew
        : totalBytes - counters.cachedBytes;
    return { snapshotId: id, totalBytes, incrementalBytes: Math.max(0, incrementalBytes) };
  } finally {
    progress.stop();
  }
}

async function finishedBefore(
  repository: Repository,
  source: SourceInfo,
  uid: string,
): Promise<Snapshot | undefined> {
  const { snapshots } = await listReadableSnapshots(repository, {
    source,
    tags: { [UPLOAD_TAG]: uid },
  });
  return snapshots.find(({ incomplete }) => incomplete === undefined);
}

/** A stalled upload ends as one that was cut short, without an error of its own. */
const endOf = (progress: ProgressWatch): Error => progress.stalled ?? new CanceledError('user');

interface UnreadEntry {
  readonly path: string;
  readonly error: string;
}

/** A message ends up in the CR and in Events: it is short, whatever the volume holds. */
const SHOWN_CHARS_MAX = 120;

function shorten(text: string): string {
  const shown = printable(text);
  return shown.length > SHOWN_CHARS_MAX ? `${shown.slice(0, SHOWN_CHARS_MAX)}...` : shown;
}

function incomplete(count: number, errors: readonly UnreadEntry[]): CodedError {
  const shown = errors.map(
    ({ path, error }) => `Error when processing ${shorten(path)}: ${shorten(error)}`,
  );
  if (count > shown.length) shown.push('too many errors, ignored...');
  const text = `Failed to run kopia backup: ${shown.join('\n')}`;
  return new CodedError('VOLUME_INCOMPLETE', text);
}

export interface RestoreVolumeOptions extends VolumeMoveOptions {
  readonly snapshotId: string;
}

/**
 * Writes a snapshot over a volume. Throws `SNAPSHOT_NOT_FOUND`, `BAD_MOVER_CONFIG`, `STALLED`, `CANCELED`, and what the
 * restore throws.
 */
export async function restoreVolume(
  options: RestoreVolumeOptions,
): Promise<{ totalBytes: number }> {
  const { repository, path, isBlock, logger, config, snapshotId } = options;
  countOf(config, 'ParallelFilesDownload');
  const sparse = flagOf(config, 'WriteSparseFiles');
  const counters = newRestoreCounters();
  let total: number | undefined;
  const progress = watchProgress(options, () => {
    const { bytes, files, directories, symlinks, skipped, errors, isFlushing } = counters;
    return {
      doneBytes: Math.min(bytes, total ?? 0),
      totalBytes: total,
      moved: bytes + files + directories + symlinks + skipped + errors + repository.tasksDone,
      answers: repository.answers,
      waitsFor: isFlushing ? 'disk' : repository.isWaitingForStorage ? 'storage' : 'volume',
    };
  });
  try {
    await progress.run(async (signal) => {
      await assertVolume(path, isBlock);
      const { rootEntry, stats } = await getSnapshot(repository, snapshotId);
      if (!rootEntry) {
        throw new CodedError('DAMAGED_SNAPSHOT', `snapshot ${snapshotId} has no root`);
      }
      total = rootEntry.summary?.size ?? stats.totalSize;
      const restore = isBlock ? restoreBlocks : restoreTree;
      await restore(repository, rootEntry, path, {
        logger,
        signal,
        counters,
        overwrite: 'always',
        sparse,
      });
    });
    const totalBytes = total ?? 0;
    progress.finish(totalBytes);
    return { totalBytes };
  } finally {
    progress.stop();
  }
}

async function assertVolume(path: string, isBlock: boolean): Promise<void> {
  let stat: Awaited<ReturnType<typeof fs.stat>>;
  try {
    stat = await fs.stat(path);
  } catch (cause) {
    throw new CodedError('NO_VOLUME', `the volume is not there: ${path}`, { cause });
  }
  if (isBlock && !stat.isBlockDevice() && !stat.isFile()) {
    throw new CodedError('NO_VOLUME', `source path ${path} is not a block device`);
  }
  if (!isBlock && !stat.isDirectory()) {
    throw new CodedError('NO_VOLUME', `source path ${path} is not a directory`);
  }
}

/** Velero's policy of a volume's source; made anew before each upload (pkg/uploader/kopia/snapshot.go). */
const volumePolicy = (parallel: number | undefined, compression = 'none'): Policy =>
  policySchema.parse({
    retention: {
      keepLatest: KEEP_ALL,
      keepHourly: KEEP_ALL,
      keepDaily: KEEP_ALL,
      keepWeekly: KEEP_ALL,
      keepMonthly: KEEP_ALL,
      keepAnnual: KEEP_ALL,
    },
    errorHandling: { ignoreUnknownTypes: true },
    scheduling: { manual: true },
    compression: { compressorName: compression },
    upload: {
      parallelUploadAboveSize: 2 ** 31,
      ...(parallel !== undefined && { maxParallelFileReads: parallel }),
    },
  });

/**
 * How much there will be to do, before it is known: the size of a device; of a mounted volume what its file system
 * says is in use; else what the last snapshot had.
 */
async function estimatedBytes(
  { repository, path, isBlock }: VolumeMoveOptions,
  source: SourceInfo,
): Promise<number> {
  if (isBlock) {
    const stat = await fs.stat(path);
    return stat.isBlockDevice() ? deviceBytes(path) : stat.size;
  }
  const [volume, above] = await Promise.all([fs.stat(path), fs.stat(dirname(path))]);
  if (volume.dev !== above.dev) {
    const { blocks, bfree, bsize } = await fs.statfs(path);
    return (blocks - bfree) * bsize;
  }
  const { snapshots } = await listReadableSnapshots(repository, { source });
  const last = snapshots.findLast(({ incomplete }) => !incomplete);
  return last?.stats.totalSize ?? 0;
}

function countOf(config: Readonly<Record<string, string>>, key: string): number | undefined {
  const text = config[key];
  if (text === undefined) return undefined;
  const count = Number(text);
  if (!Number.isInteger(count)) throw badConfig(key, text, 'a whole number');
  return count > 0 ? Math.min(count, 64) : undefined;
}

function flagOf(config: Readonly<Record<string, string>>, key: string): boolean {
  const text = config[key] ?? 'false';
  if (/^(1|t|T|TRUE|true|True)$/.test(text)) return true;
  if (/^(0|f|F|FALSE|false|False)$/.test(text)) return false;
  throw badConfig(key, text, 'true or false');
}

const badConfig = (key: string, text: string, wanted: string): CodedError =>
  new CodedError(
    'BAD_MOVER_CONFIG',
    `failed to get uploader config: ${key} is "${text}", not ${wanted}`,
  );

/** One line for the log: what was moved and how fast. */
export const describeMove = (bytes: number, seconds: number): string =>
  `${formatBytes(bytes)} in ${seconds.toFixed(1)} s`;
