import type { Logger } from '../../base/index.ts';
import { readObject, type Repository } from '../../repository/index.ts';
import { type DirectoryEntry, findInDirectory, type PolicyTree } from '../../snapshot/index.ts';
import { CACHE_TAG, CACHE_TAG_NAME } from '../upload/directory-rules.ts';
import { type IgnoreFileEntry, IgnoreRules } from '../listing/ignore-rules.ts';
import type { TargetDirectory } from '../restore/target-directory.ts';

/** The rules of the backup that a tree is restored from. */
export interface RulesOfBackup {
  /** Policies of the source. */
  readonly policies: PolicyTree;
  /** Root of the snapshot. Its ignore files are those of the backup. */
  readonly root: DirectoryEntry;
  /** Path of the restored directory below the root: '' or `sub/directory`. */
  readonly path: string;
}

interface Parts {
  readonly repository: Repository;
  readonly policies: PolicyTree;
  readonly logger: Logger;
  readonly signal: AbortSignal;
}

/**
 * Decides which names of a directory the rules of the backup left out. The snapshot lacks these
 * names anyway. Ignore files are read from the snapshot. If the backup left them out too, they are
 * read from the target.
 */
export class BackupRules {
  readonly #parts: Parts;
  readonly #rules: IgnoreRules;
  readonly #entry: DirectoryEntry;
  /** Below the root of the snapshot. */
  readonly #path: string;

  private constructor(parts: Parts, rules: IgnoreRules, entry: DirectoryEntry, path: string) {
    this.#parts = parts;
    this.#rules = rules;
    this.#entry = entry;
    this.#path = path;
  }

  /** Rules for the restored directory. `target` is that directory. */
  static async of(
    { policies, root, path }: RulesOfBackup,
    target: TargetDirectory,
    parts: Omit<Parts, 'policies'>,
  ): Promise<BackupRules> {
    const above = new BackupRules({ ...parts, policies }, IgnoreRules.none, root, '');
    const names = path.split('/').filter((name) => name !== '');
    let rules = await above.#with(root, '', names.length === 0 ? target : undefined);
    for (const [i, name] of names.entries()) {
      const isTarget = i === names.length - 1;
      rules = (await rules.enterName(name, isTarget ? target : undefined)) ?? rules;
    }
    return rules;
  }

  /** Rules for a directory below; undefined if the snapshot lacks it. */
  async enterName(
    name: string,
    target: TargetDirectory | undefined,
  ): Promise<BackupRules | undefined> {
    const { repository, signal } = this.#parts;
    const found = await findInDirectory(repository, this.#entry.objectId, { name }, { signal });
    return found?.type === 'd' ? this.enter(found, target) : undefined;
  }

  /** Throws `BAD_IGNORE_FILE`, `BAD_IGNORE_PATTERN`. */
  enter(entry: DirectoryEntry, target: TargetDirectory | undefined): Promise<BackupRules> {
    return this.#with(entry, this.#below(entry.name), target);
  }

  async #with(
    entry: DirectoryEntry,
    path: string,
    target: TargetDirectory | undefined,
  ): Promise<BackupRules> {
    const { policies, logger } = this.#parts;
    const defined = policies.definedAt(path);
    const files = new Map<string, IgnoreFileEntry>();
    const names = [...this.#rules.dotIgnoreFiles, ...(defined?.files.ignoreDotFiles ?? [])];
    for (const name of new Set(names)) {
      const file = await this.#ignoreFile(entry, name, target);
      if (file) files.set(name, { ...file, shown: path === '' ? name : `${path}/${name}` });
    }
    const find = (name: string): IgnoreFileEntry | undefined => files.get(name);
    const rules = await this.#rules.enter(path, defined, find, logger);
    return new BackupRules(this.#parts, rules, entry, path);
  }

  async #ignoreFile(
    entry: DirectoryEntry,
    name: string,
    target: TargetDirectory | undefined,
  ): Promise<Omit<IgnoreFileEntry, 'shown'> | undefined> {
    const { repository, signal } = this.#parts;
    const stored = await findInDirectory(repository, entry.objectId, { name }, { signal });
    if (stored) {
      const read = (bytesMax: number): Promise<Buffer> =>
        stored.size > bytesMax
          ? Promise.resolve(Buffer.alloc(bytesMax))
          : readObject(repository.contents, stored.objectId).then((bytes) => Buffer.from(bytes));
      return { path: name, isRegular: stored.type === 'f', read };
    }
    if ((await target?.typeOf(name)) !== 'f') return undefined;
    const read = async (bytesMax: number): Promise<Buffer> =>
      (await target?.startOf(name, bytesMax)) ?? Buffer.alloc(0);
    return { path: name, isRegular: true, read };
  }

  #below(name: string): string {
    return this.#path === '' ? name : `${this.#path}/${name}`;
  }

  /** Whether the backup leaves an entry out. `path` is below this directory. */
  leavesOut(path: string, isDirectory: boolean, sizeBytes: number): boolean {
    const { maxFileBytes, isEmpty } = this.#rules;
    if (!isDirectory && maxFileBytes > 0 && sizeBytes > maxFileBytes) return true;
    return !isEmpty && this.#rules.ignores(this.#below(path), isDirectory);
  }

  /** Whether the backup leaves out a directory's files, because a tag marks it as a cache. */
  async isCache(directory: TargetDirectory): Promise<boolean> {
    const policy = this.#parts.policies.at(this.#path);
    if (policy.files.ignoreCacheDirs === false) return false;
    const start = await directory.startOf(CACHE_TAG_NAME, CACHE_TAG.length);
    return start?.toString() === CACHE_TAG;
  }
}
