import { codeOf } from '../base/index.ts';

/** A path; bytes where a name in it is not UTF-8. */
export type BytePath = string | Uint8Array;

export const fsPath = (path: BytePath): string | Buffer =>
  typeof path === 'string' ? path : Buffer.from(path);

/** As messages show it: what is not UTF-8 in it is replaced. */
export const shownPath = (path: BytePath): string => Buffer.from(path as string).toString();

/** The code of an error, as messages between threads carry it. */
export const toldCode = (error: unknown): string => codeOf(error) ?? 'UNKNOWN';
