import type { BigIntStats } from 'node:fs';
import * as fs from 'node:fs/promises';
import { basename } from 'node:path';
import type { DirectoryEntry } from '../snapshot/index.ts';
import { isOfTheSource } from './directory-looks.ts';
import { entryFields } from './file-upload.ts';
import { decodeListing, type SourceEntry } from './listing.ts';
import { OpenFile } from './open-tree.ts';
import { unreadable, type VolumeUpload } from './volume-upload.ts';

/** Stores a directory with all that is below it, or a single file. Throws `SOURCE_UNREADABLE`. */
export async function uploadRoot(parts: VolumeUpload): Promise<DirectoryEntry> {
  const { tree, path, roots, counters } = parts;
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
    const real = await fs.realpath(path);
    const before = await fs.stat(real, { bigint: true });
    const { id, summary } = await tree.uploadDirectory(real, root, roots);
    if (counters.vanished > 0) await assertSame(real, before);
    return { ...entryFields(root, 'd'), size: 0, objectId: id, summary };
  } catch (cause) {
    if (isOfTheSource(cause)) throw unreadable(path, cause);
    throw cause;
  }
}

/** Under a volume that was unmounted meanwhile all that was listed seems to be removed. */
async function assertSame(path: string, before: BigIntStats): Promise<void> {
  const now = await fs.stat(path, { bigint: true });
  if (now.dev === before.dev && now.ino === before.ino) return;
  throw unreadable(path, new Error('it was unmounted or replaced while it was read'));
}

async function uploadSingleFile(
  { files, path, policy, open, signal, counters }: VolumeUpload,
  root: SourceEntry,
): Promise<DirectoryEntry> {
  const file = new OpenFile(root);
  open.root = file;
  Object.assign(counters, { filesFound: 1, bytesFound: root.sizeBytes, isListed: true });
  const outcome = await files.uploadStream({
    path: await fs.realpath(path),
    entry: root,
    policy,
    relative: root.name,
    open: file,
  });
  if (outcome.kind !== 'entry') {
    signal.throwIfAborted();
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
