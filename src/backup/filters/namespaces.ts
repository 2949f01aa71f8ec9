import { CodedError, compileGlob } from '../../base/index.ts';
import { namespacePatternError } from './list-errors.ts';
import { NameLists } from './name-lists.ts';

/** Selects the namespaces of a backup. */
export class NamespaceFilter {
  readonly #existing: readonly string[];
  readonly #lists: NameLists;
  /** True: patterns are replaced by namespaces. An empty list then means none, not all. */
  readonly isExpanded: boolean;
  /** The included namespaces as written in the spec. */
  readonly asked: readonly string[];

  private constructor(
    existing: readonly string[],
    lists: NameLists,
    { isExpanded, asked }: { readonly isExpanded: boolean; readonly asked: readonly string[] },
  ) {
    this.#existing = existing;
    this.#lists = lists;
    this.isExpanded = isExpanded;
    this.asked = asked;
  }

  /**
   * `existing`: the cluster's namespaces. A pattern matches only these, so a later namespace cannot
   * be half included. Throws `BAD_NAMESPACE_PATTERN`. Velero: pkg/util/wildcard/expand.go.
   */
  static of(
    existing: readonly string[],
    includes: readonly string[],
    excludes: readonly string[],
  ): NamespaceFilter {
    const sorted = [...existing].sort();
    if (!hasToExpand(includes, excludes)) {
      const lists = new NameLists(includes, excludes);
      return new NamespaceFilter(sorted, lists, { isExpanded: false, asked: includes });
    }
    const lists = new NameLists(expand(includes, sorted), expand(excludes, sorted));
    return new NamespaceFilter(sorted, lists, { isExpanded: true, asked: includes });
  }

  get includes(): readonly string[] {
    return this.#lists.includes.names;
  }

  get excludes(): readonly string[] {
    return this.#lists.excludes.names;
  }

  takes(namespace: string): boolean {
    if (this.isExpanded && this.#lists.includes.isEmpty) return false;
    return this.#lists.takes(namespace);
  }

  /**
   * Whether all namespaces are included. Velero also returns true for patterns that match nothing;
   * such a backup then holds all cluster-scoped objects.
   */
  get isEverything(): boolean {
    const { excludes, includes } = this.#lists;
    if (!excludes.isEmpty || (this.isExpanded && includes.isEmpty)) return false;
    const isAll =
      includes.names.length === this.#existing.length &&
      includes.names.every((name, index) => name === this.#existing[index]);
    return this.#lists.isEverything || isAll;
  }

  /** Namespaces to list one by one; undefined if one list of all namespaces is shorter. */
  get listed(): readonly string[] | undefined {
    const { includes } = this.#lists;
    const isAll = (includes.isEmpty && !this.isExpanded) || includes.has('*');
    if (isAll) return undefined;
    // An empty name is not a namespace, and its URL path would not exist.
    return this.includes.filter((name) => name !== '' && this.takes(name));
  }

  get existing(): readonly string[] {
    return this.#existing;
  }

  /** Existing namespaces that the filter includes. */
  get resolved(): string[] {
    return this.#existing.filter((name) => this.takes(name));
  }

  /** Included names that do not exist. */
  get missing(): string[] {
    const existing = new Set(this.#existing);
    return this.includes.filter((name) => name !== '*' && !existing.has(name));
  }
}

const isPattern = (name: string): boolean => /[*?[]/.test(name);

function hasToExpand(includes: readonly string[], excludes: readonly string[]): boolean {
  if (includes.length === 0 || includes.includes('*')) return false;
  return includes.some(isPattern) || excludes.some(isPattern);
}

function expand(names: readonly string[], existing: readonly string[]): string[] {
  return [...names].sort().flatMap((name) => {
    const error = namespacePatternError(name);
    if (error !== undefined) {
      throw new CodedError('BAD_NAMESPACE_PATTERN', `namespace "${name}": ${error}`);
    }
    return isPattern(name) ? existing.filter(compileGlob(name)) : [name];
  });
}
