import { describe, expect, it } from 'vitest';
import { restUntilSync, type SyncTimes } from '../../../src/server/sync/sync-plan.ts';

const NOW = Date.parse('2026-11-21T02:00:00Z');
const rest = (times: Partial<SyncTimes>): number =>
  restUntilSync({
    period: undefined,
    serverPeriodMs: 60_000,
    nowMs: NOW,
    lastSyncedTime: '2026-11-21T01:59:30Z',
    ...times,
  });

describe('when a location is synced again', () => {
  it.each([
    // Nobody has synced it.
    [{ lastSyncedTime: undefined }, 0],
    [{ lastSyncedTime: null }, 0],
    [{ lastSyncedTime: 'soon' }, 0],
    // As the server says.
    [{}, 30_000],
    [{ lastSyncedTime: '2026-11-21T01:59:00Z' }, 0],
    [{ serverPeriodMs: 3_600_000 }, 3_570_000],
    // A server that is told 0 looks every minute.
    [{ serverPeriodMs: 0 }, 30_000],
    // As it says itself: 0 is never, and what is no period is the server's.
    [{ period: '10m' }, 570_000],
    [{ period: '0s' }, Infinity],
    [{ period: '0s', lastSyncedTime: undefined }, Infinity],
    [{ period: '-5m' }, 30_000],
    [{ period: 'often' }, 30_000],
    // Clocks that differ a little, and one that was wrong.
    [{ lastSyncedTime: '2026-11-21T02:00:01Z' }, 61_000],
    [{ lastSyncedTime: '2026-11-21T02:00:10Z' }, 0],
    [{ lastSyncedTime: '2036-11-21T02:00:00Z' }, 0],
  ])('%j: %s ms', (times, expected) => {
    expect(rest(times)).toBe(expected);
  });
});
