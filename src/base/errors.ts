import { nameOfCode, withErrorNames } from './system-errors.ts';

/** Whether trying again later can help. Set by whoever knows: the provider adapter, the parser. */
export type Retry = 'never' | 'backoff';

export interface CodedErrorOptions extends ErrorOptions {
  retry?: Retry;
  /** Facts about the failure as fields, for logs and tests. Never secrets. */
  facts?: Record<string, string | number | boolean>;
}

/**
 * The parent of every error that is not a bug: a stable `code`, one sentence for a person, a cause.
 * Match on `code` (see {@link isCode}); `instanceof` fails across threads.
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

/**
 * The code of whatever was thrown: ours or the system's, by name where Node knows only its number.
 */
export function codeOf(error: unknown): string | undefined {
  const hasCode = typeof error === 'object' && error !== null && 'code' in error;
  return hasCode && typeof error.code === 'string'
    ? nameOfCode(error.code, errnoOf(error))
    : undefined;
}

const errnoOf = (error: object): number | undefined =>
  'errno' in error && typeof error.errno === 'number' ? error.errno : undefined;

export type CanceledBy = 'user' | 'shutdown' | 'timeout';

/** The reason of every abort: a cancel is not a failure, and `by` decides the final phase. */
export class CanceledError extends CodedError {
  readonly by: CanceledBy;

  constructor(by: CanceledBy, options: CodedErrorOptions = {}) {
    super('CANCELED', `canceled by ${by}`, options);
    this.by = by;
  }
}

/** Whether it is a cancel, by whatever means: an abort is not a failure. */
export const isCanceled = (error: unknown): boolean =>
  isCode(error, 'CANCELED') || (error instanceof Error && error.name === 'AbortError');

/** A Node system error (`ENOENT` and the like), or undefined. */
export function systemCode(error: unknown): string | undefined {
  return error instanceof Error && 'syscall' in error ? codeOf(error) : undefined;
}

/**
 * The message of anything that was thrown, in one line, and with a name where Node knows only the
 * number of a system error.
 */
export function messageOf(error: unknown): string {
  const text =
    error instanceof Error ? withErrorNames(error.message, errnoOf(error)) : String(error);
  return text.replaceAll(/\s*\n\s*/g, ' ');
}

/** What was thrown, as an error to throw again: code is kept, other values are wrapped. */
export function asError(thrown: unknown): Error {
  return thrown instanceof Error ? thrown : new Error(String(thrown), { cause: thrown });
}

/** A broken invariant is a bug, and nobody catches it on the way. */
export class AssertionError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'AssertionError';
  }
}

export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new AssertionError(message);
}
