import { nameOfCode, withErrorNames } from './posix/system-errors.ts';

/** Whether a later retry can help. Set by the code that knows: a provider adapter or parser. */
export type Retry = 'never' | 'backoff';

export interface CodedErrorOptions extends ErrorOptions {
  retry?: Retry;
  /** Details of the failure for logs and tests. Never secrets. */
  facts?: Record<string, string | number | boolean>;
}

/**
 * Parent of all errors that are not bugs: a stable `code`, a sentence for users, a cause. Match on
 * `code` (see {@link isCode}), because `instanceof` fails across threads.
 */
export class CodedError extends Error {
  readonly code: string;
  readonly retry: Retry;
  readonly facts: Record<string, string | number | boolean>;

  constructor(code: string, message: string, options: CodedErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'CodedError';
    this.code = code;
    this.retry = options.retry ?? 'never';
    this.facts = options.facts ?? {};
  }
}

export function isCode(error: unknown, ...codes: string[]): error is CodedError {
  const code = codeOf(error);
  return code !== undefined && codes.includes(code);
}

/** The error's code. For system errors that Node has only by number, its name. */
export function codeOf(error: unknown): string | undefined {
  const hasCode = typeof error === 'object' && error !== null && 'code' in error;
  return hasCode && typeof error.code === 'string'
    ? nameOfCode(error.code, errnoOf(error))
    : undefined;
}

const errnoOf = (error: object): number | undefined =>
  'errno' in error && typeof error.errno === 'number' ? error.errno : undefined;

export type CanceledBy = 'user' | 'shutdown' | 'timeout';

/** The reason of every abort. A cancel is not a failure, and `by` decides the final phase. */
export class CanceledError extends CodedError {
  readonly by: CanceledBy;

  constructor(by: CanceledBy, options: CodedErrorOptions = {}) {
    super('CANCELED', `canceled by ${by}`, options);
    this.by = by;
  }
}

/** Whether the error is a cancel or an abort. */
export const isCanceled = (error: unknown): boolean =>
  isCode(error, 'CANCELED') || (error instanceof Error && error.name === 'AbortError');

/** The code of a Node system error, such as `ENOENT`, or undefined. */
export function systemCode(error: unknown): string | undefined {
  return error instanceof Error && 'syscall' in error ? codeOf(error) : undefined;
}

/** The message of any thrown value, in one line, with names for unknown system errors. */
export function messageOf(error: unknown): string {
  const text =
    error instanceof Error ? withErrorNames(error.message, errnoOf(error)) : String(error);
  return text.replaceAll(/\s*\n\s*/g, ' ');
}

/** Any thrown value as an error. Errors stay, other values are wrapped. */
export function asError(thrown: unknown): Error {
  return thrown instanceof Error ? thrown : new Error(String(thrown), { cause: thrown });
}

/** A broken invariant is a bug. Do not catch it. */
export class AssertionError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'AssertionError';
  }
}

export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new AssertionError(message);
}
