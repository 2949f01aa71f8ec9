import { CodedError } from '../base/index.ts';

/** An invalid object in a bucket. The message names it. A retry does not help. */
export function damaged(key: string, what: string, cause?: unknown): CodedError {
  const text = `${key} in the backup storage location is damaged: ${what}`;
  return new CodedError('DAMAGED_ARCHIVE', text, { cause, facts: { key } });
}
