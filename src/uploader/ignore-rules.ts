import { readFile } from 'node:fs/promises';
import { CodedError, isCode, messageOf } from '../base/index.ts';
import {
  type IgnorePattern,
  parseIgnoreFile,
  parseIgnorePattern,
  type Policy,
} from '../snapshot/index.ts';

/** Which entries of a directory count, by the rules of it and of all above (Kopia: fs/ignorefs). */
export class IgnoreRules {
  readonly #parent: IgnoreRules | undefined;
  readonly #patterns: readonly IgnorePattern[];
  readonly dotIgnoreFiles: readonly string[];
  readonly maxFileBytes: number;
  readonly oneFileSystem: boolean;

  private constructor(
    parent: IgnoreRules | undefined,
    patterns: readonly IgnorePattern[],
    settings: { dotIgnoreFiles: readonly string[]; maxFileBytes: number; oneFileSystem: boolean },
  ) {
    this.#parent = parent;
    this.#patterns = patterns;
    this.dotIgnoreFiles = settings.dotIgnoreFiles;
    this.maxFileBytes = settings.maxFileBytes;
    this.oneFileSystem = settings.oneFileSystem;
  }

  static readonly none = new IgnoreRules(undefined, [], {
    dotIgnoreFiles: [],
    maxFileBytes: 0,
    oneFileSystem: false,
  });

  /**
   * Rules inside a directory. `defined`: the policy made for this very directory (at the root: the
   * effective one). `ignoreFiles`: paths of the dot-ignore files that are in it.
   * Throws `BAD_IGNORE_PATTERN`, or `BAD_IGNORE_FILE` when one cannot be read.
   */
  async enter(
    relativePath: string,
    defined: Policy | undefined,
    hasEntry: (name: string) => string | undefined,
  ): Promise<IgnoreRules> {
    const base = relativePath === '' ? '' : `/${relativePath}`;
    const files = defined?.files;
    const dotIgnoreFiles = files
      ? union(
          files.noParentDotFiles === true ? [] : this.dotIgnoreFiles,
          files.ignoreDotFiles ?? [],
        )
      : this.dotIgnoreFiles;
    const present = dotIgnoreFiles.flatMap((name) => hasEntry(name) ?? []);
    if (!files && present.length === 0) return this;
    const patterns = (files?.ignore ?? []).map((rule) => parseIgnorePattern(rule, base));
    for (const path of present) patterns.push(...(await loadIgnoreFile(path, base)));
    const parent = files?.noParentIgnore === true ? undefined : this;
    return new IgnoreRules(parent, patterns, {
      dotIgnoreFiles,
      maxFileBytes: files?.maxFileSize ? Number(files.maxFileSize) : this.maxFileBytes,
      oneFileSystem: files?.oneFileSystem ?? this.oneFileSystem,
    });
  }

  /** `path` is relative to the root of the snapshot, without a leading slash. */
  ignores(path: string, isDirectory: boolean): boolean {
    let ignored = this.#parent?.ignores(path, isDirectory) ?? false;
    for (const pattern of this.#patterns) {
      if (pattern.negated === ignored && pattern.applies(`/${path}`, isDirectory)) {
        ignored = !pattern.negated;
      }
    }
    return ignored;
  }

  /** No rule at all: paths need not be built. */
  get isEmpty(): boolean {
    return this.#patterns.length === 0 && (this.#parent?.isEmpty ?? true);
  }
}

const union = (a: readonly string[], b: readonly string[]): string[] => [...new Set([...a, ...b])];

async function loadIgnoreFile(path: string, base: string): Promise<IgnorePattern[]> {
  try {
    return parseIgnoreFile(await readFile(path, 'utf8'), base);
  } catch (cause) {
    if (isCode(cause, 'BAD_IGNORE_PATTERN')) throw cause;
    // Without its rules the wrong files would be stored.
    const text = `the ignore file ${path} cannot be read: ${messageOf(cause)}`;
    throw new CodedError('BAD_IGNORE_FILE', text, { cause });
  }
}
