import type { BigIntStats } from 'node:fs';
import * as fs from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import type { DirectoryEntry } from '../../snapshot/index.ts';
import { NO_ENTRIES } from '../../volume-files/index.ts';
import { isOfTheSource } from './directories-ahead.ts';
import { entryFields } from '../file-data/file-upload.ts';
import { decodeListing, type SourceEntry } from '../listing/listing.ts';
import { OpenFile } from './open-tree.ts';
import { withRecorded } from '../listing/previous-entries.ts';
import { unreadable, type VolumeUpload } from './volume-upload.ts';

/** Stores a directory with its subtree, or a single file. Throws `SOURCE_UNREADABLE`. */
export async function uploadRoot(parts: VolumeUpload): Promise<DirectoryEntry> {
  const { tree, path, roots, counters, extras } = parts;
  let root: SourceEntry;
  try {
    root = await lookAt(await fs.realpath(path), parts);
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
    const entry = { ...entryFields(root, 'd'), size: 0, objectId: id, summary };
    // Without the note, the next upload reads the attributes of all files again.
    return counters.attributesUnread > 0 ? entry : withRecorded(entry, extras);
  } catch (cause) {
    if (isOfTheSource(cause)) throw unreadable(path, cause);
    throw cause;
  }
}

/** If the volume was unmounted meanwhile, all listed files seem to be removed. */
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

/** The root itself never belongs to a group of hard links. */
async function lookAt(path: string, parts: VolumeUpload): Promise<SourceEntry> {
  const { repository, files, extras } = parts;
  const { dev, mode } = await fs.stat(path, { bigint: true });
  const isDirectory = (mode & S_IFMT) === S_IFDIR;
  const [within, name] = isDirectory ? [path, '.'] : [dirname(path), basename(path)];
  const rules = extras && { xattrs: extras.xattrs, links: false, device: dev };
  const names = Buffer.from(`${name}\0`);
  const listing = await repository.dataPath?.pool.lookAt(within, names, rules);
  const { entries, unread, failures } = decodeListing({ ...NO_ENTRIES, ...listing, names: [path] });
  const [failed] = failures;
  if (failed)
    throw Object.assign(new Error(failed.message), { code: failed.code, syscall: 'lstat' });
  for (const { message } of unread) files.attributesUnread('', message);
  return entries[0] as SourceEntry;
}

const S_IFMT = 0o170000n;
const S_IFDIR = 0o040000n;
