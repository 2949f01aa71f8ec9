import { describe, expect, it } from 'vitest';
import type { JobOutline } from '../../../../src/server/repositories/maintenance/job-outline.ts';
import {
  dueTimeNs,
  overdueSeconds,
  planMaintenance,
  type Situation,
} from '../../../../src/server/repositories/maintenance/maintenance-plan.ts';

const MINUTE = 60_000_000_000n;
const NOW = BigInt(Date.UTC(2026, 4, 1, 12)) * 1_000_000n;
const at = (minutes: number): string =>
  new Date(Number(NOW / 1_000_000n) + minutes * 60_000).toISOString();

const job = (name: string, more: Partial<JobOutline> = {}): JobOutline => ({
  name,
  uid: `uid-${name}`,
  createdNs: NOW - 10n * MINUTE,
  isOurs: true,
  end: undefined,
  ...more,
});
const DONE = { isSuccess: true, atNs: NOW - MINUTE };
const situation = (more: Partial<Situation> = {}): Situation => ({
  claim: undefined,
  jobs: [],
  status: { phase: 'Ready', lastMaintenanceTime: at(-30) },
  frequencyNs: 60n * MINUTE,
  isStartable: true,
  nowNs: NOW,
  ...more,
});
type Run = NonNullable<NonNullable<Situation['status']>['recentMaintenance']>[number];
const DUE = { phase: 'Ready', lastMaintenanceTime: at(-61) } as const;

describe('what is done about the maintenance of a repository', () => {
  const rows: [string, Partial<Situation>, object][] = [
    ['rests until it is due', {}, { kind: 'rest', forNs: 30n * MINUTE }],
    ['starts when it is due', { status: DUE }, { kind: 'start' }],
    ['starts when it never was', { status: undefined }, { kind: 'start' }],
    [
      'starts nothing where nothing may be written',
      { status: DUE, isStartable: false },
      { kind: 'rest', forNs: undefined },
    ],
    [
      'creates the Job of a claim whose server went no further',
      { claim: { name: 'a', uid: undefined } },
      { kind: 'create', name: 'a' },
    ],
    [
      'drops such a claim where nothing may be started any more',
      { claim: { name: 'a', uid: undefined }, isStartable: false },
      { kind: 'drop' },
    ],
    [
      'notes which Job was created',
      { claim: { name: 'a', uid: undefined }, jobs: [job('a')] },
      { kind: 'note', job: job('a') },
    ],
    [
      'waits for the Job that an earlier server began, however much it is due',
      { claim: { name: 'a', uid: 'uid-a' }, jobs: [job('a')], status: DUE },
      { kind: 'wait' },
    ],
    [
      'records its end, also where the location is gone',
      { claim: { name: 'a', uid: 'uid-a' }, jobs: [job('a', { end: DONE })], isStartable: false },
      { kind: 'record', jobs: [job('a', { end: DONE })], endsClaim: true },
    ],
    ['records that it is gone', { claim: { name: 'a', uid: 'uid-a' }, jobs: [] }, { kind: 'lost' }],
    [
      'does not take another Job of the same name for it',
      { claim: { name: 'a', uid: 'uid-a' }, jobs: [job('a', { uid: 'other' })] },
      { kind: 'lost' },
    ],
    [
      "waits for the Job of Velero's server",
      { status: DUE, jobs: [job('v', { isOurs: false })] },
      { kind: 'wait' },
    ],
    [
      'waits until a late Job of ours has seen that it is not named',
      { status: DUE, jobs: [job('late')] },
      { kind: 'wait' },
    ],
    [
      "records what Velero's server did not",
      { jobs: [job('v', { isOurs: false, end: DONE })] },
      { kind: 'record', jobs: [job('v', { isOurs: false, end: DONE })], endsClaim: false },
    ],
    [
      'records nothing of Jobs without a claim, which have done nothing',
      { jobs: [job('late', { end: { isSuccess: false, atNs: NOW } })] },
      { kind: 'rest', forNs: 30n * MINUTE },
    ],
  ];
  it.each(rows)('%s', (_, more, step) => {
    expect(planMaintenance(situation(more))).toEqual(step);
  });

  it("knows Velero's Jobs by their start, and those that were pushed out of a full history", () => {
    const starts = Array.from({ length: 25 }, (_, i) => at(-100 + i));
    const status = {
      lastMaintenanceTime: at(-30),
      recentMaintenance: starts.map((startTimestamp) => ({ startTimestamp })),
    };
    const created = (minutes: number): JobOutline =>
      job(`v${minutes}`, {
        isOurs: false,
        createdNs: NOW + BigInt(minutes) * MINUTE,
        end: DONE,
      });
    const jobs = [created(-100), created(-200), created(-50)];
    expect(planMaintenance(situation({ status, jobs }))).toEqual({
      kind: 'record',
      endsClaim: false,
      jobs: [created(-50)],
    });
  });
});

describe('when maintenance is due', () => {
  const dueIn = (status: Situation['status'], frequencyNs = 60n * MINUTE): number =>
    Number((dueTimeNs({ status, frequencyNs, nowNs: NOW }) - NOW) / MINUTE);
  const failed = (minutes: number): Run => ({ result: 'Failed', startTimestamp: at(minutes) });
  const succeeded = { result: 'Succeeded', startTimestamp: at(-500) } as const;

  it('is an interval after the last success', () => {
    expect(dueIn({ lastMaintenanceTime: at(-20) })).toBe(40);
  });
  it('comes again some minutes after a failure, then less and less often, but once in an interval', () => {
    const after = (...runs: Run[]): number =>
      dueIn({ lastMaintenanceTime: at(-400), recentMaintenance: [succeeded, ...runs] });
    expect(after(failed(0))).toBe(5);
    expect(after(failed(-9), failed(0))).toBe(10);
    expect(after(failed(-30), failed(-20), failed(-2))).toBe(18);
    expect(after(...Array.from({ length: 20 }, () => failed(0)))).toBe(60);
    expect(after(failed(-3), succeeded)).toBeLessThan(0);
  });
  it('does not wait for times that were written while a clock was ahead', () => {
    expect(dueIn({ lastMaintenanceTime: at(600) })).toBeLessThan(0);
    expect(dueIn({ lastMaintenanceTime: at(-61), recentMaintenance: [failed(900)] })).toBe(-1);
    // The entry stays the last in the history, and later failures still count.
    const runs = [failed(-30), failed(-1), failed(900)];
    expect(dueIn({ lastMaintenanceTime: at(-400), recentMaintenance: runs })).toBe(9);
    // Clocks differ a little.
    expect(dueIn({ lastMaintenanceTime: at(5) })).toBe(65);
  });
  it('is what overdue counts from', () => {
    const overdue = (minutes: number): number =>
      overdueSeconds(situation({ status: { lastMaintenanceTime: at(minutes) } }));
    expect([overdue(-30), overdue(-61), overdue(-180)]).toEqual([0, 60, 7200]);
  });
});
