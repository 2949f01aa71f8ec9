import { describe, expect, it } from 'vitest';
import { nextCronTimeMs } from '../../../src/server/schedules/cron-times.ts';

function next(text: string, after: string): string | undefined {
  const ms = nextCronTimeMs(text, Date.parse(after));
  return ms === undefined ? undefined : new Date(ms).toISOString().replace('.000Z', 'Z');
}

describe('the next time of a schedule', () => {
  // 26 November 2026 is a Thursday.
  it.each([
    ['0 2 * * *', '2026-11-26T01:59:59Z', '2026-11-26T02:00:00Z'],
    ['0 2 * * *', '2026-11-26T02:00:00Z', '2026-11-27T02:00:00Z'],
    ['*/15 * * * *', '2026-11-26T10:07:00Z', '2026-11-26T10:15:00Z'],
    ['5/20 * * * *', '2026-11-26T10:46:00Z', '2026-11-26T11:05:00Z'],
    ['30 1-3,22 * * *', '2026-11-26T03:30:00Z', '2026-11-26T22:30:00Z'],
    ['0 22-2 * * *', '2026-11-26T02:00:00Z', '2026-11-26T22:00:00Z'],
    ['0 22-2 * * *', '2026-11-26T23:30:00Z', '2026-11-27T00:00:00Z'],
    ['0 0 * * SUN', '2026-11-26T00:00:00Z', '2026-11-29T00:00:00Z'],
    ['0 0 * * 7', '2026-11-26T00:00:00Z', '2026-11-29T00:00:00Z'],
    ['0 0 * * FRI-MON', '2026-11-28T12:00:00Z', '2026-11-29T00:00:00Z'],
    ['0 0 * * FRI-MON', '2026-11-30T12:00:00Z', '2026-12-04T00:00:00Z'],
    ['0 0 1 jan ?', '2026-11-26T00:00:00Z', '2027-01-01T00:00:00Z'],
    ['0 0 29 2 *', '2026-11-26T00:00:00Z', '2028-02-29T00:00:00Z'],
    ['@daily', '2026-11-26T00:00:00Z', '2026-11-27T00:00:00Z'],
    ['@hourly', '2026-11-26T10:00:01Z', '2026-11-26T11:00:00Z'],
    ['@weekly', '2026-11-26T10:00:01Z', '2026-11-29T00:00:00Z'],
    ['@every 6h', '2026-11-26T10:00:01.500Z', '2026-11-26T16:00:01Z'],
    ['@every 10ms', '2026-11-26T10:00:01Z', '2026-11-26T10:00:02Z'],
    ['TZ=Asia/Tokyo 0 3 * * *', '2026-11-26T10:00:00Z', '2026-11-26T18:00:00Z'],
    ['CRON_TZ=America/St_Johns 0 3 * * *', '2026-07-01T10:00:00Z', '2026-07-02T05:30:00Z'],
  ])('%s after %s is %s', (text, after, expected) => {
    expect(next(text, after)).toBe(expected);
  });

  it('is on days that match both the month and the week, as in Velero 1.18.3', () => {
    expect(next('0 3 1 * 1', '2026-11-26T00:00:00Z')).toBe('2027-02-01T03:00:00Z');
  });

  it('comes right after an hour that is skipped, and in each of two that are the same', () => {
    const spring = 'TZ=Europe/Berlin 30 2 * * *';
    expect(next(spring, '2026-03-28T12:00:00Z')).toBe('2026-03-29T01:00:00Z');
    expect(next(spring, '2026-03-29T01:00:00Z')).toBe('2026-03-30T00:30:00Z');
    expect(next(spring, '2026-10-24T12:00:00Z')).toBe('2026-10-25T00:30:00Z');
    expect(next(spring, '2026-10-25T00:30:00Z')).toBe('2026-10-25T01:30:00Z');
    expect(next(spring, '2026-10-25T01:30:00Z')).toBe('2026-10-26T01:30:00Z');
    expect(next('TZ=Europe/Berlin 0 5 * * *', '2026-03-29T00:00:00Z')).toBe('2026-03-29T03:00:00Z');
  });

  it.each([
    ...['', '* * * *', '* * * * * *', '60 * * * *', '0 24 * * *', '0 0 0 * *', '0 0 * 13 *'],
    ...['0 0 * * 8', 'x * * * *', '1- * * * *', '-1 * * * *', '*/0 * * * *', '1/2/3 * * * *'],
    ...['@often', '@every soon', '@every 0s', 'TZ=Nowhere/Town 0 0 * * *', '0 0 30 2 *'],
    '0 0 * * *'.padStart(1030),
  ])('is none for "%s"', (text) => {
    expect(next(text, '2026-11-26T00:00:00Z')).toBeUndefined();
  });
});
