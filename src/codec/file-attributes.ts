import { chmodSync, fchmodSync, fchownSync, lchownSync } from 'node:fs';
import { posix, systemCode } from '../base/index.ts';
import type { FileAttributes } from './pool.ts';

/**
 * Owner, then mode (a change of owner clears setuid), then time. Without the right to give files
 * away the owner stays, as Velero's restore ignores permission errors. Not for symlinks.
 */
export function applyAttributes(path: string, attributes: FileAttributes): void {
  const { uid, gid, mode, mtimeNs } = attributes;
  try {
    lchownSync(path, uid, gid);
  } catch (error) {
    if (systemCode(error) !== 'EPERM') throw error;
  }
  chmodSync(path, mode);
  posix().setModificationTime(path, mtimeNs);
}

/** The same for a file that is open; after its last write. */
export function applyAttributesToDescriptor(descriptor: number, attributes: FileAttributes): void {
  const { uid, gid, mode, mtimeNs } = attributes;
  try {
    fchownSync(descriptor, uid, gid);
  } catch (error) {
    if (systemCode(error) !== 'EPERM') throw error;
  }
  fchmodSync(descriptor, mode);
  posix().setDescriptorTime(descriptor, mtimeNs);
}
