import * as fs from 'node:fs/promises';
import { basename } from 'node:path';
import {
  CodedError,
  isCode,
  type Logger,
  messageOf,
  pinnedPath,
  posix,
  SECOND_NS,
  systemCode,
} from '../base/index.ts';
import { type SplitterSpec, splitterSpec } from '../codec/index.ts';
import type { ManifestId, ObjectId, Repository } from '../repository/index.ts';
import {
  type DirectoryEntry,
  encodeDirectory,
  listReadableSnapshots,
  loadPolicyTree,
  type NewSnapshot,
  type Policy,
  saveSnapshot,
  type Snapshot,
  type SourceInfo,
} from '../snapshot/index.ts';
import { writeObject } from '../repository/index.ts';
import { applyRetention } from './apply-retention.ts';
import { CheckpointTimer } from './checkpoint.ts';
import { isOfTheSource } from './directory-looks.ts';
import { LongUpload, type UploadAgain } from './long-upload.ts';
import { decodeListing, type SourceEntry } from './listing.ts';
import { newUploadCounters, type UploadCounters } from './progress.ts';
import {
  entryFields,
  FileUpload,
  type FileUploadOptions,
  metadataCompressor,
  TOO_LONG,
} from './file-upload.ts';
import { OpenDirectory, OpenFile, type OpenTree } from './open-tree.ts';
import type { EntryFailure } from './summary.ts';
import { TreeUpload } from './tree-upload.ts';

const { O_RDONLY, O_NONBLOCK } = fs.constants;

export interface UploadOptions {
  readonly source: SourceInfo;
  readonly logger: Logger;
  /** Abort to stop early: an incomplete snapshot is left that the next run builds on. */
  readonly signal: AbortSignal;
  readonly counters?: UploadCounters;
  /** `path` is a device or image, stored as one stream in Velero's layout. */
  readonly block?: boolean;
  readonly tags?: Readonly<Record<string, string>>;
  readonly pins?: readonly string[];
  readonly description?: string;
  readonly parallel?: number;
  /** Name of a splitter for this upload; the next ones of the source take it over. */
  readonly splitter?: string | undefined;
  /** What was read is made durable at least this often. */
  readonly checkpointIntervalNs?: bigint;
  readonly checkpointBytes?: number;
  /** Called for each entry that cannot be stored, as it happens. There may be millions. */
  readonly onFailure?: (failure: EntryFailure) => void;
  /** Names of one directory held in memory at once; tests lower it. */
  readonly listingEntriesMax?: number;
  /** Called with a whole tree before its snapshot is saved. What it throws ends the upload, and no snapshot is left. */
  readonly accept?: (root: DirectoryEntry, counters: UploadCounters) => void;
}

export interface UploadResult {
  readonly id: ManifestId;
  readonly snapshot: NewSnapshot;
  readonly rootEntry: DirectoryEntry;
  readonly counters: UploadCounters;
  /** Snapshots of the source that its policy no longer keeps. */
  readonly removed: readonly Snapshot[];
}

/** Velero's own checkpoints are 45 minutes apart; a killed mover then starts over. Ours: the bound. */
const CHECKPOINT_INTERVAL_NS = 60n * SECOND_NS;
const CHECKPOINT_BYTES = 2 * 2 ** 30;
const PARALLEL = 2;
/** Remembers the splitter of a source, also one that Kopia does not know: readers need none. */
export const SPLITTER_TAG = 'tag:longshore-splitter';

/**
 * Stores a directory, a file or a device as a snapshot of the source, and applies its retention.
 * Throws `SOURCE_UNREADABLE`, and what storage and repository throw.
 */
export async function createSnapshot(
  repository: Repository,
  path: string,
  options: UploadOptions,
): Promise<UploadResult> {
  const startTimeNs = repository.clock.nowNs();
  warnOfFallbacks(options.logger);
  const counters = options.counters ?? newUploadCounters();
  const policies = await loadPolicyTree(repository, options.source);
  const previous = await previousSnapshots(repository, options);
  const spec =
    options.splitter === undefined
      ? rememberedSplitter(previous, options.logger)
      : splitterSpec(options.splitter);
  const checkpoints = new CheckpointTimer(repository, {
    intervalNs: options.checkpointIntervalNs ?? CHECKPOINT_INTERVAL_NS,
    bytes: options.checkpointBytes ?? CHECKPOINT_BYTES,
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
    onFailure: (failure) => {
      const { path, error } = failure.error;
      options.logger.info({ path, error }, 'an entry could not be read');
      options.onFailure?.(failure);
    },
    listingEntriesMax: options.listingEntriesMax,
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
    tags: { ...options.tags, ...tagOf(spec) },
    // A pin keeps a whole backup; part of one goes as soon as a whole one is there.
    pins: rootEntry.summary?.incomplete ? undefined : options.pins,
  });
  const long = new LongUpload({
    repository,
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
    const parts = { repository, tree, files, path, roots, counters, policy, options, open };
    return options.block === true ? uploadDevice(parts) : uploadTree(parts);
  };
  let snapshot: NewSnapshot;
  try {
    const rootEntry = await upload(
      previous.flatMap(({ rootEntry: root }) => (root?.type === 'd' ? [root.objectId] : [])),
    );
    await long.stop();
    snapshot = snapshotOf(rootEntry);
    if (snapshot.incomplete === undefined) {
      const { signal } = options;
      snapshot = await confirmed(snapshot, { long, upload, counters, snapshotOf, signal });
    }
    // Only now: what is stored again at the end may be as much as the upload itself.
    await checkpoints.stop();
    checkpoints.assertHealthy();
    if (snapshot.incomplete === undefined) {
      options.accept?.(snapshot.rootEntry as DirectoryEntry, counters);
    }
  } catch (error) {
    await long.stop();
    await checkpoints.stop();
    // What was read so far need not be stored again; the first error is the one that matters.
    await repository.contents.flush().catch(() => undefined);
    throw error;
  }
  const id = saveSnapshot(repository, snapshot);
  // One that was cut short does not hold what was stored of its open files.
  if (snapshot.incomplete === undefined) long.remove();
  const removed = await removedByPolicy(repository, id, options);
  await repository.flush();
  if (removed.length > 0) {
    const snapshots = removed.map((each) => each.id).join(' ');
    options.logger.info({ count: removed.length, snapshots }, 'removed snapshots by policy');
  }
  return { id, snapshot, rootEntry: snapshot.rootEntry as DirectoryEntry, counters, removed };
}

/** A backup that is done is not lost because older ones could not be looked through: they stay until the next one. */
async function removedByPolicy(
  repository: Repository,
  id: ManifestId,
  { source, logger }: UploadOptions,
): Promise<Snapshot[]> {
  try {
    return await applyRetention(repository, source, id, logger);
  } catch (error) {
    logger.warn({ error: messageOf(error) }, 'no snapshot was removed by policy: that failed');
    return [];
  }
}

/** The snapshot with every content in place, after an upload that was long enough for garbage collection to harm it. */
async function confirmed(
  snapshot: NewSnapshot,
  { long, upload, counters, snapshotOf, signal }: ConfirmParts,
): Promise<NewSnapshot> {
  const { rootEntry } = snapshot;
  if (!rootEntry) return snapshot;
  const uploadAgain: UploadAgain = async (root, isLost) => {
    const before = { ...counters };
    const again = await upload(root.type === 'd' ? [root.objectId] : [], isLost);
    const { bytesRead, bytesNew, bytesPacked, contentsNew, contentsDeduplicated } = counters;
    const moved = { bytesRead, bytesNew, bytesPacked, contentsNew, contentsDeduplicated };
    // Entries were counted once already; what cannot be read counts as it is now.
    const errors = counters.errors - before.errors;
    const ignoredErrors = counters.ignoredErrors - before.ignoredErrors;
    Object.assign(counters, before, moved, { errors, ignoredErrors });
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
    roots: readonly ObjectId[],
    isLost?: FileUploadOptions['isLost'],
  ) => Promise<DirectoryEntry>;
  counters: UploadCounters;
  snapshotOf: (root: DirectoryEntry) => NewSnapshot;
  signal: AbortSignal;
}

/** What earlier snapshots of the source were cut by; one that a later program wrote may be unknown here. */
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
    const text = 'earlier snapshots were cut by a splitter that is not known; using the default';
    logger.warn({ splitter: name }, text);
    return undefined;
  }
}

function warnOfFallbacks(logger: Logger): void {
  if (posix().native) return;
  logger.warn(
    {},
    'koffi cannot be loaded: holes of files are read, restored times end at microseconds',
  );
}

const tagOf = (spec: SplitterSpec | undefined): Record<string, string> =>
  spec ? { [SPLITTER_TAG]: spec.name } : {};

interface UploadParts {
  repository: Repository;
  tree: TreeUpload;
  files: FileUpload;
  path: string;
  roots: readonly ObjectId[];
  counters: UploadCounters;
  policy: Policy;
  options: UploadOptions;
  open: OpenTree;
}

/** The latest complete snapshot of the source, and the incomplete ones made since (Kopia: snapshot/upload). */
async function previousSnapshots(
  repository: Repository,
  { source, logger }: UploadOptions,
): Promise<Snapshot[]> {
  const { snapshots, damaged } = await listReadableSnapshots(repository, { source });
  for (const { message } of damaged) logger.warn({}, message);
  const complete = snapshots.findLast(({ incomplete }) => !incomplete);
  const since = complete ? snapshots.slice(snapshots.indexOf(complete) + 1) : snapshots;
  const partial = since.filter(({ incomplete }) => incomplete).reverse();
  return complete ? [...partial, complete] : partial;
}

function unreadable(path: string, cause: unknown): CodedError {
  const reason = systemCode(cause) === 'ENOENT' ? 'it does not exist' : messageOf(cause);
  return new CodedError('SOURCE_UNREADABLE', `cannot read ${path}: ${reason}`, { cause });
}

async function uploadTree(parts: UploadParts): Promise<DirectoryEntry> {
  const { tree, path, roots } = parts;
  let root: SourceEntry;
  try {
    root = await lookAt(await fs.realpath(path));
  } catch (cause) {
    throw unreadable(path, cause);
  }
  root = { ...root, name: basename(path) || '/' };
  if (root.type === 'f') {
    return uploadSingleFile(parts, root);
  }
  if (root.type !== 'd') throw unreadable(path, new Error('it is neither a directory nor a file'));
  try {
    const { id, summary } = await tree.uploadDirectory(await fs.realpath(path), root, roots);
    return { ...entryFields(root, 'd'), size: 0, objectId: id, summary };
  } catch (cause) {
    if (isOfTheSource(cause)) throw unreadable(path, cause);
    throw cause;
  }
}

async function uploadSingleFile(
  { files, path, policy, open, options }: UploadParts,
  root: SourceEntry,
): Promise<DirectoryEntry> {
  const file = new OpenFile(root);
  open.root = file;
  const outcome = await files.uploadStream(await fs.realpath(path), root, policy, root.name, file);
  if (outcome.kind !== 'entry') {
    options.signal.throwIfAborted();
    throw unreadable(path, new Error(outcome.kind === 'error' ? outcome.error.error : 'canceled'));
  }
  const { entry } = outcome;
  const { size, mtimeNs } = entry;
  const summary = { size, files: 1, symlinks: 0, dirs: 0, maxTimeNs: mtimeNs, numFailed: 0 };
  return { ...entry, summary };
}

async function lookAt(path: string): Promise<SourceEntry> {
  const stat = await fs.stat(path, { bigint: true });
  const fields = [stat.mode, stat.size, stat.mtimeNs, stat.uid, stat.gid, stat.dev];
  const { entries } = decodeListing({
    names: [path],
    stats: BigInt64Array.from(fields),
    targets: [],
    failures: [],
  });
  return entries[0] as SourceEntry;
}

/** Velero's block mode: a directory of mode 0777 with one file, named by the path of the device. */
async function uploadDevice(parts: UploadParts): Promise<DirectoryEntry> {
  const { repository, files, path, counters, policy, options, open } = parts;
  const mtimeNs = repository.clock.nowNs();
  const common = { mode: 0o777, mtimeNs, uid: 0, gid: 0 };
  const entries: DirectoryEntry[] = [];
  const directory = new OpenDirectory({ ...common, name: basename(path) });
  open.root = directory;
  try {
    const file = directory.openFile({ ...common, name: path });
    const { size, objectId } = await uploadRaw(files, path, file);
    entries.push({ ...common, name: path, type: 'f', size, objectId });
  } catch (error) {
    // What was stored is found again by the next run; part of a volume is no file.
    if (!options.signal.aborted) throw error;
  }
  const size = entries[0]?.size ?? 0;
  counters.files += entries.length;
  counters.totalBytes += size;
  const summary = {
    size,
    files: entries.length,
    symlinks: 0,
    dirs: 1,
    maxTimeNs: mtimeNs,
    numFailed: 0,
    ...(entries.length === 0 && { incomplete: 'canceled' }),
  };
  const compressor = metadataCompressor(policy);
  const id = await writeObject(repository.contents, [encodeDirectory(entries, summary)], {
    prefix: 'k',
    compressor,
    metadataCompressor: compressor,
    splitter: repository.splitter,
    indexSplitter: repository.splitter,
  });
  counters.directories++;
  return { ...common, name: basename(path), type: 'd', size: 0, objectId: id, summary };
}

async function uploadRaw(
  files: FileUpload,
  path: string,
  open: OpenFile,
): Promise<{ size: number; objectId: ObjectId }> {
  let file: fs.FileHandle;
  try {
    // What takes the place of a device may be a pipe that nobody writes to.
    file = await fs.open(path, O_RDONLY | O_NONBLOCK);
  } catch (cause) {
    throw unreadable(path, cause);
  }
  try {
    const stat = await file.stat();
    if (!stat.isFile() && !stat.isBlockDevice()) {
      throw unreadable(path, new Error('--block wants a block device or an image file'));
    }
    const expected = stat.isFile() ? stat.size : await deviceBytes(pinnedPath(file.fd));
    if (!Number.isSafeInteger(expected)) throw unreadable(path, new Error(TOO_LONG));
    // So do those look that were taken off their storage.
    if (expected === 0 && !stat.isFile()) throw unreadable(path, new Error('the device is empty'));
    const stored = await files
      .uploadBlocks(file, expected, stat.isFile(), open)
      .catch((cause: unknown) => {
        throw isOfTheSource(cause) ? unreadable(path, cause) : cause;
      });
    // What was cut off an image meanwhile looks like a hole to whoever asks where its data is.
    const sizeNow = stat.isFile() ? (await file.stat()).size : expected;
    const end = Math.min(stored.size, sizeNow);
    if (end < expected) {
      throw unreadable(path, new Error(`it ended after ${end} of ${expected} bytes`));
    }
    return stored;
  } finally {
    await file.close();
  }
}

/** Size of a block device as the kernel shows it: sectors of 512 bytes. */
export async function deviceBytes(path: string): Promise<number> {
  const { rdev } = await fs.stat(path);
  const numbers = `${(rdev >> 8) & 0xfff}:${(rdev & 0xff) | ((rdev >> 12) & 0xfff00)}`;
  const sectors = await fs.readFile(`/sys/dev/block/${numbers}/size`, 'utf8');
  return Number(sectors) * 512;
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
