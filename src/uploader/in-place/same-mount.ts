import { readFileSync } from 'node:fs';
import { CodedError, pinnedPath, printable } from '../../base/index.ts';
import { isBelow, mountsOf } from './mounts.ts';

/** Number of the mount through which a descriptor was opened, also where one file system is mounted twice; '' where it cannot be read. */
export function mountIdOf(descriptor: number): string {
  try {
    const text = readFileSync(pinnedPath(descriptor).replace('/fd/', '/fdinfo/'), 'utf8');
    return /^mnt_id:\s*(\d+)/m.exec(text)?.[1] ?? '';
  } catch {
    return '';
  }
}

/** What is opened below the target has to be of its own mount. Throws `MOUNT_BELOW_TARGET`. */
export function assertSameMount(descriptor: number, mountId: string, shown: string): void {
  if (mountIdOf(descriptor) !== mountId) throw mountBelow(shown);
}

/** Before anything is changed. Throws `MOUNT_BELOW_TARGET`. */
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
