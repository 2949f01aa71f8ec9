import { describe, expect, it } from 'vitest';
import {
  frequencyMsOf,
  restUntilValidation,
} from '../../../src/server/locations/validation-plan.ts';

const NOW_MS = Date.UTC(2026, 4, 1, 12);
const ago = (ms: number): string => new Date(NOW_MS - ms).toISOString();
const rest = (
  lastValidationTime: string | undefined,
  frequency?: string | null,
  serverFrequencyMs = 60_000,
): number =>
  restUntilValidation({ lastValidationTime, frequency, serverFrequencyMs, nowMs: NOW_MS });

describe('when a location is to be validated', () => {
  it.each([
    ['never was', undefined, undefined, 60_000, 0],
    ['never was, and is not to be again', undefined, '0s', 60_000, 0],
    ['was, and is not to be again', ago(1e9), '0s', 60_000, Infinity],
    ['was, and the server does it once', ago(1e9), undefined, 0, Infinity],
    ["its own frequency counts before the server's", ago(30_000), '20s', 60_000, 0],
    ['its own, longer one, too', ago(61_000), '2m0s', 60_000, 59_000],
    ["the server's where it has none", ago(61_000), null, 60_000, 0],
    ["the server's where its own is negative", ago(20_000), '-5s', 60_000, 40_000],
    ["the server's where its own is no duration", ago(20_000), 'often', 60_000, 40_000],
    ['a time in the future delays nothing', ago(-3_600_000), undefined, 60_000, 0],
    ['a second ahead is no future', ago(-1000), undefined, 60_000, 61_000],
    ['what is no time is none', 'yesterday', undefined, 60_000, 0],
  ])('%s', (_, last, frequency, server, expected) => {
    expect(rest(last, frequency, server)).toBe(expected);
  });
  it('reads durations as Go writes them', () => {
    expect(['1h30m0s', '+5s', '0', '100ms'].map(frequencyMsOf)).toEqual([5_400_000, 5000, 0, 100]);
    expect([undefined, null, '', '-1s', '5'].map(frequencyMsOf)).toEqual(
      Array<undefined>(5).fill(undefined),
    );
  });
});
