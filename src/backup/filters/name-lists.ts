import { compileGlob, type Glob } from '../../base/index.ts';

/** An invalid pattern matches nothing. Validation reports it, if Velero checks the field. */
const NOTHING: Glob = () => false;

/** A list of names and patterns. */
export class NameList {
  /** Sorted, without duplicates. */
  readonly names: readonly string[];
  readonly #literal: ReadonlySet<string>;
  readonly #globs: readonly Glob[];

  constructor(names: readonly string[]) {
    this.names = [...new Set(names)].sort();
    const patterns = this.names.filter((name) => /[*?[{\\]/.test(name));
    this.#literal = new Set(this.names.filter((name) => !patterns.includes(name)));
    this.#globs = patterns.map((pattern) => {
      try {
        return compileGlob(pattern);
      } catch {
        return NOTHING;
      }
    });
  }

  get isEmpty(): boolean {
    return this.names.length === 0;
  }

  /** Whether this exact text is in the list, such as `*`. */
  has(name: string): boolean {
    return this.names.includes(name);
  }

  matches(name: string): boolean {
    return this.#literal.has(name) || this.#globs.some((glob) => glob(name));
  }
}

/**
 * All included names except the excluded ones. An empty include list means all. Velero:
 * pkg/util/collections, IncludesExcludes.
 */
export class NameLists {
  readonly includes: NameList;
  readonly excludes: NameList;

  constructor(includes: readonly string[] = [], excludes: readonly string[] = []) {
    this.includes = new NameList(includes);
    this.excludes = new NameList(excludes);
  }

  takes(name: string): boolean {
    if (this.excludes.matches(name)) return false;
    return this.includes.isEmpty || this.includes.has('*') || this.includes.matches(name);
  }

  /** Whether all names are included and none is excluded. */
  get isEverything(): boolean {
    const { names } = this.includes;
    return (
      this.excludes.isEmpty && (names.length === 0 || (names.length === 1 && names[0] === '*'))
    );
  }
}
