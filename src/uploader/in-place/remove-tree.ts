import { shareOfDescriptors, systemCode } from '../../base/index.ts';
import type { TargetDirectory } from '../target-directory.ts';
import { assertSameMount } from './same-mount.ts';

/** Directories that are open on the way down; a deeper tree gives those above back meanwhile. */
const HELD_SHARE = 1 / 8;
const HELD_MAX = 1024;
/** What may be made in a directory while it is emptied. Our choice. */
const TRIES = 3;

export interface RemoveRules {
  readonly signal: AbortSignal;
  /** Of the target's root. */
  readonly mountId: string;
  /**
   * Decides whether an entry below the removed directory goes, by its path and the length of a
   * file. All entries go without this function.
   */
  readonly takes?: ((path: string, isDirectory: boolean, bytes: number) => boolean) | undefined;
  /** Whether all that is in a directory stays. */
  readonly keepsAll?: ((directory: TargetDirectory) => Promise<boolean>) | undefined;
  /** Looks only: nothing is removed. */
  readonly dryRun?: boolean;
  /** With its length, before a file is removed. What it throws ends the removal. */
  readonly beforeFile?: (bytes: number) => void;
  /** `bytes`: its length, of a file. */
  readonly onRemoved: (path: string, bytes: number) => Promise<void> | void;
}

/**
 * Removes a directory with all below it, never through a link, and never what is mounted there.
 * False when something in it is to stay, and then it stays. Throws system errors,
 * `MOUNT_BELOW_TARGET`.
 */
export async function removeTree(
  parent: TargetDirectory,
  name: Buffer,
  rules: RemoveRules,
): Promise<boolean> {
  const heldMax = shareOfDescriptors(HELD_SHARE, HELD_MAX);
  /** Returns whether nothing stays. */
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
      // The first one above is the caller's, who may be using it.
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

/** Some file systems leave names out that come after one that is removed. */
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

/** Also where the file system does not tell with the name. */
export async function isDirectoryIn(
  directory: TargetDirectory,
  entry: { readonly name: Buffer; isDirectory(): boolean; isFile(): boolean },
): Promise<boolean> {
  if (entry.isDirectory() || entry.isFile()) return entry.isDirectory();
  return (await directory.typeOf(entry.name)) === 'd';
}
