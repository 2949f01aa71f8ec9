import { Registry } from 'prom-client';
import { beforeEach, describe, expect, it } from 'vitest';
import type { Backup } from '../../../src/backup/index.ts';
import { BackupMetrics } from '../../../src/server/index.ts';

describe('metrics of backups', () => {
  let registry: Registry;
  let metrics: BackupMetrics;
  beforeEach(() => {
    registry = new Registry();
    metrics = new BackupMetrics(registry);
  });
  const linesOf = async (name: string): Promise<string[]> =>
    (await registry.metrics()).split('\n').filter((line) => line.startsWith(`${name}{`));
  const backupOf = (schedule: string, phase: string, completionTimestamp?: string): Backup =>
    ({
      metadata: { name: 'b', labels: { 'velero.io/schedule-name': schedule } },
      status: { phase, completionTimestamp },
    }) as unknown as Backup;

  it('the last success of a schedule is known from backups that were there before, in any order', async () => {
    metrics.seen(backupOf('nightly', 'Completed', '2026-11-26T00:00:00Z'));
    metrics.seen(backupOf('nightly', 'Completed', '2026-11-20T00:00:00Z'));
    metrics.seen(backupOf('nightly', 'PartiallyFailed', '2026-11-27T00:00:00Z'));
    metrics.seen(backupOf('nightly', 'Completed', 'soon'));
    metrics.seen(backupOf('nightly', 'Completed'));
    const name = 'velero_backup_last_successful_timestamp';
    const seconds = Date.parse('2026-11-26T00:00:00Z') / 1000;
    expect(await linesOf(name)).toEqual([`${name}{schedule="nightly"} ${seconds}`]);
    // What was there before counts as nothing that was done.
    expect(await linesOf('velero_backup_success_total')).toEqual([
      'velero_backup_success_total{schedule=""} 0',
    ]);
    metrics.end('nightly');
    expect(await linesOf(name)).toEqual([]);
    metrics.seen(backupOf('nightly', 'Completed', '2026-11-20T00:00:00Z'));
    expect((await linesOf(name)).length).toBe(1);
  });

  it('backups that are not over are counted by phase, and the queue also when it is empty', async () => {
    metrics.underWay(['', 'New', 'Queued', 'Queued', 'Finalizing']);
    expect(await linesOf('longshore_backups')).toEqual([
      'longshore_backups{phase="New"} 2',
      'longshore_backups{phase="Queued"} 2',
      'longshore_backups{phase="InProgress"} 0',
      'longshore_backups{phase="Finalizing"} 1',
    ]);
    metrics.underWay([]);
    expect(await linesOf('longshore_backups')).toEqual([
      'longshore_backups{phase="New"} 0',
      'longshore_backups{phase="Queued"} 0',
      'longshore_backups{phase="InProgress"} 0',
    ]);
  });
});
