import * as fs from 'node:fs/promises';
import { basename } from 'node:path';
import { pinnedPath } from '../../base/index.ts';
import { type ObjectId, writeObject } from '../../repository/index.ts';
import { type DirectoryEntry, encodeDirectory } from '../../snapshot/index.ts';
import { isOfTheSource } from './directories-ahead.ts';
import { TOO_LONG } from '../file-data/file-upload.ts';
import { metadataCompressor } from './upload-policy.ts';
import { type OpenAttributes, OpenDirectory, type OpenFile } from './open-tree.ts';
import { unreadable, type VolumeUpload } from './volume-upload.ts';

const { O_RDONLY, O_NONBLOCK } = fs.constants;

/**
 * Stores a device or an image in Velero's block layout: a directory of mode 0777 with one file,
 * named by the path of the device. Throws `SOURCE_UNREADABLE`.
 */
export function uploadDevice(parts: VolumeUpload): Promise<DirectoryEntry> {
  const { repository, path } = parts;
  const common = { mode: 0o777, mtimeNs: repository.clock.nowNs(), uid: 0, gid: 0 };
  const root = { ...common, name: basename(path) };
  return uploadLoneFile(parts, root, { ...common, name: path }, (file) => uploadRaw(parts, file));
}

/** Stores a device or pipe as the one file of a directory, whole or not at all. */
export async function uploadLoneFile(
  { repository, counters, policy, signal, open }: VolumeUpload,
  root: OpenAttributes,
  attributes: OpenAttributes,
  store: (file: OpenFile) => Promise<{ size: number; objectId: ObjectId }>,
): Promise<DirectoryEntry> {
  const entries: DirectoryEntry[] = [];
  const directory = new OpenDirectory(root);
  open.root = directory;
  try {
    const { size, objectId } = await store(directory.openFile(attributes));
    entries.push({ ...attributes, type: 'f', size, objectId });
  } catch (error) {
    // The next run reuses the stored contents. A part of a volume is not a file.
    if (!signal.aborted) throw error;
  }
  const size = entries[0]?.size ?? 0;
  counters.files += entries.length;
  counters.totalBytes += size;
  const summary = {
    size,
    files: entries.length,
    symlinks: 0,
    dirs: 1,
    maxTimeNs: root.mtimeNs,
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
  return { ...root, type: 'd', size: 0, objectId: id, summary };
}

async function uploadRaw(
  { files, path, counters }: VolumeUpload,
  open: OpenFile,
): Promise<{ size: number; objectId: ObjectId }> {
  let file: fs.FileHandle;
  try {
    // A pipe without a writer may have replaced the device.
    file = await fs.open(path, O_RDONLY | O_NONBLOCK);
  } catch (cause) {
    throw unreadable(path, cause);
  }
  try {
    const stat = await file.stat();
    if (!stat.isFile() && !stat.isBlockDevice()) {
      throw unreadable(path, new Error('--block requires a block device or an image file'));
    }
    const expected = stat.isFile() ? stat.size : await deviceBytes(pinnedPath(file.fd));
    if (!Number.isSafeInteger(expected)) throw unreadable(path, new Error(TOO_LONG));
    // A device that was detached from its storage looks the same.
    if (expected === 0 && !stat.isFile()) throw unreadable(path, new Error('the device is empty'));
    Object.assign(counters, { filesFound: 1, bytesFound: expected, isListed: true });
    const stored = await files
      .uploadBlocks(file, expected, stat.isFile(), open)
      .catch((cause: unknown) => {
        throw isOfTheSource(cause) ? unreadable(path, cause) : cause;
      });
    // In an image that was truncated meanwhile, the missing part looks like a hole.
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

/** Size of a block device, from the kernel: sectors of 512 bytes. */
export async function deviceBytes(path: string): Promise<number> {
  const { rdev } = await fs.stat(path);
  const numbers = `${(rdev >> 8) & 0xfff}:${(rdev & 0xff) | ((rdev >> 12) & 0xfff00)}`;
  const sectors = await fs.readFile(`/sys/dev/block/${numbers}/size`, 'utf8');
  return Number(sectors) * 512;
}
