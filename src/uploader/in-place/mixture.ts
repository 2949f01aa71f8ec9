import { codeOf, isCanceled, messageOf } from '../../base/index.ts';

/** A part of a file or volume may be written when this is thrown. */
export function asMixture(error: unknown): unknown {
  if (isCanceled(error)) return error;
  const text = `${messageOf(error)}; it may now hold bytes of before and of the snapshot: solve this and run the same command again`;
  return Object.assign(new Error(text, { cause: error }), { code: codeOf(error) });
}
