import * as fs from 'node:fs';
import { afterAll, describe, expect, it } from 'vitest';
import { BackupArchive, type NewBackup, TarballWriter } from '../../src/archive/index.ts';
import { CodedError } from '../../src/base/index.ts';
import { MemoryBucket } from '../support/memory-bucket.ts';
import { tempDirectory } from '../support/kopia.ts';

const scratch = tempDirectory('journals-beside');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});

const JOURNALS = 'backups/b1/longshore-journal/';

async function put(bucket: MemoryBucket, uid: string): Promise<void> {
  await using contents = await (await TarballWriter.begin(scratch)).finish();
  const backup: NewBackup = {
    contents,
    itemOperations: [],
    volumeInfos: [],
    results: {},
    resourceList: {},
    podVolumeBackups: [],
    volumeSnapshots: [],
    metadata: {
      apiVersion: 'velero.io/v1',
      kind: 'Backup',
      metadata: { name: 'b1', uid },
      status: { phase: 'Finalizing' },
    },
  };
  await new BackupArchive(bucket).put('b1', backup);
}

function withJournals(...uids: string[]): MemoryBucket {
  const bucket = new MemoryBucket();
  for (const uid of uids) bucket.objects.set(`${JOURNALS}${uid}/1`, Buffer.from('x'));
  return bucket;
}

const journalsIn = (bucket: MemoryBucket): string[] =>
  [...bucket.objects.keys()]
    .filter((key) => key.startsWith(JOURNALS))
    .map((key) => key.slice(JOURNALS.length));

describe('the journal of a backup that is made', () => {
  it('stays while its files are stored; what an earlier backup of the name has left goes', async () => {
    const bucket = withJournals('u1', 'u0');
    await put(bucket, 'u1');
    expect(journalsIn(bucket)).toEqual(['u1/1']);
  });
  it('stays where its files cannot be stored', async () => {
    const bucket = withJournals('u1');
    const original = bucket.put.bind(bucket);
    bucket.put = (key, body) =>
      key.endsWith('.tar.gz')
        ? Promise.reject(new CodedError('FULL', 'no room'))
        : original(key, body);
    await expect(put(bucket, 'u1')).rejects.toMatchObject({ code: 'FULL' });
    expect([...bucket.objects.keys()].filter((key) => !key.startsWith(JOURNALS))).toEqual([
      'backups/b1/b1-itemoperations.json.gz',
    ]);
    expect(journalsIn(bucket)).toEqual(['u1/1']);
  });
  it('goes with the backup', async () => {
    const bucket = withJournals('u1');
    await put(bucket, 'u1');
    await new BackupArchive(bucket).delete('b1');
    expect(bucket.objects.size).toBe(0);
  });
});

describe('a Backup that is gone, where another one has its name', () => {
  it('takes its own files along, and leaves the journal of the other one', async () => {
    const bucket = withJournals('u1');
    await put(bucket, 'u1');
    bucket.objects.set(`${JOURNALS}u2/1`, Buffer.from('x'));
    await new BackupArchive(bucket).deleteOf('b1', 'u1');
    expect([...bucket.objects.keys()]).toEqual([`${JOURNALS}u2/1`]);
  });
  it('leaves the files of the other one, and what is no file of its own', async () => {
    const bucket = withJournals();
    await put(bucket, 'u2');
    bucket.objects.set(`${JOURNALS}u1/1`, Buffer.from('x'));
    const before = bucket.objects.size;
    await new BackupArchive(bucket).deleteOf('b1', 'u1');
    expect(bucket.objects.size).toBe(before - 1);
    expect(await new BackupArchive(bucket).has('b1')).toBe(true);
    const empty = withJournals('u1');
    await new BackupArchive(empty).deleteOf('b1', 'u1');
    expect(empty.objects.size).toBe(0);
  });
});
