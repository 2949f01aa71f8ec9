import { createHash } from 'node:crypto';
import { systemCode } from '../../base/index.ts';
import type { DirectoryEntry } from '../../snapshot/index.ts';
import { parseExtra, withoutRawName } from '../../volume-files/index.ts';
import type { DiskName } from './restore-names.ts';
import { type TargetDirectory, unfinishedName } from './target-directory.ts';

/** Outcome for a name of a hard-linked file. */
export type LinkOutcome =
  /** The name is now a link; `replaced`: it replaced another entry. */
  | { readonly kind: 'linked'; readonly replaced: boolean }
  /** The name already was a link, or must stay. */
  | { readonly kind: 'same' | 'kept' }
  /** The file has no restored name yet. */
  | { readonly kind: 'first' }
  /** The target refuses the link, so the name becomes a separate file. */
  | { readonly kind: 'refused' };

export interface LinkTarget {
  readonly directory: TargetDirectory;
  readonly name: DiskName;
  /** An existing entry with the name stays. */
  readonly keepsExisting: boolean;
  /** Removes a directory with the name, or throws. */
  readonly removeDirectory: () => Promise<void>;
}

/** Errors of refused links: unsupported, across file systems, or not permitted. */
const REFUSALS = ['EPERM', 'EACCES', 'EXDEV', 'EOPNOTSUPP', 'ENOTSUP', 'ENOSYS'];

/**
 * A key that all names of one file share; undefined for a file with one name. The inode number is
 * not enough: during a backup, a new file may reuse the number of a removed file. Throws
 * `BAD_ATTRIBUTES`.
 */
export function linkGroupOf(entry: DirectoryEntry): string | undefined {
  const { link } = parseExtra(entry.extra);
  if (link === undefined) return undefined;
  const { objectId, size, mode, uid, gid, mtimeNs, extra } = entry;
  const own = withoutRawName(extra);
  const text = [link, objectId, size, mode, uid, gid, mtimeNs, own].join('\n');
  return createHash('sha256').update(text).digest('hex').slice(0, 32);
}

/**
 * Restores names of one file as hard links. During the restore, a temporary directory in the root
 * holds one more name of each such file. So memory does not grow, and no path of the snapshot is
 * followed.
 */
export class HardLinks {
  readonly #root: TargetDirectory;
  readonly #turns = new Map<string, Promise<unknown>>();
  #own: Promise<TargetDirectory> | undefined;
  readonly #ownName = unfinishedName();

  private constructor(root: TargetDirectory) {
    this.#root = root;
  }

  /** Opens its own descriptor, because the root's may be closed meanwhile. */
  static async open(root: TargetDirectory): Promise<HardLinks> {
    return new HardLinks(await root.open('.'));
  }

  /** Runs one task per file at a time. The first name must exist before others are linked to it. */
  async inTurn<T>(group: string, task: () => Promise<T>): Promise<T> {
    const before = this.#turns.get(group);
    const turn = (before ?? Promise.resolve()).then(task);
    const settled = turn.catch(() => undefined);
    this.#turns.set(group, settled);
    try {
      return await turn;
    } finally {
      if (this.#turns.get(group) === settled) this.#turns.delete(group);
    }
  }

  async link(group: string, target: LinkTarget): Promise<LinkOutcome> {
    const own = await this.#directory();
    const { directory, name } = target;
    const wanted = await own.identityAt(group);
    if (!wanted) return { kind: 'first' };
    const found = directory.isNew ? undefined : await directory.identityAt(name);
    if (found && found.device === wanted.device && found.inode === wanted.inode) {
      return { kind: 'same' };
    }
    if (found && target.keepsExisting) return { kind: 'kept' };
    try {
      directory.assertWritable();
      if (!found) await own.linkTo(group, directory, name);
      else await this.#replace(own, group, target);
      return { kind: 'linked', replaced: found !== undefined };
    } catch (error) {
      const code = systemCode(error) ?? '';
      if (code === 'EMLINK') {
        // The file has the maximum of names. Further names are those of a copy.
        await own.remove(group);
        return { kind: 'refused' };
      }
      if (!REFUSALS.includes(code)) throw error;
      return { kind: 'refused' };
    }
  }

  async #replace(
    own: TargetDirectory,
    group: string,
    { directory, name, removeDirectory }: LinkTarget,
  ): Promise<void> {
    const unfinished = unfinishedName();
    await own.linkTo(group, directory, unfinished);
    try {
      if ((await directory.typeOf(name)) === 'd') await removeDirectory();
      await directory.rename(unfinished, name);
    } catch (error) {
      await directory.remove(unfinished).catch(() => undefined);
      throw error;
    }
  }

  /** Records the first name of a file. Returns false if the file system has no hard links. */
  async keep(group: string, directory: TargetDirectory, name: DiskName): Promise<boolean> {
    const own = await this.#directory();
    try {
      await directory.linkTo(name, own, group);
      return true;
    } catch {
      return false;
    }
  }

  #directory(): Promise<TargetDirectory> {
    this.#own ??= this.#root.enter(this.#ownName);
    return this.#own;
  }

  /** Removes the temporary directory. May be called twice. */
  async close(): Promise<void> {
    const own = await this.#own?.catch(() => undefined);
    this.#own = undefined;
    own?.close();
    try {
      if (own) await this.#root.removeLinks(this.#ownName);
    } finally {
      this.#root.close();
    }
  }
}
