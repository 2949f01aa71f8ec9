import { describe, expect, it } from 'vitest';
import { restUntilSync, type SyncTimes } from '../../../src/server/sync/sync-controller.ts';

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
    // Never synced.
    [{ lastSyncedTime: undefined }, 0],
    [{ lastSyncedTime: null }, 0],
    [{ lastSyncedTime: 'soon' }, 0],
    // The server's period.
    [{}, 30_000],
    [{ lastSyncedTime: '2026-11-21T01:59:00Z' }, 0],
    [{ serverPeriodMs: 3_600_000 }, 3_570_000],
    // If the server's period is 0, it syncs every minute.
    [{ serverPeriodMs: 0 }, 30_000],
    // The location's own period: 0 means never, and an invalid period gives the server's.
    [{ period: '10m' }, 570_000],
    [{ period: '0s' }, Infinity],
    [{ period: '0s', lastSyncedTime: undefined }, Infinity],
    [{ period: '-5m' }, 30_000],
    [{ period: 'often' }, 30_000],
    // A clock with a small difference, and a wrong clock.
    [{ lastSyncedTime: '2026-11-21T02:00:01Z' }, 61_000],
    [{ lastSyncedTime: '2026-11-21T02:00:10Z' }, 0],
    [{ lastSyncedTime: '2036-11-21T02:00:00Z' }, 0],
  ])('%j: %s ms', (times, expected) => {
    expect(rest(times)).toBe(expected);
  });
});
