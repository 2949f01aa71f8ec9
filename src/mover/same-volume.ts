import { readFile, stat } from 'node:fs/promises';
import type { BigIntStats } from 'node:fs';
import { dirname } from 'node:path';
import { CodedError } from '../base/index.ts';

/**
 * What a mounted volume is known by. An unmounted one looks like an empty one: it must never pass
 * for the volume.
 */
export interface VolumeIdentity {
  readonly device: bigint;
  readonly inode: bigint;
}

/** Of the root directory, or of the device. */
export async function identityOf(path: string): Promise<VolumeIdentity> {
  const { dev, ino } = await stat(path, { bigint: true });
  return { device: dev, inode: ino };
}

/** Throws `VOLUME_GONE` unless what is at the path is still what was there at the beginning. */
export async function assertSameVolume(
  path: string,
  before: VolumeIdentity,
  task: 'read' | 'written',
): Promise<void> {
  let found: BigIntStats | undefined;
  let cause: unknown;
  try {
    found = await stat(path, { bigint: true });
  } catch (error) {
    cause = error;
  }
  // A directory that was removed is still there for those who have it mounted, without a name.
  const isSame =
    found && found.nlink > 0n && found.dev === before.device && found.ino === before.inode;
  if (isSame) return;
  const text = `the volume was unmounted or removed while it was being ${task}: ${path}`;
  throw new CodedError('VOLUME_GONE', text, { cause });
}

/**
 * The kubelet's own directories of volumes that it mounts; those of emptyDir and gitRepo hold the
 * data themselves. A mount table names a directory below the root of its file system: what is above
 * the pod's UID is not there where the kubelet's directory of pods is a disk of its own, and has
 * another name where it is a link.
 */
const MOUNT_POINT =
  /\/[^/]+\/volumes\/(?!kubernetes\.io~(?:empty-dir|git-repo)\/)[^/]+~[^/]+\/[^/]+(?:\/mount)?$/;

/** What ends the message of a mover whose volume was not mounted: its agent starts it again. */
export const NOT_MOUNTED_SUFFIX = "is the kubelet's own directory";

/**
 * After a reboot the kubelet's directory is there before the volume is mounted on it. Throws
 * `VOLUME_GONE`.
 */
export async function assertMounted(path: string, mountInfo = readMounts()): Promise<void> {
  const root = rootMountedAt(path, await mountInfo);
  if (root === undefined || !MOUNT_POINT.test(root)) return;
  const text = `the volume is not mounted on its node yet, or not any more: ${root} ${NOT_MOUNTED_SUFFIX}`;
  throw new CodedError('VOLUME_GONE', text);
}

const readMounts = (): Promise<string> => readFile('/proc/self/mountinfo', 'utf8').catch(() => '');

/**
 * Whether a file system of its own is mounted there, with all of it: then what it holds is what the
 * volume holds.
 */
export async function isOwnFileSystem(path: string): Promise<boolean> {
  const [volume, above] = await Promise.all([stat(path), stat(dirname(path))]);
  if (volume.dev === above.dev) return false;
  const root = rootMountedAt(path, await readMounts());
  return root === undefined || root === '/';
}

/**
 * Which directory of its file system a mount shows (proc_pid_mountinfo(5)); undefined where nothing
 * is mounted at the path.
 */
export function rootMountedAt(path: string, mountInfo: string): string | undefined {
  let root: string | undefined;
  for (const line of mountInfo.split('\n')) {
    const [, , , mounted, at] = line.split(' ');
    // Later ones cover earlier ones.
    if (at !== undefined && unescaped(at) === path) root = unescaped(mounted ?? '');
  }
  return root;
}

const unescaped = (text: string): string =>
  text.replace(/\\([0-7]{3})/g, (_all, digits: string) =>
    String.fromCharCode(Number.parseInt(digits, 8)),
  );
