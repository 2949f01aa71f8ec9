import { constants } from 'node:fs';
import * as fs from 'node:fs/promises';
import { randomBytes } from 'node:crypto';
import { CodedError, messageOf, pinnedPath, refusalOf, systemCode } from '../base/index.ts';
import type { Repository } from '../repository/index.ts';
import type { DirectoryEntry } from '../snapshot/index.ts';

const { O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_WRONLY } = constants;

/** Directory of the marks in the root of each volume (Velero 1.18: cmd/velero-restore-helper). */
export const MARK_DIRECTORY = '.velero';
/** The helper, user 1000, must be able to search the directory and to see the file. */
const DIRECTORY_MODE = 0o755;
const DIRECTORY_MODE_MIN = 0o005;
const FILE_MODE = 0o644;
const FILE_MODE_MIN = 0o004;
/** Names in memory at once while a directory is emptied. Our choice. */
const BATCH = 1000;
/** Some file systems cannot flush directories. */
const NO_DIRECTORY_FLUSH = ['EINVAL', 'ENOTSUP', 'EBADF'];

/** Whether a name from a CR is the name of one directory entry. */
export const isMarkName = (name: string): boolean =>
  /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/.test(name);

/** Whether the volume has this mark. Links are not followed. */
export async function hasDoneMark(volume: string, name: string): Promise<boolean> {
  try {
    await using root = await openDirectory(volume);
    await using marks = await openDirectory(pathIn(root, MARK_DIRECTORY), O_NOFOLLOW);
    return (await fs.lstat(pathIn(marks, name))).isFile();
  } catch {
    return false;
  }
}

/**
 * Removes the directory of marks, or any other entry with its name. Old marks of a restore or of
 * the backup would start the pod before its data are there. Throws `TARGET_UNUSABLE`.
 */
export async function removeMarks(volume: string, signal: AbortSignal): Promise<void> {
  try {
    await using root = await openDirectory(volume);
    await removeFrom(root, signal);
  } catch (cause) {
    signal.throwIfAborted();
    const text = `cannot restore to ${volume}: what is at ${MARK_DIRECTORY} there cannot be removed: ${refusalOf(cause)}`;
    throw new CodedError('TARGET_UNUSABLE', text, { cause });
  }
}

export interface DoneMark {
  readonly volume: string;
  readonly name: string;
  /** Attributes for the volume's root directory; undefined if it already has them. */
  readonly root: DirectoryEntry | undefined;
  readonly repository: Repository;
  /** Called right before the mark is written, after everything else. Its errors pass through. */
  readonly beforeMark?: (() => Promise<void>) | undefined;
  readonly signal: AbortSignal;
}

/**
 * Tells the waiting pod that its volume is restored. Sets the attributes of the root directory
 * first, because the pod starts within a second. Throws `NO_DONE_MARK`.
 */
export async function writeDoneMark({
  volume,
  name,
  root: entry,
  repository,
  beforeMark,
  signal,
}: DoneMark): Promise<void> {
  let refused: { readonly error: unknown } | undefined;
  try {
    await using root = await openDirectory(volume);
    const mode = await makeWritable(root);
    await removeFrom(root, signal);
    await fs.mkdir(pathIn(root, MARK_DIRECTORY), DIRECTORY_MODE);
    await using marks = await openDirectory(pathIn(root, MARK_DIRECTORY), O_NOFOLLOW);
    await setMode(marks, DIRECTORY_MODE, DIRECTORY_MODE_MIN);
    if (entry?.type === 'd') {
      await repository.dataPath?.pool.setAttributes(root.fd, entry, false);
    } else if (!entry && mode !== undefined) await root.chmod(mode);
    await flushDirectory(root);
    signal.throwIfAborted();
    await beforeMark?.().catch((error: unknown) => {
      refused = { error };
      throw error;
    });
    signal.throwIfAborted();
    await using mark = await fs.open(
      pathIn(marks, name),
      O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW,
      FILE_MODE,
    );
    await setMode(mark, FILE_MODE, FILE_MODE_MIN);
    await mark.sync();
    await flushDirectory(marks);
  } catch (cause) {
    signal.throwIfAborted();
    if (refused) throw refused.error;
    const text = `all data were restored, but the file ${MARK_DIRECTORY}/${name} that the pod waits for could not be written: ${refusalOf(cause)}; check that the volume can be written and has room, delete the pod and restore again`;
    throw new CodedError('NO_DONE_MARK', text, { cause });
  }
}

const openDirectory = (path: string | Buffer, flags = 0): Promise<fs.FileHandle> =>
  fs.open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | flags);

const pathIn = (directory: fs.FileHandle, name: string): string =>
  `${pinnedPath(directory.fd)}/${name}`;

/** Names are bytes: they need not be UTF-8. */
const rawPathIn = (directory: fs.FileHandle, name: Buffer): Buffer =>
  Buffer.concat([Buffer.from(`${pinnedPath(directory.fd)}/`), name]);

/** The root may be closed to its owner, and this process not root. Returns a mode to restore. */
async function makeWritable(root: fs.FileHandle): Promise<number | undefined> {
  const { mode } = await root.stat();
  if ((mode & 0o300) === 0o300) return undefined;
  // If this fails, the later write reports the reason.
  await root.chmod((mode & 0o7777) | 0o300).catch(() => undefined);
  return mode & 0o7777;
}

/**
 * Works by descriptors and follows no link. Takes a tree apart from the top, and moves its
 * directories up to {@link MARK_DIRECTORY}. At any depth, only two directories are open.
 */
async function removeFrom(root: fs.FileHandle, signal: AbortSignal): Promise<void> {
  const path = pathIn(root, MARK_DIRECTORY);
  const found = await fs.lstat(path).catch((error: unknown) => {
    if (systemCode(error) === 'ENOENT') return undefined;
    throw error;
  });
  if (!found) return;
  if (!found.isDirectory()) {
    await fs.unlink(path);
    return;
  }
  {
    await using marks = await openDirectory(path, O_NOFOLLOW);
    await makeWritable(marks);
    await eachName(marks, signal, async (name, isDirectory) => {
      if (!isDirectory) {
        await fs.unlink(rawPathIn(marks, name));
        return;
      }
      {
        await using below = await openDirectory(rawPathIn(marks, name), O_NOFOLLOW);
        await makeWritable(below);
        await eachName(below, signal, async (child, isTree) => {
          const from = rawPathIn(below, child);
          if (!isTree) await fs.unlink(from);
          else await fs.rename(from, pathIn(marks, `moved-${randomBytes(12).toString('hex')}`));
        });
      }
      await fs.rmdir(rawPathIn(marks, name));
    });
  }
  await fs.rmdir(path);
}

/** Repeats until the directory is empty, because `take` removes every entry. */
async function eachName(
  directory: fs.FileHandle,
  signal: AbortSignal,
  take: (name: Buffer, isDirectory: boolean) => Promise<void>,
): Promise<void> {
  for (;;) {
    const names = await someNames(directory);
    if (names.length === 0) return;
    for (const name of names) {
      signal.throwIfAborted();
      await take(name, (await fs.lstat(rawPathIn(directory, name))).isDirectory());
    }
  }
}

async function someNames(directory: fs.FileHandle): Promise<Buffer[]> {
  const names: Buffer[] = [];
  const path = `${pinnedPath(directory.fd)}/.`;
  const entries = await fs.opendir(path, { encoding: 'buffer' as BufferEncoding });
  try {
    while (names.length < BATCH) {
      const entry = await entries.read();
      if (entry === null) break;
      names.push(Buffer.from(entry.name));
    }
  } finally {
    await entries.close();
  }
  return names;
}

/** Some file systems set modes of their own. The helper needs at least the bits in `least`. */
async function setMode(handle: fs.FileHandle, mode: number, least: number): Promise<void> {
  let refusal = '';
  await handle.chmod(mode).catch((error: unknown) => {
    refusal = `: ${messageOf(error)}`;
  });
  const found = await handle.stat();
  if ((found.mode & least) === least) return;
  throw new Error(`its mode stays ${(found.mode & 0o7777).toString(8)}${refusal}`);
}

async function flushDirectory(directory: fs.FileHandle): Promise<void> {
  try {
    await directory.sync();
  } catch (error) {
    if (!NO_DIRECTORY_FLUSH.includes(systemCode(error) ?? '')) throw error;
  }
}
