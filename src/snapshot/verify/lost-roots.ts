import { CodedError, isCode, type Nanoseconds, SECOND_NS } from '../../base/index.ts';
import {
  type ContentId,
  type IndexMarks,
  type ManifestId,
  type ObjectId,
  objectId,
  parseObjectId,
  readObject,
  type Repository,
  visitContents,
} from '../../repository/index.ts';
import type { DirectorySummary } from '../directory/directory.ts';
import { streamDirectory } from '../directory/directory-stream.ts';
import { listReadableSnapshots, type NewSnapshot, saveSnapshot } from '../snapshot-manifest.ts';
import type { SourceInfo } from '../source.ts';

/** Directory contents read from the index at once. */
const ENTRIES_AT_ONCE = 10_000;
/** Names of a lost root to show. Our choice. */
const NAMES_MAX = 5;
const STREAM_BYTES = 40;

/** The root directory of a snapshot whose manifest is lost. */
export interface LostRoot {
  readonly objectId: ObjectId;
  /** Approximate end of its backup. */
  readonly writtenNs: Nanoseconds;
  readonly summary: DirectorySummary | undefined;
  /** The first names in it, so that users can recognise it. */
  readonly names: readonly string[];
}

/**
 * Directories that no directory or snapshot refers to, newest first. Their snapshots are lost, or
 * were deleted since the last garbage collection. Reads all directories once.
 */
export async function findLostRoots(
  repository: Repository,
  { signal }: { signal: AbortSignal },
): Promise<LostRoot[]> {
  const { marks } = repository.contents.openMarks();
  try {
    const { snapshots } = await listReadableSnapshots(repository);
    for (const { rootEntry } of snapshots)
      if (rootEntry) marks.mark(parseObjectId(rootEntry.objectId).contentId);
    const indirect = await markBelow(repository, marks, signal);
    const found: LostRoot[] = [];
    for (const { entry, isMarked, prefix, deleted } of marks.rows()) {
      if (prefix !== 'k'.charCodeAt(0) || isMarked || deleted) continue;
      const { contentId, timestampSeconds } = entry;
      const id = indirect.has(contentId) ? `I${contentId}` : contentId;
      const writtenNs = BigInt(timestampSeconds) * SECOND_NS;
      found.push({ objectId: objectId(id), writtenNs, summary: undefined, names: [] });
    }
    const roots: LostRoot[] = [];
    for (const root of found) {
      signal.throwIfAborted();
      const described = await describe(repository, root);
      if (described) roots.push(described);
    }
    return roots.sort((a, b) => (a.writtenNs > b.writtenNs ? -1 : 1));
  } finally {
    marks.close();
  }
}

/** Marks the children of each directory. Returns the indexes of long directories. */
async function markBelow(
  repository: Repository,
  marks: IndexMarks,
  signal: AbortSignal,
): Promise<Set<ContentId>> {
  const { contents } = repository;
  const indirect = new Set<ContentId>();
  for (let after: ContentId | undefined; ;) {
    const part: ContentId[] = [];
    let rows = 0;
    for (const { contentId, deleted } of contents.entries({ prefix: 'k', after })) {
      after = contentId;
      if (!deleted) part.push(contentId);
      if (++rows === ENTRIES_AT_ONCE) break;
    }
    for (const contentId of part) {
      signal.throwIfAborted();
      const id = await unlessLost(kindOf(repository, contentId));
      if (id === undefined) continue;
      if (id.startsWith('I')) indirect.add(contentId);
      await unlessLost(markChildren(repository, id, marks));
    }
    if (rows < ENTRIES_AT_ONCE) return indirect;
  }
}

/** The directory that starts with this content. Undefined for other parts of long directories. */
async function kindOf(
  { contents }: Repository,
  contentId: ContentId,
): Promise<ObjectId | undefined> {
  const bytes = await readObject(contents, objectId(contentId));
  const head = Buffer.from(bytes.subarray(0, STREAM_BYTES)).toString('latin1');
  if (head.startsWith('{"stream":"kopia:indirect"')) return objectId(`I${contentId}`);
  return bytes.at(-2) === '}'.charCodeAt(0) && head.startsWith('{"stream":"kopia:directory"')
    ? objectId(contentId)
    : undefined;
}

async function markChildren(
  { contents }: Repository,
  id: ObjectId,
  marks: IndexMarks,
): Promise<void> {
  const { contentId: own } = parseObjectId(id);
  if (id.startsWith('I')) {
    await visitContents(contents, id, (each) => {
      if (each !== own) marks.mark(each);
    });
  }
  for await (const entries of streamDirectory(contents, id)) {
    for (const { type, objectId: child } of entries)
      if (type === 'd') marks.mark(parseObjectId(child).contentId);
  }
}

async function describe({ contents }: Repository, root: LostRoot): Promise<LostRoot | undefined> {
  const names: string[] = [];
  const read = async (): Promise<LostRoot> => {
    const stream = streamDirectory(contents, root.objectId);
    for (;;) {
      const { done = false, value } = await stream.next();
      if (done) return { ...root, names, summary: value as DirectorySummary | undefined };
      for (const { name } of value as { name: string }[])
        if (names.length < NAMES_MAX) names.push(name);
    }
  };
  return unlessLost(read());
}

/** Undefined for unreadable objects. */
async function unlessLost<T>(task: Promise<T>): Promise<T | undefined> {
  try {
    return await task;
  } catch (error) {
    const codes = ['DAMAGED_BLOB', 'CONTENT_NOT_FOUND', 'BAD_DIRECTORY', 'BAD_OBJECT'];
    if (isCode(error, ...codes)) return undefined;
    throw error;
  }
}

/**
 * Creates a snapshot from a root directory and returns its ID. Reuses a snapshot of the same source
 * and root. Durable after a flush. Throws `NOT_A_DIRECTORY` for other objects.
 */
export async function attachRoot(
  repository: Repository,
  root: ObjectId,
  source: SourceInfo,
): Promise<ManifestId> {
  const { contentId } = parseObjectId(root);
  if (!contentId.startsWith('k'))
    throw new CodedError('NOT_A_DIRECTORY', `object ${root} is not a directory`);
  const { snapshots } = await listReadableSnapshots(repository, { source });
  const present = snapshots.find(({ rootEntry }) => rootEntry?.objectId === root);
  if (present) return present.id;
  const writtenNs = BigInt(repository.contents.findOrThrow(contentId).timestampSeconds) * SECOND_NS;
  let summary: DirectorySummary | undefined;
  const stream = streamDirectory(repository.contents, root);
  for (let step = await stream.next(); ; step = await stream.next()) {
    if (!step.done) continue;
    summary = step.value;
    break;
  }
  return saveSnapshot(repository, attached({ root, source, writtenNs, summary }));
}

interface AttachedRoot {
  readonly root: ObjectId;
  readonly source: SourceInfo;
  readonly writtenNs: Nanoseconds;
  readonly summary: DirectorySummary | undefined;
}

/** The root's owner and mode were in the lost manifest, so they get defaults. */
function attached({ root, source, writtenNs, summary }: AttachedRoot): NewSnapshot {
  const none = { cachedFiles: 0, nonCachedFiles: 0, ignoredErrorCount: 0, excludedTotalSize: 0 };
  return {
    source,
    description: 'attached again by longshore repository repair',
    startTimeNs: writtenNs,
    endTimeNs: writtenNs,
    stats: {
      ...none,
      totalSize: summary?.size ?? 0,
      fileCount: summary?.files ?? 0,
      dirCount: summary?.dirs ?? 0,
      excludedFileCount: 0,
      excludedDirCount: 0,
      errorCount: summary?.numFailed ?? 0,
    },
    incomplete: summary?.incomplete,
    rootEntry: {
      name: source.path.split('/').findLast((part) => part !== '') ?? '/',
      type: 'd',
      mode: 0o755,
      mtimeNs: summary?.maxTimeNs ?? writtenNs,
      uid: 0,
      gid: 0,
      size: 0,
      objectId: root,
      ...(summary && { summary }),
    },
  };
}
