import { codeOf, isCanceled, messageOf } from '../../base/index.ts';

/** The error for a file or volume that may be partly written. */
export function asPartlyWritten(error: unknown): unknown {
  if (isCanceled(error)) return error;
  const text = `${messageOf(error)}; it may now hold bytes of before and of the snapshot: solve this and run the same command again`;
  return Object.assign(new Error(text, { cause: error }), { code: codeOf(error) });
}
