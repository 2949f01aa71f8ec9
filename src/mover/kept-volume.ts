import { readFile, stat, statfs } from 'node:fs/promises';

/** File systems that are in memory, by their number in statfs(2): tmpfs, hugetlbfs, ramfs. */
const IN_MEMORY: readonly number[] = [0x01021994, 0x958458f6, 0x858458f6];

/** What is noted of a volume when all its data have been written. */
export interface WrittenVolume {
  /** Of the node at that time. */
  readonly bootId: string;
  /**
   * Inode and birth time of its root directory; undefined where its file system knows no birth
   * times.
   */
  readonly root?: string | undefined;
  /** Whether it is of a PersistentVolumeClaim: such ones outlive a start of their node. */
  readonly isOfClaim?: boolean | undefined;
  /** Name of that claim, where it outlives its pod: one of a generic ephemeral volume does not. */
  readonly lastingClaim?: string | undefined;
}

/** Another one after each start of the node. */
const loadBootId = async (): Promise<string> =>
  (await readFile('/proc/sys/kernel/random/boot_id', 'utf8')).trim();

/** Without its device: that has another number after a start of the node. */
async function rootOf(path: string): Promise<string | undefined> {
  const { ino, birthtimeNs } = await stat(path, { bigint: true });
  return birthtimeNs === 0n ? undefined : [ino, birthtimeNs].join(' ');
}

export const describeWritten = async (path: string): Promise<WrittenVolume> => ({
  bootId: await loadBootId(),
  root: await rootOf(path),
});

/** Whether the files at a path are in memory, and on no disk that they are written back to. */
export const isInMemory = async (path: string): Promise<boolean> =>
  IN_MEMORY.includes((await statfs(path)).type);

/**
 * Whether a volume still has what was written to it. A start of the node empties those in memory,
 * and on disks that are formatted anew; their root directory is a new one then. Where birth times
 * are unknown, only volumes of claims are believed in.
 */
export async function isKept(path: string, written: WrittenVolume): Promise<boolean> {
  if (written.bootId === (await loadBootId())) return true;
  const root = await rootOf(path);
  if (root !== undefined && written.root !== undefined) return root === written.root;
  if (written.isOfClaim !== true) return false;
  return !(await isInMemory(path));
}
