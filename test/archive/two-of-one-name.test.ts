import * as fs from 'node:fs';
import { afterAll, describe, expect, it } from 'vitest';
import { BackupArchive, type NewBackup, TarballWriter } from '../../src/archive/index.ts';
import type { Body, ObjectPutOptions } from '../../src/blob/index.ts';
import { CodedError } from '../../src/base/index.ts';
import { MemoryBucket } from '../support/memory-bucket.ts';
import { tempDirectory } from '../support/kopia.ts';

const scratch = tempDirectory('two-of-one-name');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});

const FOLDER = 'backups/nightly/';
/** In the order in which they are put. */
const FILES = [
  ...['longshore-checksums.json', 'nightly-itemoperations.json.gz', 'nightly-volumeinfo.json.gz'],
  ...['nightly-volumesnapshots.json.gz', 'nightly-podvolumebackups.json.gz'],
  ...['nightly-resource-list.json.gz', 'nightly-results.gz', 'nightly.tar.gz'],
  'velero-backup.json',
];

/**
 * A cluster's view of the bucket. The put of one file waits, before or after the bytes have
 * arrived.
 */
function viewOf(
  bucket: MemoryBucket,
  waits?: { file: string; until: Promise<unknown>; on: () => void },
) {
  return Object.assign(Object.create(bucket) as MemoryBucket, {
    put: async (key: string, body: Body, options?: ObjectPutOptions) => {
      if (key === `${FOLDER}${waits?.file}`) {
        waits?.on();
        await waits?.until;
      }
      await bucket.put(key, body, options);
    },
  });
}

/** Stores the backup of a cluster, whose items and metadata say which it is. */
async function store(bucket: MemoryBucket, cluster: string): Promise<void> {
  bucket.objects.set(`${FOLDER}longshore-journal/${cluster}/1`, Buffer.from('x'));
  await using writer = await TarballWriter.begin(scratch);
  await writer.add(`resources/configmaps/namespaces/a/${cluster}.json`, Buffer.from(cluster));
  await using contents = await writer.finish();
  const backup: NewBackup = {
    contents,
    itemOperations: [],
    volumeInfos: [],
    resourceList: { of: [cluster] },
    podVolumeBackups: [],
    volumeSnapshots: [],
    results: { errors: { velero: [cluster] } },
    metadata: {
      apiVersion: 'velero.io/v1',
      kind: 'Backup',
      metadata: { name: 'nightly', uid: cluster },
      status: { phase: 'Completed' },
    },
  };
  await new BackupArchive(bucket).put('nightly', backup);
}

/** Which clusters the files of the backup are of. */
async function ownersOf(bucket: MemoryBucket): Promise<string[]> {
  const stored = await new BackupArchive(bucket).open('nightly');
  await using contents = await stored.openContents({ directory: scratch });
  const items = [...contents.directories()].flatMap((directory) => contents.names(directory));
  const { errors } = await stored.results();
  return [...new Set([stored.metadata.metadata.uid ?? '', ...items, ...(errors?.velero ?? [])])];
}

describe('a put whose answer is lost', () => {
  it.each(FILES)('stores the backup all the same: of %s', async (file) => {
    const bucket = new MemoryBucket();
    let isLost = false;
    const view = Object.assign(Object.create(bucket) as MemoryBucket, {
      put: async (key: string, body: Body, options?: ObjectPutOptions) => {
        await bucket.put(key, body, options);
        if (key !== `${FOLDER}${file}` || isLost) return;
        isLost = true;
        // A repeated put finds the object of the first put.
        if (options?.ifAbsent === true) throw new CodedError('BLOB_EXISTS', `${key} is there`);
      },
    });
    await store(view, 'one');
    expect(isLost).toBe(true);
    expect(await ownersOf(bucket)).toEqual(['one']);
  });
});

describe('what an earlier try of the same backup stores late', () => {
  it.each(FILES.filter((file) => !file.includes('itemoperations')))(
    'is replaced: %s',
    async (file) => {
      const bucket = new MemoryBucket();
      const view = Object.assign(Object.create(bucket) as MemoryBucket, {
        put: async (key: string, body: Body, options?: ObjectPutOptions) => {
          const isFirst = !bucket.objects.has(key);
          if (key === `${FOLDER}${file}` && isFirst) bucket.objects.set(key, Buffer.from('late'));
          await bucket.put(key, body, options);
        },
      });
      // The metadata file names the owner of a backup. Without a readable file the backup has no
      // owner.
      if (file === 'velero-backup.json') {
        await expect(store(view, 'one')).rejects.toMatchObject({ code: 'BACKUP_EXISTS' });
        return;
      }
      await store(view, 'one');
      expect(await ownersOf(bucket)).toEqual(['one']);
    },
  );
});

describe('two clusters that store a backup of one name in one bucket at the same time', () => {
  it.each(FILES)(
    'never mix them, and none loses its backup unheard: one waits with %s',
    async (file) => {
      const bucket = new MemoryBucket();
      const waits = Promise.withResolvers<undefined>();
      const goesOn = Promise.withResolvers<undefined>();
      const on = () => {
        waits.resolve(undefined);
      };
      const first = store(viewOf(bucket, { file, until: goesOn.promise, on }), 'one');
      await waits.promise;
      const second = await store(viewOf(bucket), 'two').then(
        () => 'stored',
        (error: unknown) => (error as { code?: string }).code,
      );
      goesOn.resolve(undefined);
      const ends = [
        await first.then(
          () => 'stored',
          (error: unknown) => (error as { code?: string }).code,
        ),
        second,
      ];
      const winners = ['one', 'two'].filter((_, at) => ends[at] === 'stored');
      expect(ends.filter((end) => end !== 'stored')).toEqual(
        Array.from({ length: 2 - winners.length }, () => 'BACKUP_EXISTS'),
      );
      expect(winners.length).toBeLessThanOrEqual(1);
      const isThere = await new BackupArchive(bucket).has('nightly');
      expect(isThere).toBe(winners.length === 1);
      if (isThere) expect(await ownersOf(bucket)).toEqual(winners);
    },
  );
});

describe('a cluster that fails to store its backup', () => {
  it('leaves alone what another cluster has stored under that name meanwhile', async () => {
    const bucket = new MemoryBucket();
    const waits = Promise.withResolvers<undefined>();
    const goesOn = Promise.withResolvers<undefined>();
    const key = `${FOLDER}nightly.tar.gz`;
    const failing = Object.assign(Object.create(bucket) as MemoryBucket, {
      put: async (each: string, body: Body, options?: ObjectPutOptions) => {
        if (each !== key) return bucket.put(each, body, options);
        waits.resolve(undefined);
        await goesOn.promise;
        throw new CodedError('STORAGE_AWAY', 'the storage is away', { retry: 'backoff' });
      },
    });
    const first = store(failing, 'one');
    await waits.promise;
    await store(bucket, 'two');
    const before = [...bucket.objects.keys()];
    goesOn.resolve(undefined);
    await expect(first).rejects.toMatchObject({ code: 'STORAGE_AWAY' });
    expect([...bucket.objects.keys()]).toEqual(before);
    expect(await ownersOf(bucket)).toEqual(['two']);
  });

  it('leaves alone what another cluster is storing', async () => {
    const bucket = new MemoryBucket();
    bucket.objects.set(`${FOLDER}longshore-journal/two/1`, Buffer.from('x'));
    bucket.objects.set(`${FOLDER}longshore-checksums.json`, Buffer.from('of two'));
    const key = `${FOLDER}nightly.tar.gz`;
    const failing = Object.assign(Object.create(bucket) as MemoryBucket, {
      put: async (each: string, body: Body, options?: ObjectPutOptions) => {
        if (each === key) {
          // The other backup begins after this backup has looked for leftovers.
          bucket.objects.set(`${FOLDER}longshore-checksums.json`, Buffer.from('of two'));
          throw new CodedError('STORAGE_AWAY', 'the storage is away', { retry: 'backoff' });
        }
        await bucket.put(each, body, options);
      },
    });
    await expect(store(failing, 'one')).rejects.toMatchObject({ code: 'STORAGE_AWAY' });
    expect(String(bucket.objects.get(`${FOLDER}longshore-checksums.json`))).toBe('of two');
  });

  it('removes its own files but for what tells why', async () => {
    const bucket = new MemoryBucket();
    const failing = Object.assign(Object.create(bucket) as MemoryBucket, {
      put: async (each: string, body: Body, options?: ObjectPutOptions) => {
        await bucket.put(each, body, options);
        if (each.endsWith('velero-backup.json')) throw new CodedError('STORAGE_AWAY', 'away');
      },
    });
    await expect(store(failing, 'one')).rejects.toMatchObject({ code: 'STORAGE_AWAY' });
    expect([...bucket.objects.keys()].sort()).toEqual([
      `${FOLDER}longshore-journal/one/1`,
      `${FOLDER}nightly-itemoperations.json.gz`,
    ]);
  });
});
