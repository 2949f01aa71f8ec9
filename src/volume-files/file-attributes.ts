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
 * What is not permitted stays as it is, in Velero's restores and by default in Kopia's: a directory of somebody else may take all
 * files and no mode, as at the top of a network share, and some file systems keep no owners or modes.
 */
export function applyAttributesToDescriptor(descriptor: number, attributes: FileAttributes): void {
  const { uid, gid, mode, mtimeNs } = attributes;
  unlessNotPermitted(() => {
    fchownSync(descriptor, uid, gid);
  });
  unlessNotPermitted(() => {
    fchmodSync(descriptor, mode);
  });
  unlessNotPermitted(() => {
    posix().setDescriptorTime(descriptor, mtimeNs);
  });
}

/** The same for whatever a descriptor is of, also one that `O_PATH` opened. Symlinks have no mode. */
export function applyAttributesToPinned(
  descriptor: number,
  attributes: FileAttributes,
  isLink: boolean,
): void {
  const path = pinnedPath(descriptor);
  unlessNotPermitted(() => {
    chownSync(path, attributes.uid, attributes.gid);
  });
  unlessNotPermitted(() => {
    if (!isLink) chmodSync(path, attributes.mode);
  });
  unlessNotPermitted(() => {
    posix().setPinnedTime(descriptor, attributes.mtimeNs);
  });
}

/** What Go counts as a permission error. */
const NOT_PERMITTED = ['EPERM', 'EACCES'];

function unlessNotPermitted(call: () => void): void {
  try {
    call();
  } catch (error) {
    if (!NOT_PERMITTED.includes(systemCode(error) ?? '')) throw error;
  }
}
