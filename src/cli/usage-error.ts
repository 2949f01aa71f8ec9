import { resolve } from 'node:path';
import { CodedError, parseDuration } from '../base/index.ts';

/** Invalid arguments: exit code 2, and a pointer to `--help`. */
export class UsageError extends CodedError {
  constructor(message: string) {
    super('USAGE', message);
  }
}

/**
 * Makes a typed path absolute. An empty path comes from an unset variable and is refused. Otherwise
 * a restore would write to the current directory. Throws {@link UsageError}.
 */
export function absolutePath(what: string, text: string): string {
  if (text !== '') return resolve(text);
  throw new UsageError(`the ${what} is empty; write . for the current directory`);
}

/** Parses a flag into milliseconds, at least one. Throws {@link UsageError}. */
export function durationFlagMs(flag: string, text: string, example: string): number {
  const ns = parseDuration(text);
  if (ns !== undefined && ns >= 1_000_000n) return Number(ns / 1_000_000n);
  throw new UsageError(`${flag} "${text}" is not a duration such as ${example}`);
}
