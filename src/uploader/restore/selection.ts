import { CodedError } from '../../base/index.ts';
import type { Repository } from '../../repository/index.ts';
import {
  type Batches,
  type DirectoryEntry,
  type PathPattern,
  parsePathPattern,
  streamDirectory,
} from '../../snapshot/index.ts';

interface SelectionContext {
  readonly repository: Repository;
  readonly signal: AbortSignal;
}

/**
 * Selects a part of a tree, by patterns as in a .gitignore. `include` selects an entry with its
 * subtree. `exclude` skips an entry with its subtree. Paths start with `/`, the root of the
 * restored tree. Throws `BAD_IGNORE_PATTERN`.
 */
export class Selection {
  readonly #include: readonly PathPattern[];
  readonly #exclude: readonly PathPattern[];

  constructor({ include = [], exclude = [] }: { include?: string[]; exclude?: string[] }) {
    this.#include = include.map(parsePathPattern);
    this.#exclude = exclude.map(parsePathPattern);
  }

  /** Selected entries of a directory, and directories that contain a selected entry. */
  async *entriesOf(
    context: SelectionContext,
    path: string,
    batches: Batches,
  ): Batches & AsyncGenerator<DirectoryEntry[]> {
    const isWhole = this.#isWhole(path);
    for await (const entries of batches) {
      const meant: DirectoryEntry[] = [];
      for (const entry of entries) {
        if (await this.#isMeant(context, entry, `${path}/${entry.name}`, isWhole)) {
          meant.push(entry);
        }
      }
      yield meant;
    }
  }

  /** Throws `NOTHING_SELECTED` if a restore would have nothing to do. */
  async assertSome(context: SelectionContext, root: DirectoryEntry): Promise<void> {
    if (this.#include.length === 0 || (await this.#hasMeant(context, root, ''))) return;
    throw new CodedError('NOTHING_SELECTED', 'nothing in the snapshot matches --include');
  }

  /** Whether an entry is selected itself, not only because of an entry below. */
  takes(path: string, isDirectory: boolean): boolean {
    if (matches(this.#exclude, path, isDirectory)) return false;
    const above = path.slice(0, path.lastIndexOf('/'));
    return this.#isWhole(above) || matches(this.#include, path, isDirectory);
  }

  /** Whether a directory is selected with its subtree. */
  #isWhole(path: string): boolean {
    if (this.#include.length === 0) return true;
    const names = path.split('/').slice(1);
    return names.some((_, i) =>
      matches(this.#include, `/${names.slice(0, i + 1).join('/')}`, true),
    );
  }

  async #isMeant(
    context: SelectionContext,
    entry: DirectoryEntry,
    path: string,
    isWhole: boolean,
  ): Promise<boolean> {
    const isDirectory = entry.type === 'd';
    if (matches(this.#exclude, path, isDirectory)) return false;
    if (isWhole || matches(this.#include, path, isDirectory)) return true;
    return isDirectory && this.#hasMeant(context, entry, path);
  }

  /**
   * Also true for an unreadable directory: the restore then reports it, and continues with others.
   * A search, not a walk: it ends at the first selected entry, and enters only directories that a
   * pattern may match.
   */
  async #hasMeant(
    context: SelectionContext,
    { objectId }: DirectoryEntry,
    path: string,
  ): Promise<boolean> {
    if (!this.#include.some((pattern) => !pattern.negated && pattern.mayApplyBelow(path))) {
      return false;
    }
    const { repository, signal } = context;
    signal.throwIfAborted();
    try {
      for await (const entries of streamDirectory(repository.contents, objectId, { signal })) {
        for (const entry of entries) {
          if (await this.#isMeant(context, entry, `${path}/${entry.name}`, false)) return true;
        }
      }
    } catch {
      signal.throwIfAborted();
      return true;
    }
    return false;
  }
}

/** The last matching pattern decides, as in a .gitignore. */
function matches(patterns: readonly PathPattern[], path: string, isDirectory: boolean): boolean {
  const last = patterns.findLast((pattern) => pattern.applies(path, isDirectory));
  return last !== undefined && !last.negated;
}
