import { describe, expect, it } from 'vitest';
import { keptRepository, keptSchedule, type ScheduleRow } from '../../../src/server/page/rows.ts';

const rowOf = (schedule: unknown, lastBackup?: string): ScheduleRow =>
  keptSchedule({
    metadata: {
      name: 's',
      uid: 'u',
      namespace: 'velero',
      resourceVersion: '1',
      creationTimestamp: '2026-11-26T07:00:00Z',
    },
    spec: { schedule },
    status: { lastBackup },
  }).row;
const next = (schedule: string, lastBackup?: string): string | undefined => {
  const { nextMs } = rowOf(schedule, lastBackup);
  return nextMs === undefined ? undefined : new Date(nextMs).toISOString();
};

describe('the next run of a schedule', () => {
  it('is by the cron expressions of Velero', () => {
    expect(next('0 2 * * *')).toBe('2026-11-27T02:00:00.000Z');
    expect(next('TZ=Asia/Tokyo 0 2 * * *')).toBe('2026-11-26T17:00:00.000Z');
    expect(next('@every 90m')).toBe('2026-11-26T08:30:00.000Z');
  });

  it('is none where it is made by hand, never comes or cannot be read, and the row says which', () => {
    expect(rowOf('@manual')).toMatchObject({ isManual: true, cronProblem: '' });
    expect(rowOf('0 0 30 2 *').cronProblem).toBe('it is not due within five years');
    expect(rowOf('every night').cronProblem).toMatch(/expected exactly 5 fields/);
    expect(rowOf(7).cronProblem).toMatch(/empty/);
    for (const text of ['@manual', '0 0 30 2 *', 'every night']) expect(next(text)).toBeUndefined();
  });

  it('is found at once whatever somebody wrote as the time of the last backup', () => {
    for (const time of ['0001-01-01T00:00:00Z', '2011-12-29T00:00:00Z', '9999-12-31T23:59:59Z']) {
      expect(next('TZ=Pacific/Apia 0 0 1 * *', time)).toMatch(/^(?:20(?:17|26)|9999)-/);
    }
    expect(next('0 2 * * *', '+275760-09-13T00:00:00Z')).toMatch(/^9999-/);
  });
});

it('the size of a repository is what a verification has noted, and nothing else that somebody wrote there', () => {
  const sizeOf = (packBytes: unknown): number | undefined => {
    const noted = JSON.stringify({ time: '2026-11-26T03:00:00Z', packBytes });
    const metadata = { name: 'r', annotations: { 'longshore.io/verification': noted } };
    return keptRepository({ metadata } as never).row.packBytes;
  };
  expect([sizeOf(0), sizeOf(7)]).toEqual([0, 7]);
  expect([sizeOf(undefined), sizeOf('7'), sizeOf(null)]).toEqual([undefined, undefined, undefined]);
  expect(sizeOf(-7)).toBe(0);
});
