import { chmodSync, chownSync, fchmodSync, fchownSync, fstatSync } from 'node:fs';
import { pinnedPath, posix, systemCode } from '../base/index.ts';
import { applyExtra } from './extra-attributes.ts';

export interface FileAttributes {
  /** Bits of 0o7777. */
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly mtimeNs: bigint;
  /** Text of `ExtraAttributes`. */
  readonly extra?: string | undefined;
  /** Removes access lists that the entry inherited from its directory. */
  readonly dropsLists?: boolean | undefined;
  /** Also removes extended attributes that `extra` lacks. */
  readonly isExact?: boolean | undefined;
}

/** Attributes that could not be set, one bit each, for messages of threads. 0: all are set. */
export type NotSet = number;
export const NOT_SET = { owner: 1, mode: 2, time: 4, xattrs: 8, link: 16, node: 32 } as const;

/**
 * Sets owner, extended attributes, mode and time of an open file, in this order. Call it after the
 * last write. A change of owner clears capabilities and setuid, and the mode is part of an access
 * list. Continues if an attribute is refused, and returns the refused ones. Velero and Kopia
 * continue silently. For example, the top of a network share may refuse modes. Some file systems
 * keep no owners or modes.
 */
export const applyAttributesToDescriptor = (
  descriptor: number,
  attributes: FileAttributes,
): NotSet =>
  apply(descriptor, attributes, {
    own: () => fchownSync(descriptor, attributes.uid, attributes.gid),
    setMode: (mode) => fchmodSync(descriptor, mode),
    setTime: () => posix().setDescriptorTime(descriptor, attributes.mtimeNs),
  });

/** The same for any pinned entry, also if it was opened with `O_PATH`. Symlinks have no mode. */
export function applyAttributesToPinned(
  descriptor: number,
  attributes: FileAttributes,
  isLink: boolean,
): NotSet {
  const path = pinnedPath(descriptor);
  return apply(descriptor, attributes, {
    own: () => {
      const { uid, gid } = fstatSync(descriptor);
      // Any change of owner clears capabilities.
      if (uid === attributes.uid && gid === attributes.gid) return;
      chownSync(path, attributes.uid, attributes.gid);
    },
    setMode: (mode) => {
      if (!isLink) chmodSync(path, mode);
    },
    setTime: () => posix().setPinnedTime(descriptor, attributes.mtimeNs),
  });
}

function apply(
  descriptor: number,
  attributes: FileAttributes,
  calls: { own: () => void; setMode: (mode: number) => void; setTime: () => void },
): NotSet {
  let notSet: NotSet = 0;
  const isOwned = unlessRefused(calls.own);
  if (!isOwned) notSet |= NOT_SET.owner;
  if (!applyExtra(descriptor, attributes, isOwned)) notSet |= NOT_SET.xattrs;
  const mode = modeFor(descriptor, attributes, isOwned);
  const isModeSet = unlessRefused(() => {
    calls.setMode(mode);
  });
  // The kernel drops setgid without an error if the process is not in the group of the file.
  const isKept = (mode & RUNS_AS_OWNER) === 0 || (fstatSync(descriptor).mode & mode) === mode;
  if (!isModeSet || !isKept || mode !== attributes.mode) notSet |= NOT_SET.mode;
  if (!unlessRefused(calls.setTime)) notSet |= NOT_SET.time;
  return notSet;
}

/** A file runs as its owner or group. In a directory, new entries inherit the owner or group. */
export const RUNS_AS_OWNER = 0o6000;

/** A setuid program must not run as the user who restores it, as with cp and tar. */
function modeFor(descriptor: number, { mode, uid, gid }: FileAttributes, isOwned: boolean): number {
  if (isOwned || (mode & RUNS_AS_OWNER) === 0) return mode;
  const found = fstatSync(descriptor);
  const keeps = found.isDirectory() || (found.uid === uid && found.gid === gid);
  return keeps ? mode : mode & ~RUNS_AS_OWNER;
}

/**
 * Codes of a refused attribute. The process may lack the right, or the file system keeps none.
 * `EINVAL` and `EOVERFLOW`: the user namespace or the mount has no number for the owner. Any other
 * error is a failure of the file.
 */
const REFUSALS = ['EPERM', 'EACCES', 'EINVAL', 'EOVERFLOW', 'EOPNOTSUPP', 'ENOTSUP', 'ENOSYS'];

/** Returns false for a refusal. */
function unlessRefused(call: () => void): boolean {
  try {
    call();
    return true;
  } catch (error) {
    if (!REFUSALS.includes(systemCode(error) ?? '')) throw error;
    return false;
  }
}
