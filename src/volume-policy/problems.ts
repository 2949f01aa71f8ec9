import { CodedError } from '../base/index.ts';

/** A position: a file or ConfigMap, and the line in it, from 1. */
export interface Place {
  readonly source: string;
  readonly line: number;
}

/** A mistake, or a valid setting that is probably a mistake. */
export interface PolicyProblem extends Place {
  /** For example `volumePolicies[0].conditions.capacity`; `''` for the whole document. */
  readonly path: string;
  /** The problem and its fix. */
  readonly text: string;
}

/** Problems kept per document; the rest appears after these are fixed. Our choice. */
const PROBLEMS_MAX = 100;
/** Problems in the message, which may become a status text. Our choice. */
const IN_MESSAGE_MAX = 10;

export class ProblemList {
  readonly #all: PolicyProblem[] = [];

  /** Ignores duplicates: a value may be read twice. */
  add({ source, line, path, text }: PolicyProblem): void {
    if (this.#all.length >= PROBLEMS_MAX) return;
    const isKnown = this.#all.some(
      (each) => each.line === line && each.path === path && each.text === text,
    );
    if (!isKnown) this.#all.push({ source, line, path, text });
  }

  /** True: further checks can be skipped. */
  get isFull(): boolean {
    return this.#all.length >= PROBLEMS_MAX;
  }

  get all(): readonly PolicyProblem[] {
    return this.#all.toSorted((a, b) => a.line - b.line);
  }
}

/** An invalid resource policy document: code `BAD_VOLUME_POLICY`, with all problems. */
export class BadVolumePolicyError extends CodedError {
  readonly problems: readonly PolicyProblem[];

  constructor(source: string, problems: readonly PolicyProblem[], options?: ErrorOptions) {
    const shown = problems.slice(0, IN_MESSAGE_MAX).map(({ line, path, text }) => {
      const where = path === '' ? '' : `${path}: `;
      return `line ${line}: ${where}${text}`;
    });
    const more = problems.length - shown.length;
    if (more > 0) shown.push(`and ${more} more`);
    super('BAD_VOLUME_POLICY', `invalid resource policies in ${source}: ${shown.join('; ')}`, {
      ...options,
    });
    this.problems = problems;
  }
}
