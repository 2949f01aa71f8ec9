import { readFile, stat } from 'node:fs/promises';
import type { BigIntStats } from 'node:fs';
import { dirname } from 'node:path';
import { CodedError } from '../base/index.ts';

/** Identifies a mounted volume. An unmounted volume looks empty, and must not pass for it. */
export interface VolumeIdentity {
  readonly device: bigint;
  readonly inode: bigint;
}

/** Identity of the root directory, or of the device. */
export async function identityOf(path: string): Promise<VolumeIdentity> {
  const { dev, ino } = await stat(path, { bigint: true });
  return { device: dev, inode: ino };
}

/** Throws `VOLUME_GONE` unless the path still leads to the same volume. */
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
  // A removed directory still exists for processes that have it mounted, without a name.
  const isSame =
    found && found.nlink > 0n && found.dev === before.device && found.ino === before.inode;
  if (isSame) return;
  const text = `the volume was unmounted or removed while it was being ${task}: ${path}`;
  throw new CodedError('VOLUME_GONE', text, { cause });
}

/**
 * Directories on which the kubelet mounts volumes. Directories of emptyDir and gitRepo hold the
 * data themselves. A mount table names a directory below the root of its file system. The path
 * above the pod's UID varies: the kubelet's directory may be a disk of its own, or a link.
 */
const MOUNT_POINT =
  /\/[^/]+\/volumes\/(?!kubernetes\.io~(?:empty-dir|git-repo)\/)[^/]+~[^/]+\/[^/]+(?:\/mount)?$/;

/** End of the message if the volume was not mounted. The agent then starts the mover again. */
export const NOT_MOUNTED_SUFFIX = "is the kubelet's own directory";

/** Throws `VOLUME_GONE` without a mount. After a reboot the kubelet's directory exists first. */
export async function assertMounted(path: string, mountInfo = readMounts()): Promise<void> {
  const root = rootMountedAt(path, await mountInfo);
  if (root === undefined || !MOUNT_POINT.test(root)) return;
  const text = `the volume is not mounted on its node yet, or not any more: ${root} ${NOT_MOUNTED_SUFFIX}`;
  throw new CodedError('VOLUME_GONE', text);
}

const readMounts = (): Promise<string> => readFile('/proc/self/mountinfo', 'utf8').catch(() => '');

/** Whether a whole file system is mounted at the path, so that its usage is the volume's. */
export async function isOwnFileSystem(path: string): Promise<boolean> {
  const [volume, above] = await Promise.all([stat(path), stat(dirname(path))]);
  if (volume.dev === above.dev) return false;
  const root = rootMountedAt(path, await readMounts());
  return root === undefined || root === '/';
}

/** Directory that a mount shows (proc_pid_mountinfo(5)); undefined if `path` is no mount point. */
export function rootMountedAt(path: string, mountInfo: string): string | undefined {
  let root: string | undefined;
  for (const line of mountInfo.split('\n')) {
    const [, , , mounted, at] = line.split(' ');
    // Later mounts cover earlier mounts.
    if (at !== undefined && unescaped(at) === path) root = unescaped(mounted ?? '');
  }
  return root;
}

const unescaped = (text: string): string =>
  text.replace(/\\([0-7]{3})/g, (_all, digits: string) =>
    String.fromCharCode(Number.parseInt(digits, 8)),
  );
