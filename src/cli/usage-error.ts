import { resolve } from 'node:path';
import { CodedError, parseDuration } from '../base/index.ts';

/** What was typed makes no sense: exit code 2, and a pointer to `--help`. */
export class UsageError extends CodedError {
  constructor(message: string) {
    super('USAGE', message);
  }
}

/**
 * A path as it was typed, made absolute. An empty one is a variable that is not set, and not the
 * current directory, which a restore would write over. Throws {@link UsageError}.
 */
export function absolutePath(what: string, text: string): string {
  if (text !== '') return resolve(text);
  throw new UsageError(`the ${what} is empty; write . for the current directory`);
}

/** The value of a flag as milliseconds, at least one. Throws {@link UsageError}. */
export function durationFlagMs(flag: string, text: string, example: string): number {
  const ns = parseDuration(text);
  if (ns !== undefined && ns >= 1_000_000n) return Number(ns / 1_000_000n);
  throw new UsageError(`${flag} "${text}" is not a duration such as ${example}`);
}
