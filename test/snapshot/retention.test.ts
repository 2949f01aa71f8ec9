import { describe, expect, it } from 'vitest';
import { parseGoTime } from '../../src/base/index.ts';
import type { ManifestId } from '../../src/repository/index.ts';
import {
  expiredSnapshots,
  type Policy,
  retentionReasons,
  type Snapshot,
} from '../../src/snapshot/index.ts';

type Retention = Policy['retention'];

function snapshot(time: string, more: Partial<Snapshot> = {}): Snapshot {
  return {
    id: time as ManifestId,
    source: { host: 'h', userName: 'u', path: '/p' },
    description: '',
    startTimeNs: parseGoTime(`${time}Z`),
    endTimeNs: parseGoTime(`${time}Z`),
    stats: {} as Snapshot['stats'],
    ...more,
  };
}

const reasonsOf = (snapshots: Snapshot[], retention: Retention): Record<string, string> =>
  Object.fromEntries(
    [...retentionReasons(snapshots, retention)].map(([id, list]) => [id, list.sort().join(' ')]),
  );
const expiredIds = (snapshots: Snapshot[], retention: Retention): string[] =>
  expiredSnapshots(snapshots, retention).map(({ id }) => id);

/** Cases as in Kopia's rules (snapshot/policy/retention_policy.go). */
describe('retention', () => {
  it('keeps everything when nothing is asked for', () => {
    const all = [snapshot('2026-01-01T00:00:00'), snapshot('2020-01-01T00:00:00')];
    expect(expiredIds(all, {})).toEqual([]);
    expect(expiredIds(all, { keepLatest: 0, keepHourly: 0 })).toEqual([]);
  });

  it('keeps the latest by number', () => {
    const all = [1, 2, 3, 4].map((day) => snapshot(`2026-01-0${day}T00:00:00`));
    expect(expiredIds(all, { keepLatest: 2 })).toEqual([
      '2026-01-01T00:00:00',
      '2026-01-02T00:00:00',
    ]);
  });

  it('keeps the newest of each period, and names each reason', () => {
    const all = [
      snapshot('2026-03-15T10:50:00'),
      snapshot('2026-03-15T10:10:00'),
      snapshot('2026-03-15T09:00:00'),
      snapshot('2026-03-14T23:00:00'),
      snapshot('2026-02-01T00:00:00'),
    ];
    expect(reasonsOf(all, { keepLatest: 1, keepHourly: 2, keepDaily: 2, keepMonthly: 2 })).toEqual({
      '2026-03-15T10:50:00': 'daily-1 hourly-1 latest-1 monthly-1',
      '2026-03-15T10:10:00': '',
      '2026-03-15T09:00:00': 'hourly-2',
      '2026-03-14T23:00:00': 'daily-2',
      '2026-02-01T00:00:00': 'monthly-2',
    });
  });

  it('counts weeks by ISO 8601, also around the turn of the year', () => {
    const all = [
      snapshot('2027-01-04T00:00:00'),
      snapshot('2027-01-03T23:00:00'),
      snapshot('2026-12-28T00:00:00'),
      snapshot('2026-12-27T00:00:00'),
    ];
    expect(reasonsOf(all, { keepWeekly: 3 })).toEqual({
      '2027-01-04T00:00:00': 'weekly-1',
      '2027-01-03T23:00:00': 'weekly-2',
      '2026-12-28T00:00:00': '',
      '2026-12-27T00:00:00': 'weekly-3',
    });
  });

  it('keeps a period only as far back as it is asked for', () => {
    const all = [
      snapshot('2026-01-10T12:00:00'),
      snapshot('2026-01-08T12:00:00'),
      snapshot('2026-01-08T11:00:00'),
      snapshot('2025-12-10T12:00:00'),
    ];
    expect(expiredIds(all, { keepDaily: 2 })).toEqual([
      '2026-01-08T11:00:00',
      '2025-12-10T12:00:00',
    ]);
  });

  it('keeps for ever with the largest number that Velero writes', () => {
    const ever = 2 ** 31 - 1;
    const all = [snapshot('2026-01-10T12:00:00'), snapshot('1971-01-08T12:00:00')];
    expect(expiredIds(all, { keepDaily: ever, keepAnnual: ever, keepHourly: ever })).toEqual([]);
  });

  it('never removes what is pinned', () => {
    const old = snapshot('2020-01-01T00:00:00', { pins: ['velero-pin'] });
    expect(expiredIds([snapshot('2026-01-01T00:00:00'), old], { keepLatest: 1 })).toEqual([]);
  });

  it('an incomplete one counts for nothing, and goes once a whole one is newer', () => {
    const whole = snapshot('2026-01-01T00:00:00');
    const partial = snapshot('2026-01-02T00:00:00', { incomplete: 'checkpoint' });
    expect(reasonsOf([whole, partial], { keepLatest: 1, keepDaily: 1 })).toMatchObject({
      '2026-01-02T00:00:00': 'incomplete',
    });
    // Kopia counts the position among all, so the first place belongs to the incomplete one.
    expect(expiredIds([whole, partial], { keepLatest: 1 })).toEqual([]);
    const newer = snapshot('2026-01-03T00:00:00');
    expect(expiredIds([whole, partial, newer], { keepLatest: 2 })).toEqual([partial.id]);
  });

  it('of incomplete ones the first three and those of the last four hours stay', () => {
    const at = (time: string): Snapshot =>
      snapshot(`2026-01-02T${time}:00`, { incomplete: 'canceled' });
    const all = [at('12:00'), at('11:00'), at('10:00'), at('09:00'), at('07:59'), at('07:00')];
    expect(expiredIds(all, { keepLatest: 1 })).toEqual([
      '2026-01-02T07:59:00',
      '2026-01-02T07:00:00',
    ]);
    const apart = [at('20:00'), at('15:00'), at('10:00'), at('05:00')];
    expect(expiredIds(apart, { keepLatest: 1 })).toEqual(['2026-01-02T05:00:00']);
  });

  it('goes by start times alone, in whatever order snapshots are listed', () => {
    const all = [3, 1, 4, 2].map((day) => snapshot(`2026-01-0${day}T00:00:00`));
    expect(expiredIds(all, { keepLatest: 3 })).toEqual(['2026-01-01T00:00:00']);
  });

  it('after a clock that was ahead, the number of latest ones still holds', () => {
    const ahead = snapshot('2099-01-01T00:00:00');
    const real = [1, 2, 3].map((day) => snapshot(`2026-01-0${day}T00:00:00`));
    expect(expiredIds([ahead, ...real], { keepLatest: 3, keepDaily: 7 })).toEqual([
      '2026-01-01T00:00:00',
    ]);
  });
});
