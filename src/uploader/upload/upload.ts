import {
  isCode,
  type Logger,
  messageOf,
  MINUTE_NS,
  posix,
  SECOND_NS,
  Stopwatch,
} from '../../base/index.ts';
import { hasNativeCipher, type SplitterSpec, splitterSpec } from '../../codec/index.ts';
import {
  adoptKilledSessions,
  heedVerification,
  listPackLengths,
  type ManifestId,
  recordAfterBackup,
  type Repository,
} from '../../repository/index.ts';
import {
  type DirectoryEntry,
  formatSource,
  listReadableSnapshots,
  loadPolicyTree,
  type NewSnapshot,
  saveSnapshot,
  type Snapshot,
  type SourceInfo,
} from '../../snapshot/index.ts';
import { applyRetention } from '../apply-retention.ts';
import { CheckpointTimer } from './checkpoint.ts';
import { uploadDevice } from './device-upload.ts';
import { uploadInput } from './input-upload.ts';
import { LongUpload, type UploadAgain } from './long-upload.ts';
import {
  FROZEN_TAG,
  type FrozenSource,
  type PreviousDirectory,
  previousOf,
  previousRoots,
  UNCHANGING_NS,
} from '../listing/previous-entries.ts';
import { newUploadCounters, type UploadCounters } from '../progress.ts';
import type { KeptExtras } from '../../volume-files/index.ts';
import { FileUpload, type FileUploadOptions } from '../file-data/file-upload.ts';
import { metadataCompressor, warnOfUnmet } from './upload-policy.ts';
import { uploadRoot } from './root-upload.ts';
import type { EntryFailure } from './directory-summary.ts';
import { TreeUpload } from './tree-upload.ts';
import type { StreamSource } from './volume-upload.ts';

export interface UploadOptions {
  readonly source: SourceInfo;
  readonly logger: Logger;
  /** Abort to stop early. An incomplete snapshot is left, and the next run builds on it. */
  readonly signal: AbortSignal;
  readonly counters?: UploadCounters;
  /** `path` is a device or image, stored as one stream in Velero's layout. */
  readonly block?: boolean;
  readonly frozen?: FrozenSource | undefined;
  readonly tags?: Readonly<Record<string, string>>;
  readonly pins?: readonly string[];
  readonly description?: string;
  readonly parallel?: number;
  /** Name of a splitter for this upload. Later uploads of the source reuse it. */
  readonly splitter?: string | undefined;
  /** Interval for writing packs being filled; after 20 intervals, 5 % of the elapsed time. */
  readonly checkpointIntervalNs?: bigint;
  /** Interval for index blobs. */
  readonly indexIntervalNs?: bigint;
  /** Called at once for each entry that cannot be stored. There may be millions. */
  readonly onFailure?: (failure: EntryFailure) => void;
  /** Names of one directory in memory at once; tests lower it. */
  readonly listingEntriesMax?: number;
  /** Real path of a local repository. A source that contains it causes a warning. */
  readonly repositoryPath?: string | undefined;
  /** Stored instead of the path, which is then only a name. */
  readonly input?: StreamSource | undefined;
  /** Extra attributes that the backup keeps; all by default. */
  readonly extras?: KeptExtras;
  /** Called with a complete tree. An error ends the upload without a snapshot. */
  readonly accept?: (root: DirectoryEntry, counters: UploadCounters) => void | Promise<void>;
  /** Whether an earlier snapshot may save work: two volumes may share a source. Default: all. */
  readonly isParent?: (snapshot: Snapshot) => boolean;
  /** Complete snapshots of this volume under other sources. They only save work. */
  readonly moreParents?: readonly Snapshot[];
}

export interface UploadResult {
  readonly id: ManifestId;
  readonly snapshot: NewSnapshot;
  readonly rootEntry: DirectoryEntry;
  readonly counters: UploadCounters;
  /** Deleted snapshots of the source, by its policy. */
  readonly removed: readonly Snapshot[];
}

/** Kopia's checkpoints are 45 minutes apart. Our choice: a killed upload loses less. */
const CHECKPOINT_INTERVAL_NS = 60n * SECOND_NS;
/** Kopia: repo/content/content_manager.go, flushPackIndexTimeout (4ebb2be6c). */
const INDEX_INTERVAL_NS = 10n * MINUTE_NS;
const PARALLEL = 2;
/** Complete snapshots to compare with after damage: older ones may be whole. Our choice. */
const PARENTS_IF_DAMAGED = 4;
/** Records the splitter of a source, also if Kopia does not know it: readers do not need it. */
export const SPLITTER_TAG = 'tag:longshore-splitter';

/**
 * Stores a directory, a file or a device as a snapshot of the source, and applies its retention.
 * Throws `SOURCE_UNREADABLE`, and errors of storage and repository.
 */
export async function createSnapshot(
  repository: Repository,
  path: string,
  options: UploadOptions,
): Promise<UploadResult> {
  const startTimeNs = repository.clock.nowNs();
  const sinceStart = new Stopwatch(repository.clock);
  const { frozen } = options;
  warnOfFallbacks(options.logger, repository.format.parameters.encryption);
  const counters = options.counters ?? newUploadCounters();
  await heedVerification(repository, async () => {
    const lengths = await listPackLengths(repository);
    return (packBlobId) => lengths.has(packBlobId);
  });
  const policies = await loadPolicyTree(repository, options.source);
  warnOfUnmet(policies, options.logger);
  const previous = await previousSnapshots(repository, options);
  await adoptAfterKill(repository, previous, options);
  const spec =
    options.splitter === undefined
      ? rememberedSplitter(previous, options.logger)
      : splitterSpec(options.splitter);
  const checkpoints = new CheckpointTimer(repository, {
    intervalNs: options.checkpointIntervalNs ?? CHECKPOINT_INTERVAL_NS,
    indexIntervalNs: options.indexIntervalNs ?? INDEX_INTERVAL_NS,
    signal: options.signal,
    logger: options.logger,
  });
  const uploadOptions: FileUploadOptions = {
    repository,
    policies,
    counters,
    logger: options.logger,
    signal: options.signal,
    parallel: options.parallel ?? PARALLEL,
    splitter: spec,
    isFrozen: frozen !== undefined,
    onFailure: (failure) => {
      const { path, error } = failure.error;
      options.logger.info({ path, error }, 'an entry could not be read');
      options.onFailure?.(failure);
    },
    listingEntriesMax: options.listingEntriesMax,
    repositoryPath: options.repositoryPath,
    extras: options.extras ?? { xattrs: true, links: true },
    open: { root: undefined },
    onStored: () => {
      checkpoints.look();
    },
  };
  const snapshotOf = (rootEntry: DirectoryEntry): NewSnapshot => ({
    source: options.source,
    description: options.description ?? '',
    startTimeNs,
    endTimeNs: repository.clock.nowNs(),
    stats: statsOf(counters, rootEntry),
    incomplete: rootEntry.summary?.incomplete,
    rootEntry,
    tags: {
      ...options.tags,
      ...tagOf(spec),
      ...(frozen?.atNs !== undefined && { [FROZEN_TAG]: String(frozen.atNs) }),
    },
    // Only complete backups are pinned, because a complete backup replaces incomplete backups.
    pins: rootEntry.summary?.incomplete ? undefined : options.pins,
  });
  const long = new LongUpload({
    repository,
    sinceStart,
    logger: options.logger,
    signal: options.signal,
    open: uploadOptions.open,
    compressor: metadataCompressor(policies.root),
    retention: policies.root.retention,
    snapshotOf,
    onChecked: () => counters.objectsChecked++,
  });
  const upload: ConfirmParts['upload'] = (roots, isLost) => {
    const files = new FileUpload({ ...uploadOptions, isLost });
    const tree = new TreeUpload({ ...uploadOptions, isLost }, files);
    const { open } = uploadOptions;
    const policy = policies.root;
    const { signal } = options;
    const { extras } = uploadOptions;
    const parts = { repository, tree, files, path, roots, counters, policy, signal, open, extras };
    if (options.input) return uploadInput(parts, options.input, isLost !== undefined);
    return options.block === true ? uploadDevice(parts) : uploadRoot(parts);
  };
  let snapshot: NewSnapshot;
  try {
    const rootEntry = await upload(previousRoots(previous, frozen));
    await long.stop();
    snapshot = snapshotOf(rootEntry);
    if (snapshot.incomplete === undefined) {
      const { signal } = options;
      snapshot = await confirmed(snapshot, {
        long,
        upload,
        counters,
        snapshotOf,
        signal,
        isFrozen: frozen !== undefined,
      });
    }
    // Stop only now: the repairs before may store as much as the upload itself.
    await checkpoints.stop();
    checkpoints.assertHealthy();
    if (snapshot.incomplete === undefined) {
      await options.accept?.(snapshot.rootEntry as DirectoryEntry, counters);
    }
  } catch (error) {
    await long.stop();
    await checkpoints.stop();
    // Keep the stored contents for the next run. The earlier error matters.
    await repository.contents.flush().catch(() => undefined);
    throw error;
  }
  let id = saveSnapshot(repository, snapshot);
  // An incomplete snapshot lacks the stored parts of open files, so the checkpoint stays.
  if (snapshot.incomplete === undefined) long.remove();
  const removed = await removedByPolicy(repository, id, options);
  await repository.flush();
  if (snapshot.incomplete === undefined && long.isUnconfirmed) {
    // The machine may have slept during the flush, long enough for a collection to delete contents.
    const parts = { long, upload, counters, snapshotOf, signal: options.signal };
    const again = { ...parts, isFrozen: frozen !== undefined, accept: options.accept };
    checkpoints.resume();
    try {
      ({ id, snapshot } = await confirmSaved(repository, { id, snapshot }, again));
    } finally {
      await checkpoints.stop();
    }
    checkpoints.assertHealthy();
  }
  await noteRepairs(repository, options);
  if (removed.length > 0) {
    const snapshots = removed.map((each) => each.id).join(' ');
    options.logger.info({ count: removed.length, snapshots }, 'removed snapshots by policy');
  }
  return { id, snapshot, rootEntry: snapshot.rootEntry as DirectoryEntry, counters, removed };
}

interface SavedSnapshot {
  readonly id: ManifestId;
  readonly snapshot: NewSnapshot;
}

/** Checks a durable snapshot. Replaces it after repairs, and removes it if contents are lost. */
async function confirmSaved(
  repository: Repository,
  saved: SavedSnapshot,
  { accept, ...parts }: ConfirmParts & { accept: UploadOptions['accept'] | undefined },
): Promise<SavedSnapshot> {
  const { long, counters } = parts;
  const { manifests } = repository;
  let { id, snapshot } = saved;
  try {
    const again = await confirmed(snapshot, parts);
    const isSame =
      again.incomplete === undefined && again.rootEntry?.objectId === snapshot.rootEntry?.objectId;
    if (!isSame) {
      if (again.incomplete === undefined && again.rootEntry)
        await accept?.(again.rootEntry, counters);
      manifests.delete(id);
      id = saveSnapshot(repository, again);
      snapshot = again;
    }
  } catch (error) {
    manifests.delete(id);
    await repository.flush().catch(() => undefined);
    throw error;
  }
  if (snapshot.incomplete === undefined) long.remove();
  await repository.flush();
  return { id, snapshot };
}

/** A failure must not fail the finished backup: the record of damage only has too many entries. */
async function noteRepairs(
  repository: Repository,
  { logger, signal }: UploadOptions,
): Promise<void> {
  try {
    const repairs = await recordAfterBackup(repository, signal);
    if (!repairs) return;
    const { storedAgain: contents, left } = repairs;
    if (contents > 0) logger.warn({ contents }, 'contents that were damaged are stored again');
    if (left > 0) {
      logger.warn(
        { contents: left },
        'damaged contents are left that this volume does not hold; see repository verify',
      );
    }
  } catch (error) {
    logger.warn({ error: messageOf(error) }, 'could not record which damage is left');
  }
}

/** A failure must not fail the finished backup: the next backup deletes the old snapshots. */
async function removedByPolicy(
  repository: Repository,
  id: ManifestId,
  { source, logger }: UploadOptions,
): Promise<Snapshot[]> {
  try {
    return await applyRetention(repository, source, id, logger);
  } catch (error) {
    logger.warn({ error: messageOf(error) }, 'could not remove snapshots by policy');
    return [];
  }
}

/** Checks the contents after an upload that garbage collection may have harmed. */
async function confirmed(
  snapshot: NewSnapshot,
  { long, upload, counters, snapshotOf, isFrozen, signal }: ConfirmParts,
): Promise<NewSnapshot> {
  const { rootEntry, startTimeNs } = snapshot;
  const startNs = isFrozen ? UNCHANGING_NS : startTimeNs;
  if (!rootEntry) return snapshot;
  const uploadAgain: UploadAgain = async (root, isLost) => {
    const before = { ...counters };
    const again = await upload(root.type === 'd' ? [previousOf(root, startNs)] : [], isLost);
    const { bytesRead, bytesNew, bytesPacked, contentsNew, contentsDeduplicated } = counters;
    const moved = { bytesRead, bytesNew, bytesPacked, contentsNew, contentsDeduplicated };
    // Entries were already counted. Failures count as they are now.
    const errors = counters.errors - before.errors;
    const ignoredErrors = counters.ignoredErrors - before.ignoredErrors;
    const vanished = counters.vanished - before.vanished;
    Object.assign(counters, before, moved, { errors, ignoredErrors, vanished });
    return again;
  };
  try {
    return snapshotOf(await long.confirm(rootEntry, uploadAgain));
  } catch (error) {
    if (!signal.aborted) throw error;
    return { ...snapshot, incomplete: 'canceled', pins: undefined };
  }
}

interface ConfirmParts {
  long: LongUpload;
  upload: (
    roots: readonly PreviousDirectory[],
    isLost?: FileUploadOptions['isLost'],
  ) => Promise<DirectoryEntry>;
  counters: UploadCounters;
  snapshotOf: (root: DirectoryEntry) => NewSnapshot;
  isFrozen: boolean;
  signal: AbortSignal;
}

/** The splitter of earlier snapshots. A later version may have used an unknown splitter. */
function rememberedSplitter(
  previous: readonly Snapshot[],
  logger: Logger,
): SplitterSpec | undefined {
  const name = previous.find(({ tags }) => tags?.[SPLITTER_TAG])?.tags?.[SPLITTER_TAG];
  if (name === undefined) return undefined;
  try {
    return splitterSpec(name);
  } catch (error) {
    if (!isCode(error, 'UNKNOWN_SPLITTER')) throw error;
    const text = 'earlier snapshots were cut by an unknown splitter; using the default';
    logger.warn({ splitter: name }, text);
    return undefined;
  }
}

function warnOfFallbacks(logger: Logger, encryption: string): void {
  if (!posix().native) {
    const text =
      'koffi cannot be loaded: holes in files are read like data, restored times are exact only to the microsecond, and small files take longer';
    logger.warn({}, text);
  } else if (!posix().statusReader) {
    logger.warn({}, 'statx does not work as expected here: comparing directories takes longer');
  } else if (!hasNativeCipher(encryption)) {
    logger.warn({}, 'OpenSSL cannot be called directly here: encrypting small files takes longer');
  }
}

const tagOf = (spec: SplitterSpec | undefined): Record<string, string> =>
  spec ? { [SPLITTER_TAG]: spec.name } : {};

/**
 * The latest complete snapshot of the source, and incomplete snapshots since then (Kopia:
 * snapshot/upload). Snapshots of other sources are sorted with the complete one by age: most files
 * match the newest.
 */
async function previousSnapshots(
  repository: Repository,
  { source, logger, isParent = () => true, moreParents = [] }: UploadOptions,
): Promise<Snapshot[]> {
  const { snapshots: all, damaged } = await listReadableSnapshots(repository, { source });
  for (const { message } of damaged) logger.warn({}, message);
  const snapshots = all.filter(isParent);
  const complete = snapshots.findLast(({ incomplete }) => !incomplete);
  const since = complete ? snapshots.slice(snapshots.indexOf(complete) + 1) : snapshots;
  const partial = since.filter(({ incomplete }) => incomplete).reverse();
  const whole = complete ? [complete] : [];
  if (!repository.contents.damaged.isEmpty) {
    const older = snapshots.filter((each) => !each.incomplete && each.id !== complete?.id);
    whole.push(...older.slice(1 - PARENTS_IF_DAMAGED));
  }
  for (const parent of moreParents) {
    if (parent.incomplete === undefined && parent.id !== complete?.id) whole.push(parent);
  }
  return [...partial, ...whole.sort((a, b) => (a.startTimeNs > b.startTimeNs ? -1 : 1))];
}

/** A killed run since the last complete snapshot may have left packs that no index names. */
async function adoptAfterKill(
  repository: Repository,
  previous: readonly Snapshot[],
  { source, signal, logger }: UploadOptions,
): Promise<void> {
  repository.contents.uploadSource = source;
  const complete = previous.filter(
    (each) => each.incomplete === undefined && formatSource(each.source) === formatSource(source),
  );
  const sinceNs = complete.reduce(
    (max, { startTimeNs }) => (startTimeNs > max ? startTimeNs : max),
    0n,
  );
  try {
    await adoptKilledSessions(repository, { source, sinceNs, signal, logger });
  } catch (error) {
    signal.throwIfAborted();
    repository.contents.assertWritable();
    const text = 'cannot look for packs of a killed backup; their contents are stored again';
    logger.warn({ error: messageOf(error) }, text);
  }
}

function statsOf(counters: UploadCounters, root: DirectoryEntry): NewSnapshot['stats'] {
  return {
    totalSize: root.summary?.size ?? counters.totalBytes,
    excludedTotalSize: counters.excludedBytes,
    fileCount: counters.files,
    cachedFiles: counters.cachedFiles,
    nonCachedFiles: counters.files,
    dirCount: counters.directories,
    excludedFileCount: counters.excludedFiles,
    excludedDirCount: counters.excludedDirectories,
    ignoredErrorCount: counters.ignoredErrors,
    errorCount: counters.errors,
  };
}
