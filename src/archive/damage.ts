import { CodedError } from '../base/index.ts';

/**
 * An object of a bucket that is not what it should be; the message names it. Trying again does not
 * help.
 */
export function damaged(key: string, what: string, cause?: unknown): CodedError {
  const text = `${key} in the backup storage location is damaged: ${what}`;
  return new CodedError('DAMAGED_ARCHIVE', text, { cause, facts: { key } });
}
