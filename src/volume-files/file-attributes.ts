import { chmodSync, chownSync, fchmodSync, fchownSync, fstatSync } from 'node:fs';
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
  const { uid, gid, mtimeNs } = attributes;
  const isOwned = unlessNotPermitted(() => {
    fchownSync(descriptor, uid, gid);
  });
  unlessNotPermitted(() => {
    fchmodSync(descriptor, modeFor(descriptor, attributes, isOwned));
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
  const isOwned = unlessNotPermitted(() => {
    chownSync(path, attributes.uid, attributes.gid);
  });
  unlessNotPermitted(() => {
    if (!isLink) chmodSync(path, modeFor(descriptor, attributes, isOwned));
  });
  unlessNotPermitted(() => {
    posix().setPinnedTime(descriptor, attributes.mtimeNs);
  });
}

/** A file with these runs as its owner or its group, whoever starts it. Of directories they say whose what is made in them is. */
export const RUNS_AS_OWNER = 0o6000;

/** What was to run as somebody else must not run as who restores it, as with cp and tar. */
function modeFor(descriptor: number, { mode, uid, gid }: FileAttributes, isOwned: boolean): number {
  if (isOwned || (mode & RUNS_AS_OWNER) === 0) return mode;
  const found = fstatSync(descriptor);
  const keeps = found.isDirectory() || (found.uid === uid && found.gid === gid);
  return keeps ? mode : mode & ~RUNS_AS_OWNER;
}

/** What Go counts as a permission error. */
const NOT_PERMITTED = ['EPERM', 'EACCES'];

/** Whether it was permitted. */
function unlessNotPermitted(call: () => void): boolean {
  try {
    call();
    return true;
  } catch (error) {
    if (!NOT_PERMITTED.includes(systemCode(error) ?? '')) throw error;
    return false;
  }
}
