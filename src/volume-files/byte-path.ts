import { codeOf } from '../base/index.ts';

/** A path; bytes if a name in it is not UTF-8. */
export type BytePath = string | Uint8Array;

export const fsPath = (path: BytePath): string | Buffer =>
  typeof path === 'string' ? path : Buffer.from(path);

/** The path for messages. Bytes that are not UTF-8 are replaced. */
export const shownPath = (path: BytePath): string => Buffer.from(path as string).toString();

/** The code of an error for messages between threads. */
export const toldCode = (error: unknown): string => codeOf(error) ?? 'UNKNOWN';
