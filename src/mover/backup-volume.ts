import {
  CanceledError,
  CodedError,
  isCode,
  type Logger,
  messageOf,
  printable,
} from '../base/index.ts';
import type { Repository } from '../repository/index.ts';
import {
  excludesOfSnapshot,
  getSnapshot,
  listReadableSnapshots,
  type Policy,
  policySchema,
  putPolicy,
  type Snapshot,
  type SourceInfo,
} from '../snapshot/index.ts';
import { createSnapshot, newUploadCounters, type UploadOptions } from '../uploader/index.ts';
import { type ProgressWatch, watchProgress } from './progress.ts';
import {
  describeExcludes,
  type ExcludeSources,
  excludesOf,
  tagOfExcludes,
} from './excluded-paths.ts';
import { isInMemory } from './written-volume.ts';
import { assertMounted, assertSameVolume, identityOf } from './same-volume.ts';
import {
  POD_VOLUME_REQUESTOR,
  podVolumeSource,
  REQUESTOR,
  UPLOAD_TAG,
  UPLOADER,
  volumeSource,
} from './snapshot-source.ts';
import { countOf, extrasOf, flagOf } from './uploader-config.ts';
import { assertVolume, type VolumeMoveOptions } from './volume.ts';
import { VolumeTotal } from './volume-total.ts';

const PIN = 'velero-pin';
/** Velero keeps all snapshots until their backup is deleted. Its policy holds no larger number. */
const KEEP_ALL = 2 ** 31 - 1;
const ERRORS_SHOWN_MAX = 11;
/** Key in a backup's `uploaderSettings` or `dataMoverConfig`. Velero has no such key. */
const IGNORE_UNREADABLE = 'longshore.ignoreUnreadable';

/** The volume of a PVC, read from a snapshot of the storage. */
export interface PvcOrigin {
  readonly sourceNamespace: string;
  readonly sourcePvc: string;
  readonly operationId: string;
}

/** A volume of a running pod. */
export interface PodOrigin {
  readonly sourceNamespace: string;
  readonly sourcePod: string;
  /** Name of its PVC, or of the pod's volume if it has no PVC. */
  readonly sourceVolume: string;
  /** `stored`: all snapshots under the same source. */
  readonly parents?: (stored: readonly StoredVolume[], signal: AbortSignal) => Promise<Parents>;
}

/** An earlier snapshot of a volume of a pod. */
export interface StoredVolume {
  readonly id: string;
  /** UID of its PodVolumeBackup, if the snapshot names it. */
  readonly uid: string | undefined;
}

/**
 * Earlier snapshots that may save work. `isParent` tells whether a snapshot under the same source
 * holds this volume. `more` has ids of snapshots under other sources, newest first; the first
 * complete snapshot is used.
 */
export interface Parents {
  readonly isParent?: (stored: StoredVolume) => boolean;
  readonly more?: readonly string[];
}

export type BackupVolumeOptions = VolumeMoveOptions & (PvcOrigin | PodOrigin) & BackupSettings;

interface BackupSettings {
  /** UID of the DataUpload or PodVolumeBackup. */
  readonly uid: string;
  /** Compressor for the data; none by default, as in Velero's data mover. */
  readonly compression?: string | undefined;
  /** Large files read at once, unless {@link VolumeMoveOptions.config} sets it. */
  readonly parallelFiles?: number | undefined;
  /** Skip and count unreadable entries; {@link VolumeMoveOptions.config} may override this. */
  readonly ignoreUnreadable?: boolean | undefined;
  /** Time of the volume's snapshot, or shortly before; RFC 3339. */
  readonly frozenAt?: string | undefined;
  /** ID of the only snapshot to build on; false for none. Default: any of the volume. */
  readonly parent?: string | false | undefined;
  /** Rules for paths to leave out. */
  readonly excludes?: ExcludeSources | undefined;
}

export interface BackupVolumeResult {
  readonly snapshotId: string;
  readonly totalBytes: number;
  readonly incrementalBytes: number;
  /** Unreadable entries that were skipped, as configured. */
  readonly unreadable: number;
  /** The applied rules and the ignored rules, as a sentence. */
  readonly note?: string | undefined;
}

/** Source and tags that Velero gives the snapshot. */
function recordOf(options: BackupVolumeOptions): {
  source: SourceInfo;
  tags: Readonly<Record<string, string>>;
} {
  const { sourceNamespace, uid } = options;
  const common = { 'snapshot-uploader': UPLOADER, [UPLOAD_TAG]: uid };
  if ('sourcePod' in options) {
    const source = podVolumeSource(sourceNamespace, options.sourcePod, options.sourceVolume);
    return { source, tags: { 'snapshot-requester': POD_VOLUME_REQUESTOR, ...common } };
  }
  return {
    source: volumeSource(sourceNamespace, options.sourcePvc),
    tags: {
      'snapshot-requester': REQUESTOR,
      'velero.io/async-operation-id': options.operationId,
      ...common,
    },
  };
}

/** The volume of a snapshot does not change. An unreadable time counts as none. */
function frozenOf(options: BackupVolumeOptions): UploadOptions['frozen'] {
  if ('sourcePod' in options) return undefined;
  const ms = Date.parse(options.frozenAt ?? '');
  return {
    atNs: ms > 0 ? BigInt(ms) * 1_000_000n : undefined,
    isSame: ({ tags }) => tags?.[UPLOAD_TAG] === options.uid,
  };
}

/**
 * Stores a volume with the policy, tags, pin and source of Velero's data mover. An unreadable entry
 * fails the backup, and no complete snapshot is left. If an earlier mover of the same CR stored a
 * complete snapshot, that is the result. A second one would stay forever, because the CR names only
 * one. Throws `VOLUME_INCOMPLETE`, `VOLUME_GONE`, `BAD_MOVER_CONFIG`, `STALLED`, `CANCELED`, and
 * errors of the upload.
 */
export async function backupVolume(options: BackupVolumeOptions): Promise<BackupVolumeResult> {
  const { repository, path, isBlock, logger, config } = options;
  const { source, tags } = recordOf(options);
  const ignoreUnreadable =
    config[IGNORE_UNREADABLE] === undefined
      ? options.ignoreUnreadable === true
      : flagOf(config, IGNORE_UNREADABLE);
  const parallel = countOf(config, 'ParallelFilesUpload') ?? options.parallelFiles;
  const excludes = excludesOf(options.excludes ?? {}, options);
  const counters = newUploadCounters();
  const total = new VolumeTotal(counters);
  const unread: UnreadEntry[] = [];
  let isAsking = false;
  const assertUsable = async (when: 'before' | 'after', signal: AbortSignal): Promise<void> => {
    isAsking = true;
    await options.assertUsable?.(when, signal);
    isAsking = false;
  };
  const progress = watchProgress(options, () => {
    const { doneBytes } = total;
    const entries = counters.files + counters.cachedFiles + counters.directories + counters.skipped;
    const checked = entries + counters.errors + counters.objectsChecked;
    return {
      doneBytes,
      totalBytes: total.bytes,
      moved: doneBytes + counters.bytesPacked + checked + repository.tasksDone,
      answers: repository.answers,
      // Other questions have a shorter limit of their own.
      waitsFor: isAsking || repository.isWaitingForStorage ? 'storage' : 'volume',
    };
  });
  try {
    const { id, snapshot, isNew } = await progress.run(async (signal) => {
      await assertVolume(path, isBlock);
      const before = await finishedBefore(repository, source, options.uid);
      if (before) {
        logger.info({ snapshot: before.id }, 'an earlier data mover has already stored the volume');
        // The number of new bytes is unknown now.
        return { id: before.id, snapshot: before, isNew: false };
      }
      await assertUsable('before', signal);
      const volume = await identityOf(path);
      if (!isBlock) await assertMounted(path);
      const { compression } = options;
      await putPolicy(
        repository,
        source,
        volumePolicy({ parallel, compression, ignoreUnreadable, ignore: excludes.rules }),
      );
      await repository.flush();
      await total.look(options, source);
      const created = await createSnapshot(repository, path, {
        source,
        logger,
        signal,
        counters,
        block: isBlock,
        frozen: frozenOf(options),
        extras: extrasOf(config),
        onFailure: ({ error, ignored }) => {
          if (!ignored && unread.length < ERRORS_SHOWN_MAX) unread.push(error);
        },
        description: 'Kopia Uploader',
        pins: [PIN],
        tags: { ...tags, ...tagOfExcludes(excludes) },
        accept: async (_root, { errors }) => {
          // Check this first: files of an unmounted volume look missing.
          await assertSameVolume(path, volume, 'read');
          await assertUsable('after', signal);
          if (errors > 0) throw incomplete(errors, unread);
        },
        ...(await parentsOf(options, signal)),
        ...(parallel !== undefined && { parallel }),
      });
      if (counters.ignoredErrors > 0) {
        const text = 'entries that could not be read were left out, as configured';
        logger.warn({ entries: counters.ignoredErrors }, text);
      }
      return { ...created, isNew: true };
    });
    if (snapshot.incomplete !== undefined) throw endOf(progress);
    const { totalSize: totalBytes, ignoredErrorCount: unreadable } = snapshot.stats;
    progress.finish(totalBytes);
    const incrementalBytes = !isNew
      ? 0
      : isBlock
        ? counters.bytesNew
        : totalBytes - counters.cachedBytes;
    const { problems } = excludes;
    return {
      snapshotId: id,
      totalBytes,
      unreadable,
      incrementalBytes: Math.max(0, incrementalBytes),
      note: describeExcludes({ rules: excludesOfSnapshot(snapshot), problems }),
    };
  } finally {
    progress.stop();
    total.stop();
  }
}

/** Snapshots of other sources to try; most are complete. Our choice. */
const PARENTS_TRIED_MAX = 5;

/** Parents only save work, so missing and damaged snapshots are skipped. */
async function parentsOf(
  options: BackupVolumeOptions,
  signal: AbortSignal,
): Promise<Pick<UploadOptions, 'isParent' | 'moreParents'>> {
  const { repository, uid, logger, parent } = options;
  // An earlier mover of this backup read this volume.
  const isOwn = ({ tags }: Snapshot): boolean => tags?.[UPLOAD_TAG] === uid;
  if (parent === false) return { isParent: isOwn };
  if (parent !== undefined) {
    const named = await findParents(repository, [parent], logger);
    return {
      isParent: (snapshot) => isOwn(snapshot) || snapshot.id === parent,
      moreParents: named,
    };
  }
  if (!('sourcePod' in options)) return {};
  // In memory, only the first store through a mapping sets a time. Reading all is cheap.
  if (await isInMemory(options.path)) return { isParent: () => false };
  const { source } = recordOf(options);
  const { snapshots } = await listReadableSnapshots(repository, { source });
  const storedOf = ({ id, tags }: Snapshot): StoredVolume => ({ id, uid: tags?.[UPLOAD_TAG] });
  const isVeleros = ({ tags, incomplete }: Snapshot): boolean =>
    incomplete !== undefined ||
    (tags?.['snapshot-requester'] === POD_VOLUME_REQUESTOR &&
      tags['snapshot-uploader'] === UPLOADER);
  const { isParent = () => true, more = [] } =
    (await options.parents?.(snapshots.filter(isVeleros).map(storedOf), signal)) ?? {};
  const moreParents = await findParents(repository, more, logger);
  return {
    isParent: (snapshot) =>
      isOwn(snapshot) || (isVeleros(snapshot) && isParent(storedOf(snapshot))),
    moreParents,
  };
}

/** The first complete snapshot. Empty if none can be used. */
async function findParents(
  repository: Repository,
  ids: readonly string[],
  logger: Logger,
): Promise<Snapshot[]> {
  for (const id of ids.slice(0, PARENTS_TRIED_MAX)) {
    try {
      const snapshot = await getSnapshot(repository, id);
      if (snapshot.incomplete === undefined) return [snapshot];
    } catch (error) {
      if (!isCode(error, 'SNAPSHOT_NOT_FOUND', 'DAMAGED_SNAPSHOT')) throw error;
      logger.info({ snapshot: id, error: messageOf(error) }, 'an earlier snapshot cannot be used');
    }
  }
  return [];
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

/** A stalled upload ends like an interrupted one, without an error of its own. */
const endOf = (progress: ProgressWatch): Error => progress.stalled ?? new CanceledError('user');

interface UnreadEntry {
  readonly path: string;
  readonly error: string;
}

/** The message goes into the CR and Events, so it must be short. */
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

interface PolicyParts {
  readonly parallel: number | undefined;
  readonly compression: string | undefined;
  readonly ignoreUnreadable: boolean;
  readonly ignore: readonly string[];
}

/** Velero's policy, rewritten before each upload (pkg/uploader/kopia/snapshot.go). */
const volumePolicy = ({
  parallel,
  compression = 'none',
  ignoreUnreadable,
  ignore,
}: PolicyParts): Policy =>
  policySchema.parse({
    ...(ignore.length > 0 && { files: { ignore } }),
    retention: {
      keepLatest: KEEP_ALL,
      keepHourly: KEEP_ALL,
      keepDaily: KEEP_ALL,
      keepWeekly: KEEP_ALL,
      keepMonthly: KEEP_ALL,
      keepAnnual: KEEP_ALL,
    },
    errorHandling: {
      ignoreUnknownTypes: true,
      ...(ignoreUnreadable && { ignoreFileErrors: true, ignoreDirectoryErrors: true }),
    },
    scheduling: { manual: true },
    compression: { compressorName: compression },
    upload: {
      parallelUploadAboveSize: 2 ** 31,
      ...(parallel !== undefined && { maxParallelFileReads: parallel }),
    },
  });
