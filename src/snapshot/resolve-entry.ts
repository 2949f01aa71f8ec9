import { CodedError } from '../base/index.ts';
import {
  isDirectoryObject,
  objectLength,
  listPieces,
  objectId,
  type ObjectId,
  parseObjectId,
  type Repository,
} from '../repository/index.ts';
import { recordedIn, withNote } from '../volume-files/index.ts';
import type { DirectoryEntry, DirectorySummary } from './directory/directory.ts';
import { findInDirectory } from './directory/find-in-directory.ts';
import { getSnapshot, noSuchSnapshot, type Snapshot } from './snapshot-manifest.ts';
import { findSnapshotId } from './snapshot-name.ts';
import type { SourceInfo } from './source.ts';

/**
 * Finds the entry for a snapshot name ({@link findSnapshotId}) or an object ID, optionally with
 * `/sub/path`. Throws `SNAPSHOT_NOT_FOUND`, `AMBIGUOUS_SNAPSHOT`, `PATH_NOT_FOUND`,
 * `BAD_SNAPSHOT_NAME`, and the signal's reason.
 */
export async function resolveEntry(
  repository: Repository,
  text: string,
  source?: SourceInfo,
  options: { signal?: AbortSignal | undefined } = {},
): Promise<DirectoryEntry> {
  const [id = '', ...path] = text.split('/');
  const root = await resolveRoot(repository, id, source);
  let entry = root;
  for (const [depth, name] of path.entries()) {
    if (name === '') continue;
    const child =
      entry.type === 'd'
        ? await findInDirectory(repository, entry.objectId, { name }, options)
        : undefined;
    if (!child) {
      const shown = path.slice(0, depth + 1).join('/');
      throw new CodedError('PATH_NOT_FOUND', `there is no ${shown} in ${id}`);
    }
    entry = child;
  }
  const recorded = recordedIn(root.extra);
  if (entry === root || recorded === '') return entry;
  return { ...entry, extra: withNote(entry.extra, recorded) };
}

/** The snapshot and path for a name. Undefined for an object without a snapshot. */
export async function resolveOrigin(
  repository: Repository,
  text: string,
  source?: SourceInfo,
): Promise<{ snapshot: Snapshot; root: DirectoryEntry; path: string } | undefined> {
  const [name = '', ...path] = text.split('/');
  const id = await findSnapshotId(repository, name, source);
  if (id === undefined) return undefined;
  const snapshot = await getSnapshot(repository, id);
  const { rootEntry: root } = snapshot;
  return root && { snapshot, root, path: path.join('/') };
}

async function resolveRoot(
  repository: Repository,
  name: string,
  source: SourceInfo | undefined,
): Promise<DirectoryEntry> {
  // Snapshot IDs look like content IDs, so try snapshots first.
  const id = await findSnapshotId(repository, name, source);
  if (id === undefined) return objectEntry(repository, name);
  const { rootEntry, incomplete } = await getSnapshot(repository, id);
  if (!rootEntry) throw new CodedError('DAMAGED_SNAPSHOT', `snapshot ${id} has no root`);
  return incomplete === undefined ? rootEntry : asIncomplete(rootEntry, incomplete);
}

/** The checkpoint of a single file has no summary, so create one. */
function asIncomplete(root: DirectoryEntry, incomplete: string): DirectoryEntry {
  const { size, mtimeNs, type } = root;
  const [files, dirs] = type === 'd' ? [0, 1] : [1, 0];
  const counts = { size, files, symlinks: 0, dirs, numFailed: 0 };
  const summary: DirectorySummary = root.summary ?? { ...counts, maxTimeNs: mtimeNs };
  return { ...root, summary: { ...summary, incomplete: summary.incomplete ?? incomplete } };
}

async function objectEntry(repository: Repository, id: string): Promise<DirectoryEntry> {
  const object = parseName(id);
  if (!repository.contents.find(parseObjectId(object).contentId)) {
    // Not CONTENT_NOT_FOUND: users mostly mean a deleted snapshot, and no data is lost.
    throw new CodedError('SNAPSHOT_NOT_FOUND', `there is neither a snapshot nor an object ${id}`);
  }
  const plain = { name: id, mtimeNs: 0n, uid: 0, gid: 0, objectId: object };
  if (isDirectoryObject(object)) return { ...plain, type: 'd', mode: 0o755, size: 0 };
  const size = objectLength(await listPieces(repository.contents, object));
  return { ...plain, type: 'f', mode: 0o644, size };
}

function parseName(text: string): ObjectId {
  try {
    return objectId(text);
  } catch (cause) {
    if (/^[0-9a-f]+$/.test(text)) throw noSuchSnapshot(text);
    const message = `"${text.slice(0, 80)}" is neither a snapshot nor the ID of an object`;
    throw new CodedError('BAD_SNAPSHOT_NAME', message, { cause });
  }
}
