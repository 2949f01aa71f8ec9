import { describe, expect, it } from 'vitest';
import { CodedError, HOUR_NS, parseGoTime, rfc3339Seconds } from '../../../src/base/index.ts';
import type { Retention } from '../../../src/blob/index.ts';
import type { Backup } from '../../../src/kube/index.ts';
import { BackupLocks } from '../../../src/server/sync/backup-locks.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';
import { recordingLogger } from '../../support/repositories.ts';
import { aBackup } from '../../support/builders.ts';

const NOW_NS = parseGoTime('2026-11-27T08:00:00Z');
const DAY_NS = 24n * HOUR_NS;
const RETENTION: Retention = { mode: 'GOVERNANCE', periodNs: 10n * DAY_NS };

class LockingBucket extends MemoryBucket {
  nowNs = NOW_NS;
  readonly locks = new Map<string, bigint>();
  readonly order: string[] = [];
  refused = new Set<string>();
  failing = new Set<string>();

  extendRetention(key: string, { periodNs }: Retention): Promise<void> {
    if (this.refused.has(key)) {
      return Promise.reject(new CodedError('STORAGE_DENIED', `${key} is locked for longer`));
    }
    if (this.failing.has(key)) {
      const text = `extend of ${key} failed: 500`;
      return Promise.reject(new CodedError('STORAGE_FAILED', text, { retry: 'backoff' }));
    }
    this.order.push(key);
    this.locks.set(key, this.nowNs + periodNs);
    return Promise.resolve();
  }
}

const backup = (name: string, days: number, phase = 'Completed'): Backup =>
  aBackup({
    metadata: { name, namespace: 'velero', uid: `uid-${name}` },
    spec: { storageLocation: 'default' },
    status: {
      phase,
      startTimestamp: rfc3339Seconds(NOW_NS - DAY_NS),
      expiration: rfc3339Seconds(NOW_NS + BigInt(days) * DAY_NS),
    },
  });

async function world(...names: string[]) {
  const bucket = new LockingBucket();
  for (const name of names) {
    const files = [
      'velero-backup.json',
      `${name}.tar.gz`,
      'longshore-once/_sealed/u',
      'longshore-logs/a.gz',
    ];
    for (const file of files) await bucket.put(`backups/${name}/${file}`, [Buffer.of(1)]);
  }
  const locks = new BackupLocks();
  const logger = recordingLogger();
  const extend = (backups: Backup[], afterDays = 0, own = locks): Promise<number> => {
    bucket.nowNs = NOW_NS + (BigInt(afterDays * 24) * DAY_NS) / 24n;
    return own.extend({
      bucket,
      location: 'default',
      retention: RETENTION,
      backups,
      nowNs: bucket.nowNs,
      logger,
      assertLeading: () => undefined,
      signal: new AbortController().signal,
    });
  };
  const until = (name: string, file = 'velero-backup.json'): number | undefined => {
    const ns = bucket.locks.get(`backups/${name}/${file}`);
    return ns === undefined ? undefined : Number((ns - NOW_NS) / HOUR_NS) / 24;
  };
  return { bucket, extend, until, logger };
}

describe('the locks of the files of backups', () => {
  it('end with the retention, or with the backup where that is sooner', async () => {
    const { bucket, extend, until } = await world('long', 'short');
    expect(await extend([backup('long', 30), backup('short', 3)])).toBe(2);
    expect([until('long'), until('short')]).toEqual([10, 3]);
    // Only files, with the metadata last.
    expect(bucket.order.filter((key) => key.includes('/long/'))).toEqual([
      'backups/long/long.tar.gz',
      'backups/long/velero-backup.json',
    ]);
  });

  it('are extended when half of the retention is over, until the backup expires', async () => {
    const { extend, until } = await world('b');
    const backups = [backup('b', 17)];
    const days: [number, number | undefined][] = [];
    for (let day = 0; day < 17; day++)
      if ((await extend(backups, day)) > 0) days.push([day, until('b')]);
    expect(days).toEqual([
      [0, 10],
      [6, 16],
      [12, 17],
    ]);
    expect(await extend(backups, 17)).toBe(0);
  });

  it.each([undefined, null, '', 'soon'])(
    'are extended for as long as it is there of a backup that never expires (%s)',
    async (expiration) => {
      const { extend, until } = await world('b');
      const forever = backup('b', 30);
      Object.assign(forever.status as object, { expiration });
      const days: number[] = [];
      for (let day = 0; day < 20; day++) if ((await extend([forever], day)) > 0) days.push(day);
      expect([days, until('b')]).toEqual([[0, 6, 12, 18], 28]);
    },
  );

  it('are left alone for backups that are made, deleted, expired, or never began', async () => {
    const { extend } = await world('b');
    const gone = backup('b', 30);
    const refused = backup('b', 30, 'FailedValidation');
    delete (refused.status as { startTimestamp?: string }).startTimestamp;
    for (const each of [
      ...[
        backup('b', 30, 'InProgress'),
        backup('b', 30, 'Finalizing'),
        backup('b', 30, 'Deleting'),
      ],
      ...[backup('b', -1), refused],
      { ...gone, metadata: { ...gone.metadata, deletionTimestamp: '2026-11-27T07:00:00Z' } },
    ]) {
      expect(await extend([each])).toBe(0);
    }
  });

  it('are told of where they are refused, once for each time, and the other files get theirs', async () => {
    const { bucket, extend, until, logger } = await world('b');
    bucket.refused.add('backups/b/b.tar.gz');
    expect(await extend([backup('b', 30)])).toBe(1);
    expect(await extend([backup('b', 30)], 1)).toBe(0);
    expect(until('b')).toBe(10);
    expect(logger.messages).toEqual(["the locks of a backup's files could not all be extended"]);
    bucket.refused.clear();
    await extend([backup('b', 30)], 6);
    expect(until('b', 'b.tar.gz')).toBe(16);
  });

  it('that were refused are asked for again before the old ones end', async () => {
    const { bucket, extend, until } = await world('b');
    const backups = [backup('b', 90)];
    await extend(backups);
    bucket.refused.add('backups/b/b.tar.gz');
    expect(await extend(backups, 6)).toBe(1);
    bucket.refused.clear();
    expect(await extend(backups, 7)).toBe(0);
    expect(await extend(backups, 8)).toBe(1);
    expect(until('b', 'b.tar.gz')).toBe(18);
  });

  it('that a bucket does not give since it fails for a while are asked for soon, after those of others', async () => {
    const { bucket, extend, until } = await world('a', 'b');
    const backups = [backup('a', 90), backup('b', 90)];
    await extend(backups);
    bucket.failing.add('backups/a/a.tar.gz');
    await expect(extend(backups, 6)).rejects.toMatchObject({ code: 'STORAGE_FAILED' });
    await extend(backups, 6);
    expect(until('b')).toBe(16);
    bucket.failing.clear();
    expect(await extend(backups, 6.25)).toBe(1);
    expect(until('a', 'a.tar.gz')).toBe(16.25);
    // A clock that was ahead then does not prevent it.
    bucket.failing.add('backups/a/a.tar.gz');
    await expect(extend(backups, 80)).rejects.toThrow();
    bucket.failing.clear();
    expect(await extend(backups, 13)).toBe(2);
    expect(until('a', 'a.tar.gz')).toBe(23);
  });

  it('are extended again when a clock that was ahead is set right: the service has locked them by its own', async () => {
    const { bucket, extend, until } = await world('b');
    const backups = [backup('b', 90)];
    expect(await extend(backups, 60)).toBe(1);
    // The service has set another time.
    bucket.locks.set('backups/b/velero-backup.json', NOW_NS + RETENTION.periodNs);
    expect(await extend(backups, 6)).toBe(1);
    expect(until('b')).toBe(16);
    expect(await extend(backups, 6)).toBe(0);
  });

  it('say so where the bucket knows no locks', async () => {
    const { bucket, extend } = await world('b');
    (bucket as { extendRetention?: unknown }).extendRetention = undefined;
    await expect(extend([backup('b', 30)])).rejects.toMatchObject({ code: 'UNSUPPORTED_PUT' });
  });

  it('of very many backups are extended look by look', async () => {
    const { extend } = await world();
    const many = Array.from({ length: 450 }, (_, i) => backup(`b${i}`, 30));
    expect([
      await extend(many),
      await extend(many),
      await extend(many),
      await extend(many),
    ]).toEqual([200, 200, 50, 0]);
    // A new process has no memory of them.
    expect(await extend(many, 0, new BackupLocks())).toBe(200);
  });
});
