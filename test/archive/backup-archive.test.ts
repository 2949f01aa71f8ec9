import * as fs from 'node:fs';
import { join } from 'node:path';
import { gunzipSync, gzipSync } from 'node:zlib';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { z } from 'zod';
import {
  BackupArchive,
  downloadKey,
  isDownloadKind,
  type NewBackup,
  RestoreArchive,
  ScratchFile,
  standingOf,
  type StoredBackup,
  TarballWriter,
} from '../../src/archive/index.ts';
import { goJsonIndented } from '../../src/archive/json-file.ts';
import { CodedError, goJson, ManualClock, parseGoTime } from '../../src/base/index.ts';
import { type Bucket, openBucket } from '../../src/blob/index.ts';
import {
  goldenFile,
  goldenJson,
  goldenKeys,
  putGolden,
  readAll,
  readJsonGzip,
} from '../support/golden-bucket.ts';
import { tempDirectory } from '../support/kopia.ts';
import { MemoryBucket } from '../support/memory-bucket.ts';
import { hasStore, type ObjectStore, startStore } from '../support/object-stores.ts';

const LIST = z.looseObject({});
const scratch = tempDirectory('scratch');
/** Handed to archives, which leave them to whoever made them. */
const files: ScratchFile[] = [];
afterEach(async () => {
  await Promise.all(files.splice(0).map((file) => file.close()));
});
/**
 * The stored golden backup of the real Velero has a shortened annotation with the API server's
 * version.
 */
const CUT_BYTES = 18;

/** The facts of a backup that the real Velero made, as our server would hand them over. */
async function factsOf(golden: string, name: string): Promise<NewBackup> {
  const of = (file: string): unknown => goldenJson(`${golden}/${file}`);
  const clock = new ManualClock(parseGoTime('2026-11-21T02:29:02Z'));
  await using tarball = await TarballWriter.create(scratch, clock);
  const list = goldenFile(`${golden}/${name}.tar.gz.list`).toString().trim().split('\n');
  for (const path of list) await tarball.add(path, Buffer.from(`{"path":"${path}"}`));
  const none = <T>(value: unknown): T[] => (value ?? []) as T[];
  const contents = await tarball.finish();
  const log = await ScratchFile.of(scratch, [gzipSync('time="2026-11-21T02:29:02Z" level=info')]);
  files.push(contents, log);
  return {
    metadata: of('velero-backup.json') as object,
    contents,
    log,
    itemOperations: none(of(`${name}-itemoperations.json`)),
    volumeInfos: none(of(`${name}-volumeinfo.json`)),
    results: of(`${name}-results.json`) as NewBackup['results'],
    resourceList: of(`${name}-resource-list.json`) as NewBackup['resourceList'],
    podVolumeBackups: none(of(`${name}-podvolumebackups.json`)),
    volumeSnapshots: none(of(`${name}-volumesnapshots.json`)),
  };
}

/** Fields in another order, and nothing where Go has zeros. */
function shuffled(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(shuffled);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .reverse()
      .map(([name, field]) => [name, shuffled(field)]),
  );
}

const KINDS = ['directory', 'minio'] as const;
describe.each(KINDS)('in a bucket of kind %s', (kind) => {
  describe.skipIf(kind === 'minio' && !hasStore('minio'))('there', () => {
    let store: ObjectStore | undefined;
    let prefixes = 0;
    let bucket: Bucket;
    let archive: BackupArchive;
    beforeAll(async () => {
      if (kind === 'minio') store = await startStore('minio');
    });
    afterAll(() => store?.[Symbol.asyncDispose]());
    beforeEach(async () => {
      bucket = store
        ? await openBucket(store.location(`archive-${prefixes++}`), {
            environment: store.environment,
          })
        : await openBucket(tempDirectory('bucket'));
      archive = new BackupArchive(bucket);
    });

    it('what the real Velero stored is read', async () => {
      await putGolden(bucket, 'bucket-full1', 'backups/full1/');
      await bucket.put('backups/full1/full1.tar.gz', [goldenFile('names.tar.gz')]);
      expect(await Array.fromAsync(archive.list())).toEqual(['full1']);
      const backup = await archive.open('full1');
      expect(backup.metadata).toEqual(goldenJson('bucket-full1/velero-backup.json'));
      expect(await backup.itemOperations(LIST)).toEqual(
        goldenJson('bucket-full1/full1-itemoperations.json'),
      );
      expect(await backup.volumeInfos()).toEqual(goldenJson('bucket-full1/full1-volumeinfo.json'));
      expect(await backup.results()).toEqual({ errors: {}, warnings: {} });
      expect((await backup.resourceList())['v1/Pod']).toEqual(['app/writer']);
      expect(await backup.objects('podVolumeBackups')).toEqual([]);
      expect(await backup.objects('csiVolumeSnapshots')).toEqual([]);
      expect(await backup.volumeSnapshots()).toEqual([]);
      await using contents = await backup.openContents({ directory: scratch });
      expect(contents.formatVersion).toBe('1.1.0');
      expect(
        await contents.load({
          groupResource: 'pods',
          version: 'v1',
          isPreferred: true,
          namespace: 'app',
          name: 'writer',
        }),
      ).toEqual(Buffer.from('{"kind":"Pod"}'));
    });

    it('the same facts are stored under the same keys, byte for byte', async () => {
      for (const [golden, name] of [
        ['bucket-full1', 'full1'],
        ['bucket-1-waiting', 'b2'],
        ['bucket-3-completed', 'b2'],
      ] as const) {
        await archive.delete(name);
        const facts = await factsOf(golden, name);
        await archive.put(name, {
          ...facts,
          volumeInfos: shuffled(facts.volumeInfos) as NewBackup['volumeInfos'],
          results: shuffled(facts.results) as NewBackup['results'],
          resourceList: shuffled(facts.resourceList) as NewBackup['resourceList'],
        });
        const folder = `backups/${name}/`;
        const keys = (await Array.fromAsync(bucket.list(folder))).sort();
        expect(keys).toEqual([...goldenKeys(golden), `${folder}longshore-checksums.json`].sort());
        for (const file of ['itemoperations', 'volumeinfo', 'resource-list', 'results']) {
          const key = `${folder}${name}-${file}${file === 'results' ? '.gz' : '.json.gz'}`;
          const wanted = `${goJson(goldenJson(`${golden}/${name}-${file}.json`))}\n`;
          expect(await readJsonGzip(bucket, key), key).toBe(wanted);
        }
        for (const file of ['podvolumebackups', 'volumesnapshots']) {
          expect(await readJsonGzip(bucket, `${folder}${name}-${file}.json.gz`)).toBe('null\n');
        }
        const metadata = await readAll(bucket, `${folder}velero-backup.json`);
        expect(metadata.toString()).toBe(
          goJsonIndented(goldenJson(`${golden}/velero-backup.json`)),
        );
        const size = goldenFile(`${golden}/files.txt`).toString();
        // Compare with the original length: only the form must be the same.
        expect(size).toContain(` ${metadata.length + CUT_BYTES} ${folder}velero-backup.json`);
        const stored = await archive.open(name);
        await using contents = await stored.openContents({ directory: scratch });
        const tarball = gunzipSync(await readAll(bucket, `${folder}${name}.tar.gz`)).toString();
        const paths = goldenFile(`${golden}/${name}.tar.gz.list`).toString().trim().split('\n');
        const at = paths.map((path) => tarball.indexOf(`{"path":"${path}"}`));
        expect(at.every((value, i) => value > (at[i - 1] ?? 0))).toBe(true);
        expect(contents.isEmpty).toBe(false);
      }
    });

    it('a backup is finished: its files change, its own file last', async () => {
      await archive.put('b2', await factsOf('bucket-1-waiting', 'b2'));
      const end = await factsOf('bucket-3-completed', 'b2');
      const { itemOperations, volumeInfos, contents, metadata } = end;
      await archive.update('b2', { itemOperations, volumeInfos, contents, metadata });
      const backup = await archive.open('b2');
      expect(backup.metadata.status?.phase).toBe('Completed');
      expect(await backup.volumeInfos()).toEqual(volumeInfos);
      expect(await backup.itemOperations(LIST)).toEqual(itemOperations);
      await using opened = await backup.openContents({ directory: scratch });
      expect([...opened.directories()].map(({ groupResource }) => groupResource)).toContain(
        'datauploads.velero.io',
      );
    });

    it('a name that is taken is refused, and nothing of the backup there changes', async () => {
      await archive.put('b2', await factsOf('bucket-3-completed', 'b2'));
      const before = await readAll(bucket, 'backups/b2/longshore-checksums.json');
      await expect(
        archive.put('b2', await factsOf('bucket-1-waiting', 'b2')),
      ).rejects.toMatchObject({
        code: 'BACKUP_EXISTS',
        message: expect.stringContaining('backup already exists in object storage') as string,
      });
      expect(await readAll(bucket, 'backups/b2/longshore-checksums.json')).toEqual(before);
      expect((await archive.loadMetadata('b2')).status?.phase).toBe('Completed');
    });

    it('a backup is deleted, and none of another name', async () => {
      await archive.put('b2', await factsOf('bucket-3-completed', 'b2'));
      await bucket.put('backups/b20/velero-backup.json', [Buffer.from('{}')]);
      await archive.delete('b2');
      expect(await Array.fromAsync(bucket.list(''))).toEqual(['backups/b20/velero-backup.json']);
      await archive.delete('b2');
      await expect(archive.open('b2')).rejects.toMatchObject({ code: 'BLOB_NOT_FOUND' });
    });

    it('files of restores are written as Velero writes them, and read', async () => {
      const restores = new RestoreArchive(bucket);
      const golden = 'bucket-restore-2-completed';
      const of = (file: string): unknown => goldenJson(`${golden}/${file}`);
      await using log = await ScratchFile.of(scratch, [gzipSync('log')]);
      await restores.put('r3', {
        itemOperations: of('restore-r3-itemoperations.json') as object[],
        log,
        results: of('restore-r3-results.json') as NewBackup['results'],
        resourceList: of('restore-r3-resource-list.json') as Record<string, string[]>,
        volumeInfos: shuffled(of('r3-volumeinfo.json')) as object[] as never,
      });
      expect((await Array.fromAsync(bucket.list('restores/'))).sort()).toEqual(goldenKeys(golden));
      for (const file of [
        'restore-r3-itemoperations',
        'restore-r3-resource-list',
        'r3-volumeinfo',
      ]) {
        expect(await readJsonGzip(bucket, `restores/r3/${file}.json.gz`)).toBe(
          `${goJson(of(`${file}.json`))}\n`,
        );
      }
      expect(await restores.loadItemOperations('r3', LIST)).toEqual(
        of('restore-r3-itemoperations.json'),
      );
      expect(await restores.volumeInfos('r3')).toEqual(of('r3-volumeinfo.json'));
      expect(await restores.results('r3')).toEqual(of('restore-r3-results.json'));
      expect(await restores.resourceList('r3')).toEqual(of('restore-r3-resource-list.json'));
      await restores.delete('r3');
      expect(await Array.fromAsync(bucket.list('restores/'))).toEqual([]);
      expect(await restores.loadItemOperations('r3', LIST)).toEqual([]);
      expect(await restores.volumeInfos('r3')).toEqual([]);
      expect(await restores.results('r3')).toEqual({});
      expect(await restores.resourceList('r3')).toEqual({});
    });
  });
});

describe('damage', () => {
  let bucket: Bucket;
  let archive: BackupArchive;
  beforeEach(async () => {
    bucket = new MemoryBucket();
    archive = new BackupArchive(bucket);
    await archive.put('b2', await factsOf('bucket-3-completed', 'b2'));
  });
  const damaged = (what: RegExp): object =>
    expect.objectContaining({
      code: 'DAMAGED_ARCHIVE',
      message: expect.stringMatching(what) as string,
    }) as object;

  it('of a file is told with its name', async () => {
    const key = 'backups/b2/b2-volumeinfo.json.gz';
    const good = await readAll(bucket, key);
    const backup = await archive.open('b2');
    for (const bytes of [
      good.subarray(0, good.length - 9),
      Buffer.from('no gzip'),
      Buffer.alloc(0),
      gzipSync('{"no":"list"}'),
      gzipSync('[1]'),
      gzipSync('[{"pvcName":1}]'),
      gzipSync('not JSON'),
      gzipSync('[]'),
    ]) {
      await bucket.put(key, [bytes]);
      await expect(backup.volumeInfos()).rejects.toEqual(
        damaged(/b2-volumeinfo\.json\.gz.*damaged/),
      );
    }
    await bucket.put(key, [good]);
    expect(await backup.volumeInfos()).toHaveLength(1);
  });

  it.each([
    ['[],', 5_000_000, 'it has more than 4000000 values'],
    ['{"a":",",', 5_000_000, 'it has more than 4000000 values'],
    ['0,', 3_900_000, '0: Invalid input: expected object, received number'],
  ])(
    'is refused where %j many times over, which takes 20 KB in the bucket, would fill the memory',
    async (text, times, message) => {
      const bucket = new MemoryBucket();
      const bytes = gzipSync(Buffer.from(`[${text.repeat(times)}0]`));
      bucket.objects.set('backups/b1/b1-itemoperations.json.gz', bytes);
      const loaded = new BackupArchive(bucket).loadItemOperations('b1', LIST);
      await expect(loaded).rejects.toMatchObject({
        code: 'DAMAGED_ARCHIVE',
        message: expect.stringContaining(message) as string,
      });
    },
    60_000,
  );

  it('is also a file that Velero would not miss', async () => {
    const backup = await archive.open('b2');
    await bucket.delete('backups/b2/b2-volumeinfo.json.gz');
    await expect(backup.volumeInfos()).rejects.toEqual(damaged(/was stored, and is gone/));
    await bucket.delete('backups/b2/b2.tar.gz');
    await expect(backup.openContents({ directory: scratch })).rejects.toEqual(
      damaged(/b2\.tar\.gz.*gone/),
    );
    expect(await backup.objects('csiVolumeSnapshots')).toEqual([]);
  });

  it('is also another tarball in the place of the one that was stored', async () => {
    await bucket.put('backups/b2/b2.tar.gz', [goldenFile('names.tar.gz')]);
    const backup = await archive.open('b2');
    await expect(backup.openContents({ directory: scratch })).rejects.toEqual(
      damaged(/its checksum is wrong/),
    );
  });

  it("of the Backup's own file is told, also where it is still JSON", async () => {
    const key = 'backups/b2/velero-backup.json';
    const good = (await readAll(bucket, key)).toString();
    for (const [bytes, what] of [
      ['{', /it is no JSON/],
      ['', /it is no JSON/],
      ['{"kind":"Restore"}', /apiVersion/],
      [good.replace('"name": "b2"', '"name": "b3"'), /it is of backup "b3"/],
      [good.replace('"ttl": "720h0m0s"', '"ttl": "1h0m0s"'), /checksum is wrong/],
    ] as const) {
      expect(bytes).not.toBe(good);
      await bucket.put(key, [Buffer.from(bytes)]);
      await expect(archive.open('b2'), bytes).rejects.toEqual(damaged(what));
    }
  });

  it('is not what a real Velero wrote that went on with our backup', async () => {
    // Velero's finalizer rewrites these three files, and none of our own files.
    const end = goldenJson('bucket-3-completed/velero-backup.json') as StoredBackup;
    const other = {
      ...end,
      status: { ...end.status, completionTimestamp: '2026-11-22T00:00:00Z' },
    };
    await bucket.put('backups/b2/velero-backup.json', [Buffer.from(JSON.stringify(other))]);
    await bucket.put('backups/b2/b2.tar.gz', [goldenFile('names.tar.gz')]);
    await bucket.put('backups/b2/b2-volumeinfo.json.gz', [gzipSync('[]')]);
    const backup = await archive.open('b2');
    expect(await backup.volumeInfos()).toEqual([]);
    await using contents = await backup.openContents({ directory: scratch });
    expect(contents.isEmpty).toBe(false);
    // Our server continues after Velero. Files that Velero rewrote are not held to their old marks.
    await archive.update('b2', { metadata: end });
    expect(await (await archive.open('b2')).volumeInfos()).toEqual([]);
    // Marks of files that Velero never rewrites still count.
    await bucket.put('backups/b2/b2-results.gz', [gzipSync('{}')]);
    await expect(backup.results()).rejects.toEqual(damaged(/b2-results.gz/));
  });

  it('is not what was stored by whoever finished the backup after it was opened', async () => {
    const bucket = new MemoryBucket();
    const archive = new BackupArchive(bucket);
    const facts = await factsOf('bucket-full1', 'full1');
    await archive.put('full1', facts);
    const opened = await archive.open('full1');
    const results = { errors: { velero: ['late'] } };
    await archive.update('full1', { results, metadata: facts.metadata });
    expect(await opened.results()).toMatchObject(results);
    bucket.objects.set('backups/full1/full1-results.gz', gzipSync('{}'));
    await expect(opened.results()).rejects.toMatchObject({ code: 'DAMAGED_ARCHIVE' });
  });

  it('of our own file keeps nobody from reading the backup', async () => {
    for (const bytes of ['{', '{"version":2}', '[]']) {
      await bucket.put('backups/b2/longshore-checksums.json', [Buffer.from(bytes)]);
      const backup = await archive.open('b2');
      expect(await backup.volumeInfos()).toHaveLength(1);
    }
  });

  it('of a listing: names that no backup has are never part of a key', async () => {
    for (const name of ['..', 'a/b', '', 'B', 'x..y', '-a', 'a'.repeat(254)]) {
      await expect(archive.open(name), name).rejects.toMatchObject({ code: 'BAD_ARCHIVE_NAME' });
      await expect(archive.delete(name), name).rejects.toMatchObject({ code: 'BAD_ARCHIVE_NAME' });
    }
  });
});

/** The bucket of a process that is killed before its n-th request, or whose n-th request fails. */
function failing(inner: Bucket, at: number, how: 'killed' | 'away'): Bucket {
  let count = 0;
  const turn = (): void => {
    const isNow = how === 'killed' ? count >= at : count === at;
    count++;
    if (isNow) throw new CodedError('STORAGE_UNREACHABLE', `request ${at} failed`);
  };
  return {
    displayName: inner.displayName,
    put: async (...parameters) => {
      turn();
      await inner.put(...parameters);
    },
    delete: async (...parameters) => {
      turn();
      await inner.delete(...parameters);
    },
    get: async function* (...parameters) {
      turn();
      yield* inner.get(...parameters);
    },
    has: async (...parameters) => {
      turn();
      return inner.has(...parameters);
    },
    list: async function* (...parameters) {
      turn();
      yield* inner.list(...parameters);
    },
    listFolders: (...parameters) => inner.listFolders(...parameters),
    signedUrl: (...parameters) => inner.signedUrl(...parameters),
    close: () => inner.close(),
    [Symbol.asyncDispose]: () => inner.close(),
  };
}

/** Reads every file of a backup, and returns a summary as JSON. */
async function readWhole(bucket: Bucket, name: string): Promise<string> {
  const backup = await new BackupArchive(bucket).open(name);
  const operations = await backup.itemOperations(LIST);
  const volumes = await backup.volumeInfos();
  await using contents = await backup.openContents({ directory: scratch });
  const resources = [...contents.directories()].length;
  await Promise.all([backup.results(), backup.resourceList(), backup.volumeSnapshots()]);
  return JSON.stringify([backup.metadata.status?.phase, operations, volumes, resources]);
}

describe.each(['killed', 'away'] as const)(
  'at each request of a put, where the process or bucket is %s',
  (how) => {
    it('there is a whole backup or none, and another try stores it', async () => {
      const facts = await factsOf('bucket-3-completed', 'b2');
      const whole = new MemoryBucket();
      await new BackupArchive(whole).put('b2', facts);
      const wanted = await readWhole(whole, 'b2');
      let isOver = false;
      for (let at = 0; !isOver; at++) {
        const bucket = new MemoryBucket();
        // A file that is left from an earlier failed backup.
        await bucket.put('backups/b2/b2-csi-volumesnapshots.json.gz', [gzipSync('[{}]')]);
        try {
          await new BackupArchive(failing(bucket, at, how)).put('b2', facts);
          isOver = how === 'killed';
          expect(await readWhole(bucket, 'b2')).toBe(wanted);
          if (at > 30) isOver = true;
        } catch (error) {
          expect(error).toMatchObject({ code: 'STORAGE_UNREACHABLE' });
          expect(await new BackupArchive(bucket).has('b2')).toBe(false);
          const left = await Array.fromAsync(bucket.list('backups/b2/'));
          if (how === 'away' && at > 12) {
            expect(left).toEqual(
              ['b2-itemoperations.json.gz', 'b2-logs.gz'].map((file) => `backups/b2/${file}`),
            );
          }
          await new BackupArchive(bucket).put('b2', facts);
          expect(await readWhole(bucket, 'b2')).toBe(wanted);
          const backup = await new BackupArchive(bucket).open('b2');
          expect(await backup.objects('csiVolumeSnapshots')).toEqual([]);
        }
      }
    });

    it('a backup that is being finished is the old one or the new one, and never damaged', async () => {
      const first = await factsOf('bucket-1-waiting', 'b2');
      const end = await factsOf('bucket-3-completed', 'b2');
      let isOver = false;
      for (let at = 0; !isOver; at++) {
        const bucket = new MemoryBucket();
        await new BackupArchive(bucket).put('b2', first);
        let isDone = true;
        try {
          await new BackupArchive(failing(bucket, at, how)).update('b2', end);
          isOver = true;
        } catch (error) {
          expect(error).toMatchObject({ code: 'STORAGE_UNREACHABLE' });
          isDone = false;
        }
        const [phase] = JSON.parse(await readWhole(bucket, 'b2')) as [string];
        if (isDone) expect(phase).toBe('Completed');
        // The phase never shows a whole backup before all files are there.
        if (phase === 'Completed') {
          expect(await (await new BackupArchive(bucket).open('b2')).volumeInfos()).toEqual(
            end.volumeInfos,
          );
        }
        await new BackupArchive(bucket).update('b2', end);
        expect((await new BackupArchive(bucket).loadMetadata('b2')).status?.phase).toBe(
          'Completed',
        );
      }
    });

    it('a backup that is being deleted is no more taken for one', async () => {
      const facts = await factsOf('bucket-3-completed', 'b2');
      for (let at = 0; at < 13; at++) {
        const bucket = new MemoryBucket();
        await new BackupArchive(bucket).put('b2', facts);
        await new BackupArchive(failing(bucket, at, how)).delete('b2').catch(() => undefined);
        if (at > 0) expect(await new BackupArchive(bucket).has('b2')).toBe(false);
        await new BackupArchive(bucket).delete('b2');
        expect(await Array.fromAsync(bucket.list(''))).toEqual([]);
      }
    });
  },
);

it('a log that cannot be stored does not fail the backup', async () => {
  const inner = new MemoryBucket();
  const errors: string[] = [];
  const none = (): void => undefined;
  const logger = {
    debug: none,
    info: none,
    warn: none,
    error: (_: object, message: string): void => void errors.push(message),
  };
  const bucket: Bucket = {
    ...failing(inner, -1, 'away'),
    put: async (key, ...rest) => {
      if (key.endsWith('-logs.gz')) throw new Error('no logs here');
      await inner.put(key, ...rest);
    },
  };
  const archive = new BackupArchive(bucket, { logger });
  await archive.put('b2', await factsOf('bucket-3-completed', 'b2'));
  expect(errors).toEqual(['Error uploading log file']);
  expect(await readWhole(inner, 'b2')).toContain('Completed');
});

it('a backup of an old Velero has fewer files, and unknown fields of a newer one are kept', async () => {
  const bucket = new MemoryBucket();
  const old = { apiVersion: 'velero.io/v1', kind: 'Backup', metadata: { name: 'old' }, later: 1 };
  await bucket.put('backups/old/velero-backup.json', [Buffer.from(JSON.stringify(old))]);
  await bucket.put('backups/old/old-itemsnapshots.json.gz', [gzipSync('[]')]);
  const backup = await new BackupArchive(bucket).open('old');
  expect(backup.metadata).toEqual(old);
  expect(await backup.volumeInfos()).toEqual([]);
  expect(await backup.itemOperations(LIST)).toEqual([]);
  expect(await backup.resourceList()).toEqual({});
  await expect(backup.openContents({ directory: scratch })).rejects.toMatchObject({
    code: 'BLOB_NOT_FOUND',
  });
  const newer = [{ pvcName: 'data', size: 12345678901234567890n, later: { a: [1] } }];
  await bucket.put('backups/old/old-volumeinfo.json.gz', [gzipSync(`${goJson(newer)}\n`)]);
  const [volume = {}] = await backup.volumeInfos();
  await new BackupArchive(bucket).update('old', { volumeInfos: [volume] });
  expect(await readJsonGzip(bucket, 'backups/old/old-volumeinfo.json.gz')).toBe(
    '[{"pvcName":"data","snapshotDataMoved":false,"preserveLocalSnapshot":false,"skipped":false,' +
      '"size":12345678901234567890,"later":{"a":[1]}}]\n',
  );
});

it('what a bucket may be taken for goes by the phase, as in Velero', () => {
  const of = (phase?: string, expiration?: string): string =>
    standingOf(
      {
        apiVersion: 'velero.io/v1',
        kind: 'Backup',
        metadata: { name: 'b' },
        status: { phase, expiration },
      },
      parseGoTime('2026-06-01T00:00:00Z'),
    );
  const past = '2026-05-31T23:59:59Z';
  const future = '2026-06-01T00:00:01Z';
  for (const phase of ['Completed', 'PartiallyFailed', 'Failed']) expect(of(phase)).toBe('final');
  for (const phase of ['WaitingForPluginOperations', 'FinalizingPartiallyFailed']) {
    expect(of(phase, past)).toBe('abandoned');
    expect(of(phase, future)).toBe('unfinished');
    expect(of(phase)).toBe('unfinished');
  }
  for (const phase of [undefined, 'New', 'InProgress', 'Deleting', 'Later']) {
    expect(of(phase, past)).toBe('unfinished');
  }
});

it('knows the file of a DownloadRequest, and no file of a kind or name that it does not know', () => {
  expect(downloadKey('RestoreVolumeInfo', 'r1')).toBe('restores/r1/r1-volumeinfo.json.gz');
  expect(downloadKey('BackupLog', 'b1')).toBe('backups/b1/b1-logs.gz');
  for (const kind of ['Later', 'toString', '']) {
    expect(isDownloadKind(kind)).toBe(false);
    expect(() => downloadKey(kind, 'b1')).toThrow(`unsupported download target kind "${kind}"`);
  }
  expect(() => downloadKey('BackupLog', '../b1')).toThrow('cannot be the name of a backup');
});

it('scratch space leaves no name behind', () => {
  expect(fs.readdirSync(scratch)).toEqual([]);
  expect(fs.existsSync(join(scratch, 'x'))).toBe(false);
});
