import { describe, expect, it } from 'vitest';
import { WriteOnceBucket } from '../../../src/archive/index.ts';
import type { KubeClient } from '../../../src/kube/index.ts';
import { encryptionProblem } from '../../../src/server/backups/buckets.ts';
import { LocationBuckets } from '../../../src/server/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';

const { signal } = new AbortController();

function bucketsOf(annotations: Record<string, string> | undefined) {
  const opened: string[] = [];
  const location = {
    ...{ apiVersion: 'velero.io/v1', kind: 'BackupStorageLocation' },
    metadata: { namespace: 'velero', name: 'default', ...(annotations && { annotations }) },
    spec: { provider: 'aws', objectStorage: { bucket: 'b' } },
  };
  const buckets = new LocationBuckets({
    client: {
      find: ({ kind }: { kind: string }) =>
        Promise.resolve(kind === 'Secret' ? undefined : location),
    } as unknown as KubeClient,
    ...{ namespace: 'velero', directory: tempDirectory('buckets') },
    defaultCredentials: () => undefined,
    openBucket: (place) => {
      opened.push(place);
      return Promise.resolve(new MemoryBucket());
    },
  });
  return { buckets, opened };
}

describe('the bucket of a location', () => {
  it('is one in which no key is put twice where its annotation says so', async () => {
    await using once = await bucketsOf({ 'longshore.io/write-once': 'true' }).buckets.open(
      'default',
      signal,
    );
    expect(once.bucket).toBeInstanceOf(WriteOnceBucket);
    for (const annotations of [undefined, {}, { 'longshore.io/write-once': 'false' }]) {
      await using plain = await bucketsOf(annotations).buckets.open('default', signal);
      expect(plain.bucket).not.toBeInstanceOf(WriteOnceBucket);
    }
  });

  it('is not opened where the annotation says what nobody knows', async () => {
    const { buckets, opened } = bucketsOf({ 'longshore.io/write-once': 'True!' });
    await expect(buckets.open('default', signal)).rejects.toMatchObject({
      code: 'BAD_STORAGE_LOCATION',
    });
    expect(opened).toEqual([]);
  });

  it('cannot be written if it encrypts, and the password is one that everybody knows', async () => {
    const metadata = {
      ...{ namespace: 'velero', name: 'default' },
      annotations: { 'longshore.io/encrypt-archive': 'true' },
    };
    const problemWith = (password: string, location = { metadata }) => {
      const data = { 'repository-password': Buffer.from(password).toString('base64') };
      const client = { find: () => Promise.resolve({ metadata: {}, data }) };
      return encryptionProblem(location as never, { client: client as never, signal });
    };
    expect(await problemWith('static-passw0rd')).toContain('change-password-all');
    expect(await problemWith('a secret')).toBeUndefined();
    const plain = { metadata: { ...metadata, annotations: {} } } as never;
    expect(await problemWith('static-passw0rd', plain)).toBeUndefined();
    const odd = {
      metadata: { ...metadata, annotations: { 'longshore.io/encrypt-archive': 'yes' } },
    };
    await expect(problemWith('a secret', odd)).rejects.toThrow('must be "true" or "false"');
  });

  it('gives files to whom has the key, and encrypts them', async () => {
    const { buckets } = bucketsOf({ 'longshore.io/encrypt-archive': 'true' });
    await using opened = await buckets.open('default', signal);
    await expect(opened.bucket.put('backups/b1/b1.tar.gz', [])).rejects.toMatchObject({
      code: 'CANNOT_ENCRYPT',
    });
    await opened.bucket.put('backups/b1/velero-backup.json', []);
  });
});
