import { shareOfDescriptors, systemCode } from '../../base/index.ts';
import type { TargetDirectory } from '../restore/target-directory.ts';
import { assertSameMount } from '../restore/same-mount.ts';

/** Directories open on the way down. In a deeper tree, upper directories are closed meanwhile. */
const HELD_SHARE = 1 / 8;
const HELD_MAX = 1024;
/** Tries to empty a directory in which others create files. Our choice. */
const TRIES = 3;

export interface RemoveRules {
  readonly signal: AbortSignal;
  /** Mount id of the target's root. */
  readonly mountId: string;
  /**
   * Whether an entry below the removed directory is removed, by its path and, for a file, its
   * length. Without this function all entries are removed.
   */
  readonly takes?: ((path: string, isDirectory: boolean, bytes: number) => boolean) | undefined;
  /** Whether all entries of a directory stay. */
  readonly keepsAll?: ((directory: TargetDirectory) => Promise<boolean>) | undefined;
  readonly dryRun?: boolean;
  /** Called with the length of a file before its removal. An error ends the removal. */
  readonly beforeFile?: (bytes: number) => void;
  /** `bytes`: the length of a file. */
  readonly onRemoved: (path: string, bytes: number) => Promise<void> | void;
}

/**
 * Removes a directory with its subtree. Follows no link, and removes nothing that is mounted there.
 * Returns false if something stays; the directory then stays too. Throws system errors,
 * `MOUNT_BELOW_TARGET`.
 */
export async function removeTree(
  parent: TargetDirectory,
  name: Buffer,
  rules: RemoveRules,
): Promise<boolean> {
  const heldMax = shareOfDescriptors(HELD_SHARE, HELD_MAX);
  /** Returns true if nothing stays. */
  const empty = async (directory: TargetDirectory, path: string): Promise<boolean> => {
    let isEmpty = true;
    const directories: Buffer[] = [];
    for await (const entry of directory.names()) {
      rules.signal.throwIfAborted();
      if (await isDirectoryIn(directory, entry)) directories.push(entry.name);
      else {
        const bytes = await directory.fileBytesOf(entry.name);
        if (rules.takes?.(`${path}/${String(entry.name)}`, false, bytes) === false) {
          isEmpty = false;
          continue;
        }
        rules.beforeFile?.(bytes);
        if (rules.dryRun !== true) await directory.removeNamed(entry.name, false);
        await rules.onRemoved(`${path}/${String(entry.name)}`, bytes);
      }
    }
    for (const below of directories) {
      if (!(await remove(directory, below, `${path}/${String(below)}`))) isEmpty = false;
    }
    return isEmpty;
  };
  const remove = async (above: TargetDirectory, at: Buffer, path: string): Promise<boolean> => {
    if (rules.takes?.(path, true, 0) === false) return false;
    const directory = await (rules.dryRun === true ? above.open(at) : above.openToChange(at));
    try {
      assertSameMount(directory.descriptor, rules.mountId, directory.shown);
      // The caller may use its own directory, so that stays open.
      const isDeep = above !== parent && directory.openCount > heldMax;
      if (isDeep) await above.park();
      let isEmpty: boolean;
      try {
        isEmpty = (await rules.keepsAll?.(directory)) !== true && (await empty(directory, path));
      } finally {
        if (isDeep) await above.unpark(directory);
      }
      if (!isEmpty) return false;
      if (rules.dryRun !== true) await removeEmptied(above, at, () => empty(directory, path));
    } finally {
      directory.close();
    }
    await rules.onRemoved(path, 0);
    return true;
  };
  return remove(parent, name, '');
}

/** Some file systems skip names after a removed name. */
async function removeEmptied(
  above: TargetDirectory,
  name: Buffer,
  emptyAgain: () => Promise<unknown>,
): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      await above.removeNamed(name, true);
      return;
    } catch (error) {
      if (systemCode(error) !== 'ENOTEMPTY' || tries === TRIES) throw error;
      await emptyAgain();
    }
  }
}

/** Also works if the file system lists names without types. */
export async function isDirectoryIn(
  directory: TargetDirectory,
  entry: { readonly name: Buffer; isDirectory(): boolean; isFile(): boolean },
): Promise<boolean> {
  if (entry.isDirectory() || entry.isFile()) return entry.isDirectory();
  return (await directory.typeOf(entry.name)) === 'd';
}
