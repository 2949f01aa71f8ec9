import { chmodSync, chownSync, fchmodSync, fchownSync } from 'node:fs';
import { pinnedPath, posix, systemCode } from '../base/index.ts';

export interface FileAttributes {
  /** 0o7777. */
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly mtimeNs: bigint;
}

/**
 * Owner, then mode (a change of owner clears setuid), then time, of a file that is open; after its last write.
 * Without the right to give files away the owner stays, as Velero's restore ignores permission errors.
 */
export function applyAttributesToDescriptor(descriptor: number, attributes: FileAttributes): void {
  const { uid, gid, mode, mtimeNs } = attributes;
  unlessNotPermitted(() => fchownSync(descriptor, uid, gid));
  fchmodSync(descriptor, mode);
  posix().setDescriptorTime(descriptor, mtimeNs);
}

/** The same for whatever a descriptor is of, also one that `O_PATH` opened. Symlinks have no mode. */
export function applyAttributesToPinned(
  descriptor: number,
  attributes: FileAttributes,
  isLink: boolean,
): void {
  const path = pinnedPath(descriptor);
  unlessNotPermitted(() => chownSync(path, attributes.uid, attributes.gid));
  if (!isLink) chmodSync(path, attributes.mode);
  posix().setPinnedTime(descriptor, attributes.mtimeNs);
}

function unlessNotPermitted(call: () => void): void {
  try {
    call();
  } catch (error) {
    if (systemCode(error) !== 'EPERM') throw error;
  }
}
