import { describe, expect, it } from 'vitest';
import { BackupArchive, bucketOf, RestoreArchive } from '../../../src/archive/index.ts';
import { VersionedBucket } from '../../support/versioned-bucket.ts';
import { RestoreCluster } from '../../restore/support/cluster.ts';
import { configMaps, reasonOf, Rig } from '../backups/run/support/rig.ts';
import { Rig as RestoreRig } from '../restores/run/support/rig.ts';

function opened() {
  const inner = new VersionedBucket();
  return { inner, bucket: bucketOf(inner, { isWriteOnce: true }) };
}

describe('a run that fails in a location that is written once', () => {
  it('of a backup leaves its files where Velero reads them, each put once', async () => {
    const { inner, bucket } = opened();
    const failing = new Rig({
      cluster: configMaps(3),
      bucket,
      volumes: () => ({ outcome: () => Promise.reject(new Error('something else')) }),
    });
    expect(String(await reasonOf(failing.run()))).toContain('something else');
    const stored = await new BackupArchive(inner).open('b1');
    expect(stored.metadata.status?.phase).toBe('Failed');
    expect((await stored.results()).errors?.velero?.join()).toContain('backup failed');
    expect(inner.putTwice).toEqual([]);
  });

  it('of a backup publishes its files although it was killed right after it had stored them', async () => {
    const { inner, bucket } = opened();
    const metadata = {
      apiVersion: 'velero.io/v1',
      kind: 'Backup',
      metadata: { name: 'b1', namespace: 'velero', uid: 'u1' },
      spec: {},
      status: { phase: 'Failed' },
    };
    const key = 'backups/b1/velero-backup.json';
    await bucket.put(key, [Buffer.from(JSON.stringify(metadata))]);
    expect(inner.objects.has(key)).toBe(false);
    const outcome = await new Rig({ cluster: configMaps(3), bucket }).run();
    expect(outcome.phase).toBe('Failed');
    expect(inner.objects.has(key)).toBe(true);
    expect(inner.putTwice).toEqual([]);
  });

  it('of a restore leaves its log and its results, each put once', async () => {
    const inner = new VersionedBucket();
    const mode = { isWriteOnce: true };
    const rig = new RestoreRig({ cluster: new RestoreCluster(), bucket: inner, mode });
    expect(String(await reasonOf(rig.run()))).toContain('error downloading backup');
    const { errors } = await new RestoreArchive(inner).results('r1');
    expect(errors?.velero?.[0]).toContain('restore failed');
    expect(inner.objects.has('restores/r1/restore-r1-logs.gz')).toBe(true);
    expect(inner.putTwice).toEqual([]);
  });
});
