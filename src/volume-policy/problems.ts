import { CodedError } from '../base/index.ts';

/** Where a thing stands: a file or ConfigMap, and the line in it, from 1. */
export interface Place {
  readonly source: string;
  readonly line: number;
}

/** One thing that is wrong, or that is allowed and most likely not meant. */
export interface PolicyProblem extends Place {
  /** Such as `volumePolicies[0].conditions.capacity`; `''` for the whole document. */
  readonly path: string;
  /** What is wrong, and what would be right. */
  readonly text: string;
}

/**
 * Of one document so many are kept; whoever has more will see them after mending these. Our choice.
 */
const PROBLEMS_MAX = 100;
/** So many are in the message, which may become the text of a status. Our choice. */
const IN_MESSAGE_MAX = 10;

export class ProblemList {
  readonly #all: PolicyProblem[] = [];

  /** Something that is read twice is wrong once. */
  add({ source, line, path, text }: PolicyProblem): void {
    if (this.#all.length >= PROBLEMS_MAX) return;
    const isKnown = this.#all.some(
      (each) => each.line === line && each.path === path && each.text === text,
    );
    if (!isKnown) this.#all.push({ source, line, path, text });
  }

  /** Then nobody needs to find out what would be right. */
  get isFull(): boolean {
    return this.#all.length >= PROBLEMS_MAX;
  }

  get all(): readonly PolicyProblem[] {
    return this.#all.toSorted((a, b) => a.line - b.line);
  }
}

/**
 * A document that is not what Velero's resource policies are: code `BAD_VOLUME_POLICY`, with all
 * that is wrong.
 */
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
