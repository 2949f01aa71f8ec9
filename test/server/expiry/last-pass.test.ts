import { describe, expect, it } from 'vitest';
import { HOUR_NS, parseGoTime } from '../../../src/base/index.ts';
import { type LookTimes, timesAt } from '../../../src/server/expiry/last-pass.ts';

const NOW_NS = parseGoTime('2026-11-28T00:00:00Z');
const YEAR = 8766;
const at = (hours: number, held?: number): LookTimes => ({
  lookedAtNs: NOW_NS + BigInt(hours) * HOUR_NS,
  heldUntilNs: held === undefined ? undefined : NOW_NS + BigInt(held) * HOUR_NS,
});

describe('the times of a look for expired backups', () => {
  it.each<[string, LookTimes | undefined, number | undefined]>([
    ['the first one ever', undefined, undefined],
    ['an hour after the last one', at(-1), undefined],
    ['a day and the frequency after the last one', at(-25), undefined],
    ['longer after it, as after an outage or a jump of the clock', at(-26), 24],
    ['a year after it', at(-YEAR), 24],
    ['while deletions are held', at(-1, 5), 5],
    ['when that is over', at(-1, 0), undefined],
    [
      'an outage in which that was over, as of a machine that is on now and then',
      at(-30, -6),
      undefined,
    ],
    ['a month after they were held', at(-31 * 24, -30 * 24), 24],
    ['an outage after that', at(-30), 24],
    ['another server, whose clock is behind, while they are held', at(1, 24), 24],
    ['a clock that was a year ahead is set right', at(YEAR, YEAR + 24), undefined],
    ['one that was ahead by little more than a look may be late', at(26, 50), undefined],
  ])('%s', (_, before, held) => {
    expect(timesAt(NOW_NS, before, 3_600_000)).toEqual(at(0, held));
  });

  it('have a gap that grows with the time between two looks', () => {
    expect(timesAt(NOW_NS, at(-100), 100 * 3_600_000)).toEqual(at(0));
    expect(timesAt(NOW_NS, at(-125), 100 * 3_600_000)).toEqual(at(0, 24));
  });
});
