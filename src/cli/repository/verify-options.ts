import type { VerificationReport } from '../../snapshot/index.ts';
import { countOf } from '../output/numbers.ts';
import { durationFlagMs, UsageError } from '../usage-error.ts';

/** A number above 0, up to 1. Throws a usage error. */
export function shareOf(text: string): number {
  const percent = /^(\d+(?:\.\d+)?)%$/.exec(text)?.[1];
  const share = Number(percent) / 100;
  if (share > 0 && share <= 1) return share;
  throw new UsageError(`--share "${text}" is not a percentage from above 0% to 100%, such as 5%`);
}

/** In nanoseconds. Throws a usage error. */
export const budgetOf = (text: string | undefined): bigint | undefined =>
  text === undefined ? undefined : BigInt(durationFlagMs('--budget', text, '30m')) * 1_000_000n;

const RECORDED = 'the next backup of a volume stores again what is damaged and still on it';

/** The problem in a sentence. Includes damage found by an earlier run in unread packs. */
export function problemOf(report: VerificationReport): string | undefined {
  const { problems, problemsNotListed, damagedContents, record } = report;
  const [first] = problems.held;
  const isRecorded = damagedContents > 0 && (record === 'written' || record === 'unchanged');
  const hint = isRecorded ? `; ${RECORDED}` : '';
  if (first) {
    const others = problems.held.length + problemsNotListed - 1;
    const more = others > 0 ? ` (and ${countOf(others, 'more problems')})` : '';
    return `${first.message}${more}${hint}`;
  }
  if (damagedContents === 0) return undefined;
  return `an earlier run found damage that is still there: ${countOf(damagedContents, 'contents')}${hint}`;
}
