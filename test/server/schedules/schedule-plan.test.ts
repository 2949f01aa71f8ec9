import { describe, expect, it } from 'vitest';
import { parseGoTime, rfc3339Seconds, SECOND_NS } from '../../../src/base/index.ts';
import { Zone } from '../../../src/cron/index.ts';
import type { Schedule } from '../../../src/server/schedules/schedule.ts';
import { backupOf } from '../../../src/server/schedules/schedule-backup.ts';
import {
  type PlanOptions,
  planSchedule,
  type SchedulePlan,
} from '../../../src/server/schedules/schedule-plan.ts';

const MADE = '2026-11-21T01:00:00Z';

function scheduleOf(spec: object = {}, status: object = {}, metadata: object = {}): Schedule {
  return {
    apiVersion: 'velero.io/v1',
    kind: 'Schedule',
    metadata: {
      name: 'nightly',
      namespace: 'velero',
      uid: 'u',
      creationTimestamp: MADE,
      ...metadata,
    },
    spec: { schedule: '0 2 * * *', template: {}, skipImmediately: false, ...spec },
    status: { phase: 'Enabled', ...status },
  } as unknown as Schedule;
}

const plan = (
  schedule: Schedule,
  now: string,
  options: Partial<PlanOptions> = {},
): SchedulePlan | undefined =>
  planSchedule(schedule, {
    nowNs: parseGoTime(now),
    skipsImmediately: false,
    zone: Zone.utc,
    ...options,
  });
const shown = (seconds: number | undefined): string | undefined =>
  seconds === undefined ? undefined : rfc3339Seconds(BigInt(seconds) * SECOND_NS);
const due = (...given: Parameters<typeof plan>): string | undefined =>
  shown(plan(...given)?.dueFor);

describe('when a backup of a schedule is due', () => {
  it('is not before its first time, not at it, and right after it', () => {
    const schedule = scheduleOf();
    expect(due(schedule, '2026-11-21T01:59:59Z')).toBeUndefined();
    expect(due(schedule, '2026-11-21T02:00:00Z')).toBeUndefined();
    expect(due(schedule, '2026-11-21T02:00:00.000000001Z')).toBe('2026-11-21T02:00:00Z');
    expect(shown(plan(schedule, '2026-11-21T01:59:59Z')?.next)).toBe('2026-11-21T02:00:00Z');
    expect(shown(plan(schedule, '2026-11-21T02:00:00Z')?.next)).toBe('2026-11-21T02:00:00Z');
    expect(plan(schedule, '2026-11-21T02:00:00Z')?.interval).toBe(86_400);
  });

  it('is once for the last of all times that passed while no server was there', () => {
    const schedule = scheduleOf({ schedule: '*/5 * * * *' }, { lastBackup: MADE });
    expect(due(schedule, '2026-11-29T13:07:00Z')).toBe('2026-11-29T13:05:00Z');
    const after = scheduleOf({ schedule: '*/5 * * * *' }, { lastBackup: '2026-11-29T13:07:01Z' });
    expect(due(after, '2026-11-29T13:07:02Z')).toBeUndefined();
  });

  it('is never while it is paused, and once after that', () => {
    expect(plan(scheduleOf({ paused: true }), '2026-11-25T00:00:00Z')).toBeUndefined();
    expect(due(scheduleOf({ paused: false }), '2026-11-25T00:00:00Z')).toBe('2026-11-24T02:00:00Z');
  });

  it('is not for a time before it was made or has skipped', () => {
    const skipped = scheduleOf({}, { lastSkipped: '2026-11-21T03:00:00Z' });
    expect(due(skipped, '2026-11-21T04:00:00Z')).toBeUndefined();
    expect(due(skipped, '2026-11-22T02:00:01Z')).toBe('2026-11-22T02:00:00Z');
    // A later backup counts more.
    const made = scheduleOf(
      {},
      { lastSkipped: '2026-11-21T03:00:00Z', lastBackup: '2026-11-22T02:00:00Z' },
    );
    expect(due(made, '2026-11-22T03:00:00Z')).toBeUndefined();
  });

  it('is in a time zone: after an hour that clocks skip, and once in one that they have twice', () => {
    const berlin = Zone.of('Europe/Berlin');
    if (!berlin) throw new Error('Node knows no Berlin');
    const spring = scheduleOf({ schedule: '30 2 * * *' }, { lastBackup: '2027-03-27T12:00:00Z' });
    const options = { zone: berlin };
    expect(due(spring, '2027-03-28T00:59:59Z', options)).toBeUndefined();
    expect(due(spring, '2027-03-28T01:30:01Z', options)).toBe('2027-03-28T01:30:00Z');
    const autumn = (lastBackup: string): Schedule =>
      scheduleOf({ schedule: 'TZ=Europe/Berlin 30 2 * * *' }, { lastBackup });
    expect(due(autumn('2026-10-24T12:00:00Z'), '2026-10-25T00:30:01Z')).toBe(
      '2026-10-25T00:30:00Z',
    );
    // The library gives the same as Velero: see test/golden/cron.
    expect(due(autumn('2026-10-25T00:30:02Z'), '2026-10-25T01:00:00Z')).toBeUndefined();
  });

  it('is not again after a clock was set back, nor never again after it was days ahead', () => {
    const hour = scheduleOf({}, { lastBackup: '2026-11-22T02:00:01Z' });
    expect(due(hour, '2026-11-22T01:30:00Z')).toBeUndefined();
    expect(due(hour, '2026-11-22T02:00:01Z')).toBeUndefined();
    expect(plan(hour, '2026-11-22T01:30:00Z')?.isAhead).toBe(false);
    const years = scheduleOf({}, { lastBackup: '2036-11-22T02:00:01Z' });
    const now = '2026-11-22T01:30:00Z';
    expect(plan(years, now)).toMatchObject({ isAhead: true, dueFor: undefined });
    const aheadSince = Number(parseGoTime(now) / SECOND_NS);
    expect(due(years, '2026-11-22T02:00:01Z', { aheadSince })).toBe('2026-11-22T02:00:00Z');
  });

  it('is never by itself where only a person says when', () => {
    const manual = plan(scheduleOf({ schedule: '@manual' }), '2036-11-22T01:30:00Z');
    expect(manual).toMatchObject({ problems: [], dueFor: undefined, next: undefined });
  });
});

describe('what is written about a schedule', () => {
  const now = '2026-11-21T01:30:00Z';
  it('is why the API server would refuse each of its backups', () => {
    const long = scheduleOf({ schedule: '* * * * *' }, {}, { name: 'n'.repeat(239) });
    const labelled = (value: string): Schedule =>
      scheduleOf({ schedule: '* * * * *', template: { metadata: { labels: { a: value } } } });
    for (const [schedule, problem] of [
      [
        long,
        'invalid name: backups are called NAME-YYYYMMDDhhmmss, which has 254 characters here, and may have 253',
      ],
      [labelled('x y'), 'invalid labels of the template: "x y" is no value of a label'],
    ] as const) {
      expect(plan(schedule, now)).toMatchObject({
        patch: { status: { phase: 'FailedValidation', validationErrors: [problem] } },
        dueFor: undefined,
        next: undefined,
      });
    }
    const fits = scheduleOf({ schedule: '* * * * *' }, {}, { name: 'n'.repeat(238) });
    for (const schedule of [fits, labelled('x')]) {
      expect(plan(schedule, now)).toMatchObject({ problems: [] });
      expect(due(schedule, now)).toBeDefined();
    }
  });
  it('is nothing where nothing has changed', () => {
    expect(plan(scheduleOf(), now)?.patch).toBeUndefined();
  });
  it.each([
    ['', 'Schedule must be a non-empty valid Cron expression'],
    ['* * * *', 'invalid schedule: expected exactly 5 fields, found 4: [* * * *]'],
    ['*/60 * * * *', 'invalid schedule: step (60) must be less than range size (60): "*/60"'],
    ['0 0 30 2 *', 'invalid schedule: "0 0 30 2 *" has no time within five years'],
  ])('is what is wrong with "%s"', (text, problem) => {
    const failed = plan(scheduleOf({ schedule: text }), now);
    expect(failed).toMatchObject({
      patch: { status: { phase: 'FailedValidation', validationErrors: [problem] } },
      dueFor: undefined,
      next: undefined,
      problems: [problem],
    });
    const known = { phase: 'FailedValidation', validationErrors: [problem] };
    expect(plan(scheduleOf({ schedule: text }, known), now)?.patch).toBeUndefined();
    expect(plan(scheduleOf({}, known), now)?.patch).toEqual({
      status: { phase: 'Enabled', validationErrors: null },
    });
  });
  it('is that it skipped, once: said by itself, or by the server for one that does not say', () => {
    const patch = { spec: { skipImmediately: false }, status: { lastSkipped: now } };
    const own = plan(
      scheduleOf({ skipImmediately: true }, { lastBackup: '2026-11-01T00:00:00Z' }),
      now,
    );
    expect(own).toMatchObject({ patch, dueFor: undefined });
    const unsaid = scheduleOf(
      { skipImmediately: undefined },
      { lastBackup: '2026-11-01T00:00:00Z' },
    );
    expect(plan(unsaid, now, { skipsImmediately: true })).toMatchObject({
      patch,
      dueFor: undefined,
    });
    expect(plan(unsaid, now)?.patch).toEqual({ spec: { skipImmediately: false } });
    expect(due(unsaid, now)).toBe('2026-11-20T02:00:00Z');
  });
});

describe('the Backup of a schedule', () => {
  const FOR = Number(parseGoTime('2026-11-21T02:00:00Z') / SECOND_NS);
  it('has its template, labels, annotations and name', () => {
    const template = {
      ttl: '720h0m0s',
      includedNamespaces: ['a'],
      hooks: {},
      metadata: { labels: { team: 'x' } },
      resourcePolicy: { kind: 'Whatever', name: 'p' },
    };
    const metadata = { labels: { of: 'schedule' }, annotations: { note: 'n' } };
    const backup = backupOf(scheduleOf({ template }, {}, metadata), FOR);
    expect(backup.metadata).toEqual({
      name: 'nightly-20261121020000',
      namespace: 'velero',
      annotations: { note: 'n' },
      labels: { team: 'x', 'velero.io/schedule-name': 'nightly', 'longshore.io/schedule-uid': 'u' },
    });
    expect(backup.spec).toMatchObject({ ttl: '720h0m0s', includedNamespaces: ['a'], hooks: {} });
    expect(backup.spec).toMatchObject({ resourcePolicy: { kind: 'configmap', name: 'p' } });
    expect(backup).not.toHaveProperty('status');
  });
  it('has the labels of the Schedule where the template has none, and an owner only where that is asked for', () => {
    const metadata = { labels: { of: 'schedule' } };
    const own = backupOf(scheduleOf({ useOwnerReferencesInBackup: true }, {}, metadata), FOR);
    expect(own.metadata).toEqual({
      name: 'nightly-20261121020000',
      namespace: 'velero',
      labels: {
        of: 'schedule',
        'velero.io/schedule-name': 'nightly',
        'longshore.io/schedule-uid': 'u',
      },
      ownerReferences: [
        {
          apiVersion: 'velero.io/v1',
          kind: 'Schedule',
          name: 'nightly',
          uid: 'u',
          controller: true,
        },
      ],
    });
  });
  it('has a label that fits where the name does not', () => {
    const backup = backupOf(scheduleOf({}, {}, { name: 'n'.repeat(100) }), FOR);
    expect(backup.metadata.labels?.['velero.io/schedule-name']).toHaveLength(63);
    expect(backup.metadata.name).toBe(`${'n'.repeat(100)}-20261121020000`);
  });
});
