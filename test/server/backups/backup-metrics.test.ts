import { Registry } from 'prom-client';
import { beforeEach, describe, expect, it } from 'vitest';
import type { Backup } from '../../../src/kube/index.ts';
import { BackupMetrics } from '../../../src/server/index.ts';
import { aBackup } from '../../support/builders.ts';

/** A Backup in a phase, optionally of a schedule. */
const backupOf = (name: string, status: object, schedule = ''): Backup =>
  aBackup({
    metadata: {
      name,
      uid: name,
      ...(schedule && { labels: { 'velero.io/schedule-name': schedule } }),
    },
    spec: {},
    status,
  });

describe('metrics of backups', () => {
  let registry: Registry;
  let known: Backup[] | undefined;
  let metrics: BackupMetrics;
  beforeEach(() => {
    registry = new Registry();
    known = [];
    metrics = new BackupMetrics(registry, { backups: () => known, hasCsi: true });
  });

  /** Samples whose line has the text. */
  const samples = async (text: string): Promise<string[]> =>
    (await registry.metrics())
      .split('\n')
      .filter((line) => !line.startsWith('#') && line.includes(text));

  it('count the Backups that there are, and say nothing where they are not followed', async () => {
    known = [backupOf('a', { phase: 'Completed' }), backupOf('b', { phase: 'InProgress' })];
    expect(await samples('velero_backup_total')).toEqual(['velero_backup_total 2']);
    known = undefined;
    expect(await samples('velero_backup_total')).toEqual([]);
    known = [];
    expect(await samples('velero_backup_total')).toEqual(['velero_backup_total 0']);
  });

  it('count those that are not over by phase, and the queue also when it is empty', async () => {
    const name = 'longshore_backups{';
    const phases = [undefined, 'New', 'Queued', 'Queued', 'Finalizing', 'Completed', 'Failed'];
    known = phases.map((phase, i) => backupOf(`b${i}`, { ...(phase !== undefined && { phase }) }));
    expect(await samples(name)).toEqual([
      'longshore_backups{phase="New"} 2',
      'longshore_backups{phase="Queued"} 2',
      'longshore_backups{phase="InProgress"} 0',
      'longshore_backups{phase="Finalizing"} 1',
    ]);
    known = [];
    expect(await samples(name)).toHaveLength(3);
    known = undefined;
    expect(await samples(name)).toEqual([]);
  });

  it('tell when the newest backup of a schedule completed, also one of an earlier process', async () => {
    const at = (phase: string, completionTimestamp: string) => ({ phase, completionTimestamp });
    known = [
      backupOf('a', at('Completed', '2026-01-01T00:00:10Z'), 'daily'),
      backupOf('b', at('Completed', '2026-01-01T00:00:05Z'), 'daily'),
      backupOf('c', at('PartiallyFailed', '2026-01-01T00:00:20Z'), 'daily'),
      backupOf('d', at('Completed', 'yesterday')),
    ];
    const seconds = Date.parse('2026-01-01T00:00:10Z') / 1000;
    const name = 'velero_backup_last_successful_timestamp';
    expect(await samples(name)).toEqual([`${name}{schedule="daily"} ${seconds}`]);
    metrics.end('daily');
    expect(await samples(name)).toEqual([]);
    metrics.begin('daily');
    expect(await samples(name)).toHaveLength(1);
  });

  it('do not take a backup of another cluster for the last success of a schedule', async () => {
    const own = backupOf(
      'own',
      {
        phase: 'Completed',
        startTimestamp: '2026-01-01T00:00:00Z',
        completionTimestamp: '2026-01-01T00:10:00Z',
      },
      'daily',
    );
    own.metadata.creationTimestamp = '2026-01-01T00:00:00Z';
    const synced = backupOf(
      'synced',
      {
        phase: 'Completed',
        startTimestamp: '2026-01-02T00:00:00Z',
        completionTimestamp: '2026-01-02T00:10:00Z',
      },
      'daily',
    );
    synced.metadata.creationTimestamp = '2026-01-02T00:11:00Z';
    known = [own, synced];
    const name = 'velero_backup_last_successful_timestamp';
    const seconds = Date.parse('2026-01-01T00:10:00Z') / 1000;
    expect(await samples(name)).toEqual([`${name}{schedule="daily"} ${seconds}`]);
  });

  it('do not take a synced backup for the last success, whatever times it claims', async () => {
    const forged = backupOf(
      'forged',
      {
        phase: 'Completed',
        startTimestamp: '2036-01-01T00:00:00Z',
        completionTimestamp: '2036-01-01T00:10:00Z',
      },
      'daily',
    );
    forged.metadata.annotations = { 'longshore.io/synced-uid': 'forged' };
    known = [forged];
    expect(await samples('velero_backup_last_successful_timestamp')).toEqual([]);
  });

  it('count snapshots of providers when the items are done, and tell the size of the tarball', async () => {
    const counts = { volumeSnapshotsAttempted: 3, volumeSnapshotsCompleted: 2 };
    known = [backupOf('a', counts, 'daily'), backupOf('b', {}, 'daily')];
    metrics.itemsDone(backupOf('a', counts, 'daily'), 1234);
    // Its size is unknown here, because another server stored it.
    metrics.itemsDone(backupOf('b', { volumeSnapshotsAttempted: 1 }, 'daily'));
    expect(await samples('velero_volume_snapshot')).toEqual([
      'velero_volume_snapshot_attempt_total{schedule=""} 0',
      'velero_volume_snapshot_attempt_total{schedule="daily"} 4',
      'velero_volume_snapshot_success_total{schedule=""} 0',
      'velero_volume_snapshot_success_total{schedule="daily"} 2',
      'velero_volume_snapshot_failure_total{schedule=""} 0',
      'velero_volume_snapshot_failure_total{schedule="daily"} 2',
    ]);
    expect(await samples('tarball')).toEqual([
      'velero_backup_tarball_size_bytes{schedule="daily"} 1234',
    ]);
  });

  it('count CSI snapshots by backup: begun when the items are done, ended with the backup', async () => {
    const attempted = { csiVolumeSnapshotsAttempted: 3 };
    metrics.itemsDone(backupOf('a', attempted));
    const after = backupOf('a', {
      ...attempted,
      phase: 'Completed',
      csiVolumeSnapshotsCompleted: 2,
    });
    metrics.ended(after);
    expect(await samples('backupName="a"')).toEqual([
      'velero_csi_snapshot_attempt_total{schedule="",backupName="a"} 3',
      'velero_csi_snapshot_success_total{schedule="",backupName="a"} 2',
      'velero_csi_snapshot_failure_total{schedule="",backupName="a"} 1',
    ]);
    metrics.deleted(after);
    expect(await samples('backupName="a"')).toEqual([]);
    const failed = backupOf('f', { phase: 'Failed', ...attempted });
    metrics.ended(failed);
    expect(await samples('backupName="f"')).toEqual([]);
  });

  it('count no CSI snapshots without the feature', async () => {
    const other = new Registry();
    const without = new BackupMetrics(other, { backups: () => [] });
    without.itemsDone(backupOf('a', { csiVolumeSnapshotsAttempted: 3 }));
    expect(await other.metrics()).not.toContain('backupName="a"');
  });

  it('keep series of the newest backups only', async () => {
    for (let i = 0; i < 250; i++) metrics.itemsDone(backupOf(`b${i}`, {}));
    const kept = await samples('csi_snapshot_attempt_total');
    // The series without a schedule exists from the start.
    expect(kept).toHaveLength(101);
    expect(kept.at(-1)).toContain('backupName="b249"');
  });

  it('have no series of a schedule that is gone', async () => {
    metrics.begin('daily');
    const status = {
      phase: 'Completed',
      warnings: 1,
      startTimestamp: '2026-01-01T00:00:00Z',
      completionTimestamp: '2026-01-01T00:01:00Z',
    };
    const backup = backupOf('a', status, 'daily');
    known = [backup];
    metrics.attempted(backup);
    metrics.itemsDone(backup, 5);
    metrics.ended(backup);
    expect((await samples('schedule="daily"')).length).toBeGreaterThan(20);
    metrics.end('daily');
    expect(await samples('schedule="daily"')).toEqual([]);
    expect(await samples('backupName="a"')).toEqual([]);
  });

  it('observe the duration in the buckets of Velero', async () => {
    const status = {
      phase: 'Completed',
      startTimestamp: '2026-01-01T00:00:00Z',
      completionTimestamp: '2026-01-01T00:16:40Z',
    };
    metrics.ended(backupOf('a', status));
    const duration = await samples('velero_backup_duration_seconds_bucket');
    expect(duration.find((line) => line.includes('le="900"'))).toMatch(/ 0$/);
    expect(duration.find((line) => line.includes('le="1800"'))).toMatch(/ 1$/);
  });

  describe('of the newest backup of a schedule', () => {
    const ran = (name: string, phase: string, at: string, more: object = {}): Backup =>
      backupOf(name, { phase, startTimestamp: at, completionTimestamp: at, ...more }, 'nightly');
    const good = ran('n-1', 'Completed', '2026-11-26T02:00:00Z', { progress: { totalItems: 9 } });
    const bad = ran('n-2', 'Failed', '2026-11-27T02:00:00Z', {
      errors: 3,
      progress: { totalItems: 7 },
    });
    /** Status, items and errors, as a new process reports them. */
    const told = async (): Promise<(number | undefined)[]> => {
      const lines = await samples('{schedule="nightly"}');
      return ['last_status', 'items_total', 'items_errors'].map((name) => {
        const line = lines.find((text) => text.startsWith(`velero_backup_${name}{`));
        return line === undefined ? undefined : Number(line.split(' ')[1]);
      });
    };

    it('tell the same after a restart, in whichever order the Backups come', async () => {
      metrics.begin('nightly');
      expect(await told()).toEqual([1, 0, 0]);
      known = [good, bad];
      expect(await told()).toEqual([0, 7, 3]);
      known = [bad, good];
      expect(await told()).toEqual([0, 7, 3]);
    });

    it('leave out backups that run, or are being deleted', async () => {
      metrics.begin('nightly');
      known = [good, backupOf('n-2', { phase: 'InProgress', errors: 1 }, 'nightly')];
      expect(await told()).toEqual([1, 9, 0]);
      known = [good, ran('n-2', 'Deleting', '2026-11-27T02:00:00Z', { errors: 3 })];
      expect(await told()).toEqual([1, 9, 0]);
    });

    it('go back to the one before when the newest is deleted', async () => {
      known = [good, bad];
      metrics.begin('nightly');
      metrics.ended(bad);
      known = [good];
      metrics.deleted(bad);
      expect(await told()).toEqual([1, 9, 0]);
    });

    it('leave out backups of another cluster, whose schedule has the same name', async () => {
      const own = ran('b-1', 'PartiallyFailed', '2026-11-27T02:00:00Z', { errors: 3 });
      own.metadata.creationTimestamp = '2026-11-27T02:00:00Z';
      const synced = ran('a-1', 'Completed', '2026-11-27T02:30:00Z');
      synced.metadata.creationTimestamp = '2026-11-27T02:31:00Z';
      known = [own, synced];
      metrics.begin('nightly');
      expect(await told()).toEqual([0, 0, 3]);
      known = [synced];
      expect(await told()).toEqual([1, 0, 0]);
    });

    it('tell of one that was not valid, which has no time of its end', async () => {
      const invalid = backupOf('n-3', { phase: 'FailedValidation' }, 'nightly');
      invalid.metadata.creationTimestamp = '2026-11-28T02:00:00Z';
      known = [invalid, good];
      metrics.begin('nightly');
      metrics.invalid(invalid);
      expect(await told()).toEqual([0, 0, 0]);
    });

    it('tell nothing while another process leads, whatever this one told before', async () => {
      known = [good];
      metrics.begin('nightly');
      metrics.itemsDone(good, 1234);
      metrics.ended(good);
      known = undefined;
      expect(await told()).toEqual([undefined, undefined, undefined]);
      expect(await samples('tarball_size')).toEqual([]);
      // The size of the newest backup is unknown here, because another process made it.
      known = [good, ran('n-4', 'Completed', '2026-11-29T02:00:00Z', { errors: 1 })];
      expect(await told()).toEqual([1, 0, 1]);
      expect(await samples('tarball_size')).toEqual([]);
      known = [good];
      expect(await samples('tarball_size')).toHaveLength(1);
    });

    it('are not there for a schedule that was deleted before the process began', async () => {
      known = [good, bad];
      metrics.exist(['weekly']);
      expect(await told()).toEqual([undefined, undefined, undefined]);
      expect(await samples('last_successful')).toEqual([]);
      // Recreated meanwhile, for example by GitOps.
      metrics.begin('nightly');
      expect(await told()).toEqual([0, 7, 3]);
      metrics.end('nightly');
      expect(await told()).toEqual([undefined, undefined, undefined]);
    });

    it('go with a schedule that was deleted while another process led', async () => {
      known = [good];
      metrics.begin('nightly');
      metrics.ended(good);
      metrics.exist([]);
      expect(await samples('schedule="nightly"')).toEqual([]);
    });
  });
});
