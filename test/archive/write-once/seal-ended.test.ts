import { describe, expect, it } from 'vitest';
import { BackupArchive, WriteOnceBucket } from '../../../src/archive/index.ts';
import { VersionedBucket } from '../../support/versioned-bucket.ts';

const METADATA = 'backups/b1/velero-backup.json';
const LOG = 'backups/b1/b1-logs.gz';

/** A backup as a server left it that was killed before its files were published. */
async function left(uid: string, phase: string) {
  const inner = new VersionedBucket();
  const bucket = new WriteOnceBucket(inner);
  await bucket.put(LOG, [Buffer.from('log')]);
  const backup = {
    apiVersion: 'velero.io/v1',
    kind: 'Backup',
    metadata: { name: 'b1', namespace: 'velero', uid },
    spec: {},
    status: { phase },
  };
  await bucket.put(METADATA, [Buffer.from(JSON.stringify(backup))]);
  // Another process.
  const archive = new BackupArchive(new WriteOnceBucket(inner));
  const published = (): string[] => [LOG, METADATA].filter((key) => inner.objects.has(key));
  return { inner, archive, published };
}

describe('files of a backup whose publishing was cut off', () => {
  it.each(['Failed', 'PartiallyFailed', 'Completed'])(
    'are published in phase %s',
    async (phase) => {
      const { inner, archive, published } = await left('u1', phase);
      await archive.sealEnded('b1', 'u1');
      expect(published()).toEqual([LOG, METADATA]);
      await archive.sealEnded('b1', 'u1');
      expect(inner.putTwice).toEqual([]);
    },
  );

  it.each(['InProgress', 'WaitingForPluginOperations', 'Finalizing'])(
    'stay apart while it goes on, in phase %s',
    async (phase) => {
      const { archive, published } = await left('u1', phase);
      await archive.sealEnded('b1', 'u1');
      expect(published()).toEqual([]);
    },
  );

  it('stay apart where they are of another backup of its name, and where there are none', async () => {
    const { archive, published } = await left('u2', 'Failed');
    await archive.sealEnded('b1', 'u1');
    await archive.sealEnded('b2', 'u1');
    expect(published()).toEqual([]);
  });
});
