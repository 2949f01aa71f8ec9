import type { Logger } from '../../base/index.ts';
import type { Policy } from '../../snapshot/index.ts';
import { type IgnorePattern, parseIgnorePattern } from '../../snapshot/policy/ignore-pattern.ts';
import { IGNORE_BYTES_MAX, IGNORE_RULES_MAX, loadIgnoreFile } from './ignore-file.ts';

/** An ignore file in the listing of a directory. */
export interface IgnoreFileEntry {
  readonly path: string | Uint8Array;
  /** Relative to the root of the snapshot. */
  readonly shown: string;
  /** Replaces reading the file at the path; returns up to this many bytes. */
  readonly read?: ((bytesMax: number) => Promise<Buffer>) | undefined;
  /** According to the listing; it may have changed. */
  readonly isRegular: boolean;
}

/** Which entries are excluded, by rules of the directory and those above (Kopia: fs/ignorefs). */
export class IgnoreRules {
  readonly #parent: IgnoreRules | undefined;
  readonly #patterns: readonly IgnorePattern[];
  /** Totals of all ignore files that apply here, including those of parents. */
  readonly #fileBytes: number;
  readonly #fileRules: number;
  readonly dotIgnoreFiles: readonly string[];
  readonly maxFileBytes: number;
  readonly oneFileSystem: boolean;

  private constructor(
    parent: IgnoreRules | undefined,
    patterns: readonly IgnorePattern[],
    settings: Settings,
  ) {
    this.#parent = parent;
    this.#patterns = patterns;
    this.#fileBytes = settings.fileBytes;
    this.#fileRules = settings.fileRules;
    this.dotIgnoreFiles = settings.dotIgnoreFiles;
    this.maxFileBytes = settings.maxFileBytes;
    this.oneFileSystem = settings.oneFileSystem;
  }

  static readonly none = new IgnoreRules(undefined, [], {
    dotIgnoreFiles: [],
    maxFileBytes: 0,
    oneFileSystem: false,
    fileBytes: 0,
    fileRules: 0,
  });

  /**
   * Rules inside a directory. `defined` is the policy for this very directory (at the root: the
   * effective policy). `find` looks up a name in the directory. A name that is not a regular file
   * has no rules. Throws `BAD_IGNORE_PATTERN` for rules of the policy, `BAD_IGNORE_FILE` for files
   * of the volume.
   */
  async enter(
    relativePath: string,
    defined: Policy | undefined,
    find: (name: string) => IgnoreFileEntry | undefined,
    logger: Logger,
  ): Promise<IgnoreRules> {
    const base = relativePath === '' ? '' : `/${relativePath}`;
    const files = defined?.files;
    const dotIgnoreFiles = files
      ? union(
          files.noParentDotFiles === true ? [] : this.dotIgnoreFiles,
          files.ignoreDotFiles ?? [],
        )
      : this.dotIgnoreFiles;
    const present = dotIgnoreFiles.flatMap((name) => find(name) ?? []);
    if (!files && present.length === 0) return this;
    const parent = files?.noParentIgnore === true ? undefined : this;
    const patterns = (files?.ignore ?? []).map((rule) => parseIgnorePattern(rule, base));
    let fileBytes = parent ? parent.#fileBytes : 0;
    let fileRules = parent ? parent.#fileRules : 0;
    for (const { path, shown, isRegular, read } of present) {
      const room = { bytes: IGNORE_BYTES_MAX - fileBytes, rules: IGNORE_RULES_MAX - fileRules };
      const loaded = isRegular
        ? await loadIgnoreFile({ path, read, shown }, base, room)
        : undefined;
      if (!loaded) {
        logger.warn({ path: shown }, 'an ignore file is not a regular file; it is ignored');
        continue;
      }
      for (const pattern of loaded.patterns) patterns.push(pattern);
      fileBytes += loaded.bytes;
      fileRules += loaded.rules;
    }
    return new IgnoreRules(parent, patterns, {
      dotIgnoreFiles,
      maxFileBytes: files?.maxFileSize ? Number(files.maxFileSize) : this.maxFileBytes,
      oneFileSystem: files?.oneFileSystem ?? this.oneFileSystem,
      fileBytes,
      fileRules,
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

  /** Number of rules that each path is matched against. */
  get size(): number {
    return this.#patterns.length + (this.#parent?.size ?? 0);
  }

  /** Without rules, callers need not build paths. */
  get isEmpty(): boolean {
    return this.#patterns.length === 0 && (this.#parent?.isEmpty ?? true);
  }
}

interface Settings {
  readonly dotIgnoreFiles: readonly string[];
  readonly maxFileBytes: number;
  readonly oneFileSystem: boolean;
  readonly fileBytes: number;
  readonly fileRules: number;
}

const union = (a: readonly string[], b: readonly string[]): string[] => [...new Set([...a, ...b])];
