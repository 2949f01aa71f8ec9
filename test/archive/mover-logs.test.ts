import * as fs from 'node:fs';
import { gunzipSync, gzipSync } from 'node:zlib';
import { afterAll, describe, expect, it } from 'vitest';
import {
  BackupArchive,
  type MoverLog,
  MoverLogArchive,
  type NewBackup,
  RestoreArchive,
  TarballWriter,
} from '../../src/archive/index.ts';
import { CodedError } from '../../src/base/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { MemoryBucket } from '../support/memory-bucket.ts';

const scratch = tempDirectory('mover-logs');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});

const MIB = 1 << 20;
const KEY = 'backups/b1/longshore-logs/app.data.gz';
const BACKUP = { kind: 'Backup', name: 'b1' } as const;
const log = (text: string, over: Partial<MoverLog> = {}): MoverLog => ({
  owner: { ...BACKUP, uid: 'u1' },
  volume: 'app.data',
  title: 'DataUpload b1-x',
  node: 'node-1',
  pod: 'pod-1',
  time: '2026-11-25T21:00:00Z',
  text: Buffer.from(text),
  ...over,
});
const heading = (pod: string, owner = 'u1'): string =>
  `======== DataUpload b1-x on node node-1, ended at 2026-11-25T21:00:00Z (for ${owner}, pod ${pod})\n`;

async function textOf(bucket: MemoryBucket): Promise<string> {
  const pieces = await Array.fromAsync(new MoverLogArchive(bucket).read(BACKUP, 'app.data'));
  return Buffer.concat(pieces).toString();
}

describe('the log of a data mover', () => {
  it('is a gzip file of its volume, under a heading', async () => {
    const bucket = new MemoryBucket();
    await new MoverLogArchive(bucket).add(log('moved\nended'));
    expect([...bucket.objects.keys()]).toEqual([KEY]);
    expect(gunzipSync(bucket.objects.get(KEY) ?? '').toString()).toBe(
      `${heading('pod-1')}moved\nended\n`,
    );
    expect(await new MoverLogArchive(bucket).volumes(BACKUP)).toEqual(['app.data']);
  });

  it('follows that of the one that died before it', async () => {
    const bucket = new MemoryBucket();
    const logs = new MoverLogArchive(bucket);
    await logs.add(log('died\n'));
    await logs.add(log('done\n', { pod: 'pod-2' }));
    expect(await textOf(bucket)).toBe(`${heading('pod-1')}died\n${heading('pod-2')}done\n`);
  });

  it('takes the place of what was stored of it before', async () => {
    const bucket = new MemoryBucket();
    const logs = new MoverLogArchive(bucket);
    await logs.add(log('half\n'));
    await logs.add(log('other\n', { pod: 'pod-2' }));
    await logs.add(log('half\nwhole\n'));
    expect(await textOf(bucket)).toBe(`${heading('pod-2')}other\n${heading('pod-1')}half\nwhole\n`);
  });

  it('takes the place of what an earlier backup of the name has left, and of what is damaged', async () => {
    const bucket = new MemoryBucket();
    const logs = new MoverLogArchive(bucket);
    await logs.add(log('old\n', { owner: { ...BACKUP, uid: 'u0' } }));
    await logs.add(log('new\n', { pod: 'pod-2' }));
    expect(await textOf(bucket)).toBe(`${heading('pod-2')}new\n`);
    for (const bytes of [Buffer.from('no gzip'), gzipSync(Buffer.alloc(3 * MIB, 'x'))]) {
      bucket.objects.set(KEY, bytes);
      await logs.add(log('new\n'));
      expect(await textOf(bucket)).toBe(`${heading('pod-1')}new\n`);
    }
  });

  it('has no more than its last MiB, whole lines of it, with all its headings', async () => {
    const bucket = new MemoryBucket();
    const logs = new MoverLogArchive(bucket);
    const lines = (mark: string): string =>
      Array.from({ length: 30_000 }, (_, at) => `${mark} ${at} ${'.'.repeat(20)}\n`).join('');
    expect(lines('first').length).toBeGreaterThan(0.8 * MIB);
    await logs.add(log(lines('first')));
    await logs.add(log(lines('second'), { pod: 'pod-2' }));
    const text = await textOf(bucket);
    expect(text.length).toBeLessThanOrEqual(MIB);
    expect(text.length).toBeGreaterThan(MIB - 200);
    expect(text.endsWith(lines('second'))).toBe(true);
    const [first, line] = text.split('\n');
    expect(`${first ?? ''}\n`).toBe(heading('pod-1'));
    expect(line).toMatch(/^first \d+ \.{20}$/);
    await logs.add(log(lines('third').repeat(2), { pod: 'pod-3' }));
    const last = await textOf(bucket);
    expect(last.length).toBeLessThanOrEqual(MIB);
    expect(last.startsWith(heading('pod-3'))).toBe(true);
    expect(last.endsWith('third 29999 ....................\n')).toBe(true);
  });

  it('counts bytes and not letters, and begins with a whole one', async () => {
    const bucket = new MemoryBucket();
    await new MoverLogArchive(bucket).add(log('ü'.repeat(MIB)));
    const text = await textOf(bucket);
    expect(Buffer.byteLength(text)).toBeLessThanOrEqual(MIB);
    expect(text.slice(heading('pod-1').length)).toMatch(/^ü+\n$/);
  });

  it.each(['../../other', 'app.data/x', 'app.a_b_c', 'app..data', ''])(
    'is refused for the volume "%s"',
    async (volume) => {
      const added = new MoverLogArchive(new MemoryBucket()).add(log('x', { volume }));
      await expect(added).rejects.toMatchObject({ code: 'BAD_ARCHIVE_NAME' });
    },
  );

  it('is found among what others put there', async () => {
    const bucket = new MemoryBucket();
    const logs = new MoverLogArchive(bucket);
    for (const volume of ['b.x', 'app.data', 'app.pod_v']) await logs.add(log('x', { volume }));
    for (const name of ['app.data', '..gz', 'a/b.gz', 'app.a b.gz']) {
      bucket.objects.set(`backups/b1/longshore-logs/${name}`, Buffer.from(''));
    }
    expect(await logs.volumes(BACKUP)).toEqual(['app.data', 'app.pod_v', 'b.x']);
  });
});

async function put(bucket: MemoryBucket): Promise<void> {
  await using contents = await (await TarballWriter.begin(scratch)).finish();
  const metadata = { name: 'b1', uid: 'u1' };
  const backup: NewBackup = {
    contents,
    itemOperations: [],
    volumeInfos: [],
    results: {},
    resourceList: {},
    podVolumeBackups: [],
    volumeSnapshots: [],
    metadata: { apiVersion: 'velero.io/v1', kind: 'Backup', metadata, status: { phase: 'New' } },
  };
  await new BackupArchive(bucket).put('b1', backup);
}

describe('logs of data movers in the bucket', () => {
  it('stay when the files of their backup are stored, and go with it', async () => {
    const bucket = new MemoryBucket();
    await new MoverLogArchive(bucket).add(log('x'));
    await put(bucket);
    expect(bucket.objects.has(KEY)).toBe(true);
    expect(bucket.objects.has('backups/b1/velero-backup.json')).toBe(true);
    await new BackupArchive(bucket).delete('b1');
    expect(await Array.fromAsync(bucket.list(''))).toEqual([]);
  });

  it('stay where the files of their backup cannot be stored', async () => {
    const bucket = new MemoryBucket();
    await new MoverLogArchive(bucket).add(log('x'));
    const original = bucket.put.bind(bucket);
    bucket.put = (key, body) =>
      key.endsWith('.tar.gz')
        ? Promise.reject(new CodedError('FULL', 'no room'))
        : original(key, body);
    await expect(put(bucket)).rejects.toMatchObject({ code: 'FULL' });
    expect(bucket.objects.has(KEY)).toBe(true);
  });

  it('of a restore go with it', async () => {
    const bucket = new MemoryBucket();
    const owner = { kind: 'Restore', name: 'r1', uid: 'u1' } as const;
    await new MoverLogArchive(bucket).add(log('x', { owner }));
    expect(await Array.fromAsync(bucket.list(''))).toEqual([
      'restores/r1/longshore-logs/app.data.gz',
    ]);
    await new RestoreArchive(bucket).delete('r1');
    expect(await Array.fromAsync(bucket.list(''))).toEqual([]);
  });
});
