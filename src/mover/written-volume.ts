import { readFile, stat, statfs } from 'node:fs/promises';

/** statfs(2) types of in-memory file systems: tmpfs, hugetlbfs, ramfs. */
const IN_MEMORY: readonly number[] = [0x01021994, 0x958458f6, 0x858458f6];

/** Record about a volume, made when all its data are written. */
export interface WrittenVolume {
  /** Boot id of the node at that time. */
  readonly bootId: string;
  /** Inode and birth time of its root directory; undefined without birth times. */
  readonly root?: string | undefined;
  /** Whether it belongs to a PersistentVolumeClaim, which survives a reboot of the node. */
  readonly isOfClaim?: boolean | undefined;
  /** Name of the claim if it outlives its pod. Claims of generic ephemeral volumes do not. */
  readonly lastingClaim?: string | undefined;
}

/** Changes with each boot of the node. */
const loadBootId = async (): Promise<string> =>
  (await readFile('/proc/sys/kernel/random/boot_id', 'utf8')).trim();

/** Without the device number, which changes with a reboot. */
async function rootOf(path: string): Promise<string | undefined> {
  const { ino, birthtimeNs } = await stat(path, { bigint: true });
  return birthtimeNs === 0n ? undefined : [ino, birthtimeNs].join(' ');
}

export const describeWritten = async (path: string): Promise<WrittenVolume> => ({
  bootId: await loadBootId(),
  root: await rootOf(path),
});

export const isInMemory = async (path: string): Promise<boolean> =>
  IN_MEMORY.includes((await statfs(path)).type);

/**
 * Whether a volume still has its written data. A reboot empties volumes in memory, and disks that
 * are formatted at boot; their root directory is then new. Without birth times, only volumes of
 * claims count as kept.
 */
export async function isKept(path: string, written: WrittenVolume): Promise<boolean> {
  if (written.bootId === (await loadBootId())) return true;
  const root = await rootOf(path);
  if (root !== undefined && written.root !== undefined) return root === written.root;
  if (written.isOfClaim !== true) return false;
  return !(await isInMemory(path));
}
