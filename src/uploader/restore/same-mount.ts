import { fstatSync, readFileSync } from 'node:fs';
import { CodedError, pinnedPath, printable } from '../../base/index.ts';
import { isBelow, mountsOf } from './mounts.ts';

/** Mount id of a descriptor: two mounts of a file system differ. '' if it is unknown. */
function mountIdOf(descriptor: number): string {
  try {
    const text = readFileSync(pinnedPath(descriptor).replace('/fd/', '/fdinfo/'), 'utf8');
    return /^mnt_id:\s*(\d+)/m.exec(text)?.[1] ?? '';
  } catch {
    return '';
  }
}

/** Identity of the restored directory at the time of its lock. */
export interface TargetRoot {
  /** Absolute, without links. */
  readonly path: string;
  readonly mountId: string;
  readonly device: bigint;
  readonly inode: bigint;
}

export function targetRoot(path: string, descriptor: number): TargetRoot {
  const { dev: device, ino: inode } = fstatSync(descriptor, { bigint: true });
  return { path, mountId: mountIdOf(descriptor), device, inode };
}

/** Checks a directory that was opened again by its path. Throws `TARGET_CHANGED`. */
export function assertSameRoot(descriptor: number, root: TargetRoot): void {
  const { mountId, device, inode } = targetRoot(root.path, descriptor);
  if (mountId === root.mountId && device === root.device && inode === root.inode) return;
  const text = `${printable(root.path)} is not the directory any more that it was at the start: something else was mounted or moved there`;
  throw new CodedError('TARGET_CHANGED', text);
}

/** Entries below the target must be on its own mount. Throws `MOUNT_BELOW_TARGET`. */
export function assertSameMount(descriptor: number, mountId: string, shown: string): void {
  if (mountIdOf(descriptor) !== mountId) throw mountBelow(shown);
}

/** Call it before anything is changed. Throws `MOUNT_BELOW_TARGET`. */
export function assertNoMountBelow(target: string): void {
  const below = mountsOf('/proc/self')?.find(
    ({ point }) => point !== target && isBelow(point, target),
  );
  if (below) throw mountBelow(below.point);
}

function mountBelow(path: string): CodedError {
  const text = `something is mounted at ${printable(path)}, below the target: unmount it first, so that it is not taken for a part of the target`;
  return new CodedError('MOUNT_BELOW_TARGET', text);
}
