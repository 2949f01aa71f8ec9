import { describe, expect, it } from 'vitest';
import { WriteOnceBucket } from '../../../src/archive/index.ts';
import { CodedError } from '../../../src/base/index.ts';
import { bucketContract } from '../../contract/bucket.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';
import { VersionedBucket } from '../../support/versioned-bucket.ts';

bucketContract('write-once', () => Promise.resolve(new WriteOnceBucket(new VersionedBucket())));

const FOLDER = 'backups/b1/';
const LOG = `${FOLDER}b1-logs.gz`;
const METADATA = `${FOLDER}velero-backup.json`;
const LAST = { uid: 'u1', last: METADATA };

function opened() {
  const inner = new VersionedBucket();
  return { inner, bucket: new WriteOnceBucket(inner) };
}

const put = (bucket: WriteOnceBucket, key: string, text: string): Promise<void> =>
  bucket.put(key, [Buffer.from(text)]);
const read = async (bucket: WriteOnceBucket | MemoryBucket, key: string): Promise<string> =>
  Buffer.concat(await Array.fromAsync(bucket.get(key))).toString();
const keys = async (bucket: WriteOnceBucket, prefix = ''): Promise<string[]> =>
  (await Array.fromAsync(bucket.list(prefix))).sort();

describe('a bucket that is written once', () => {
  it('puts nothing under the name of a file before its backup is over, and then each file once', async () => {
    const { inner, bucket } = opened();
    for (const text of ['a', 'b', 'c']) await put(bucket, LOG, text);
    await put(bucket, METADATA, 'finalizing');
    await put(bucket, METADATA, 'done');
    expect(await read(bucket, LOG)).toBe('c');
    expect(await bucket.has(METADATA)).toBe(true);
    expect(inner.objects.has(LOG)).toBe(false);
    expect(inner.objects.has(METADATA)).toBe(false);
    expect(await keys(bucket)).toEqual([LOG, METADATA]);
    await bucket.seal(FOLDER, LAST);
    expect(inner.objects.get(LOG)?.toString()).toBe('c');
    expect(inner.objects.get(METADATA)?.toString()).toBe('done');
    expect(await read(bucket, LOG)).toBe('c');
    expect(inner.putTwice).toEqual([]);
    // Only the files and what says that they are published.
    expect([...inner.objects.keys()].sort()).toEqual([
      LOG,
      `${FOLDER}longshore-once/_sealed/u1`,
      METADATA,
    ]);
  });

  it('publishes the file that stands for the whole after all others', async () => {
    const { inner, bucket } = opened();
    for (const key of [METADATA, LOG, `${FOLDER}zzz.json`]) await put(bucket, key, key);
    const before = inner.puts.length;
    await bucket.seal(FOLDER, LAST);
    expect(inner.puts.slice(before).at(-1)).toBe(METADATA);
  });

  it('keeps few versions of a file that changes often, and one for who is reading it', async () => {
    const { inner, bucket } = opened();
    await put(bucket, LOG, 'first'.repeat(50_000));
    const reading = bucket.get(LOG);
    let text = '';
    for await (const piece of reading) {
      if (text === '') await put(bucket, LOG, 'second');
      text += Buffer.from(piece).toString();
    }
    expect(text).toBe('first'.repeat(50_000));
    for (let i = 0; i < 20; i++) await put(bucket, LOG, `${i}`);
    expect(inner.objects.size).toBe(4);
    expect(await read(bucket, LOG)).toBe('19');
    expect(inner.putTwice).toEqual([]);
  });

  it('looks again where the version that it has found is removed meanwhile', async () => {
    const { inner, bucket } = opened();
    await put(bucket, LOG, 'old');
    let others = 2;
    inner.beforeGet = async () => {
      if (others-- > 0) for (const text of ['u', 'v', 'w', 'x', 'y']) await put(bucket, LOG, text);
    };
    expect(await read(bucket, LOG)).toBe('y');
    inner.beforeGet = () => {
      for (const key of [...inner.objects.keys()]) {
        inner.objects.delete(key);
        inner.objects.set(
          key.replace(/\/(\d{8})-/, (_, n) => `/${String(Number(n) + 1).padStart(8, '0')}-`),
          Buffer.from('z'),
        );
      }
      return Promise.resolve();
    };
    await expect(read(bucket, LOG)).rejects.toMatchObject({ code: 'BLOB_CHANGED' });
  });

  it('takes a put whose answer was lost, and was sent again, for done', async () => {
    const { inner, bucket } = opened();
    inner.sendsTwice = true;
    await put(bucket, LOG, 'log');
    await put(bucket, METADATA, 'done');
    await put(bucket, `${FOLDER}longshore-journal/u1/00000001-ab-00000000`, 'segment');
    await bucket.seal(FOLDER, LAST);
    expect(await read(inner, METADATA)).toBe('done');
    expect(inner.putTwice).toEqual([]);
  });

  it('puts the same bytes under a key without versions once, and refuses others', async () => {
    const { inner, bucket } = opened();
    const key = `${FOLDER}longshore-journal/u1/00000001-ab-00000000`;
    await put(bucket, key, 'segment');
    await put(bucket, key, 'segment');
    await expect(put(bucket, key, 'another')).rejects.toMatchObject({ code: 'BLOB_EXISTS' });
    await expect(bucket.put(key, [Buffer.from('segment')], { ifAbsent: true })).rejects.toThrow();
    expect(await read(bucket, key)).toBe('segment');
    expect(inner.putTwice).toEqual([]);
  });

  it('deletes a file with its versions, and leaves the newest where it is stopped on the way', async () => {
    const { inner, bucket } = opened();
    await put(bucket, LOG, 'old');
    await put(bucket, LOG, 'new');
    inner.deletesLeft = 2;
    await expect(bucket.delete(LOG)).rejects.toThrow('denied');
    expect(await read(bucket, LOG)).toBe('new');
    inner.deletesLeft = Infinity;
    await bucket.delete(LOG);
    expect(await bucket.has(LOG)).toBe(false);
    expect(inner.objects.size).toBe(0);
  });

  it('uses no key again after a deletion', async () => {
    const { inner, bucket } = opened();
    for (let i = 0; i < 3; i++) {
      await put(bucket, LOG, 'log');
      await bucket.delete(LOG);
    }
    expect(inner.putTwice).toEqual([]);
  });

  it('goes on where nothing may be deleted', async () => {
    const { inner, bucket } = opened();
    inner.deletesLeft = 0;
    for (const text of ['a', 'b', 'c']) await put(bucket, METADATA, text);
    await bucket.seal(FOLDER, LAST);
    await bucket.seal(FOLDER, LAST);
    expect(await read(inner, METADATA)).toBe('c');
    expect(await read(bucket, METADATA)).toBe('c');
    expect(inner.putTwice).toEqual([]);
  });

  it('publishes what was decided first, however often it is stopped, and drops what came later', async () => {
    for (let stopAt = 0; stopAt < 12; stopAt++) {
      const { inner, bucket } = opened();
      await put(bucket, LOG, 'log');
      await put(bucket, METADATA, 'done');
      let left = stopAt;
      const stopped = await bucket
        .seal(FOLDER, {
          ...LAST,
          assertAllowed: () => {
            if (left-- === 0) throw new CodedError('LEADERSHIP_LOST', 'another leads');
          },
        })
        .then(
          () => false,
          () => true,
        );
      // A process that does not lead any more.
      if (stopped && stopAt > 0) for (let i = 0; i < 9; i++) await put(bucket, LOG, 'late');
      await bucket.seal(FOLDER, LAST);
      expect(await read(inner, LOG), `${stopAt}`).toBe('log');
      expect(await read(bucket, LOG), `${stopAt}`).toBe('log');
      expect(await read(inner, METADATA), `${stopAt}`).toBe('done');
      expect(inner.putTwice, `${stopAt}`).toEqual([]);
    }
  });

  it('of two that publish at the same time neither replaces what the other one has put', async () => {
    const { inner, bucket } = opened();
    await put(bucket, LOG, 'log');
    await put(bucket, METADATA, 'done');
    await Promise.all([1, 2, 3].map(() => new WriteOnceBucket(inner).seal(FOLDER, LAST)));
    expect(await read(inner, METADATA)).toBe('done');
    expect(inner.putTwice).toEqual([]);
  });

  it('replaces what was there before the location was written once, and says so', async () => {
    const inner = new VersionedBucket();
    await inner.put(METADATA, [Buffer.from('finalizing')]);
    const said: string[] = [];
    const logger = {
      ...console,
      debug: () => 0,
      info: () => 0,
      error: () => 0,
      warn: (_: unknown, text: string) => said.push(text),
    };
    const bucket = new WriteOnceBucket(inner, { logger: logger });
    expect(await read(bucket, METADATA)).toBe('finalizing');
    await put(bucket, METADATA, 'done');
    expect(await read(bucket, METADATA)).toBe('done');
    await bucket.seal(FOLDER, LAST);
    expect(await read(inner, METADATA)).toBe('done');
    expect(said).toHaveLength(1);
    expect(inner.putTwice).toEqual([METADATA]);
  });

  it('publishes nothing where there are no versions', async () => {
    const { inner, bucket } = opened();
    await bucket.seal(FOLDER, LAST);
    expect(inner.objects.size).toBe(0);
  });

  it('publishes the rest where somebody has removed a file, but not without what stands for the whole', async () => {
    for (const removed of [LOG, METADATA]) {
      const { inner, bucket } = opened();
      await put(bucket, LOG, 'log');
      await put(bucket, METADATA, 'done');
      const sealing = bucket.seal(FOLDER, {
        ...LAST,
        assertAllowed: () => {
          // What says that they are to be published is there by then.
          if (!inner.objects.has(`${FOLDER}longshore-once/_sealed/u1`)) return;
          for (const key of [...inner.objects.keys()]) {
            if (key.includes(`once/${removed.slice(FOLDER.length)}/`)) inner.objects.delete(key);
          }
        },
      });
      if (removed === METADATA) await expect(sealing).rejects.toThrow('is not in the storage');
      else await sealing;
      expect(inner.objects.has(LOG), removed).toBe(removed !== LOG);
      expect(inner.objects.has(METADATA), removed).toBe(removed !== METADATA);
    }
  });

  it('publishes the newest that is left where the version that was decided on is gone', async () => {
    const { inner, bucket } = opened();
    await put(bucket, METADATA, 'done');
    for (const text of ['a', 'b', 'c']) await put(bucket, LOG, text);
    const third = [...inner.objects.keys()].find((key) => key.includes('/00000003-')) ?? '';
    await bucket.seal(FOLDER, {
      ...LAST,
      assertAllowed: () => {
        if (inner.objects.has(`${FOLDER}longshore-once/_sealed/u1`)) inner.objects.delete(third);
      },
    });
    expect(await read(inner, LOG)).toBe('b');
    expect(await read(inner, METADATA)).toBe('done');
    expect(inner.putTwice).toEqual([]);
  });

  it('publishes what it has put, where a listing does not show it yet', async () => {
    for (const shown of [0, 1]) {
      const { inner, bucket } = opened();
      await put(bucket, METADATA, 'finalizing');
      const stale = new Set([...inner.objects.keys()].slice(0, shown));
      const list = inner.list.bind(inner);
      inner.list = async function* (prefix) {
        for await (const key of list(prefix)) if (stale.has(key)) yield key;
      };
      await put(bucket, METADATA, 'done');
      await put(bucket, LOG, 'log');
      const numbers = [...inner.objects.keys()].map((key) => key.split('/').at(-1)?.slice(0, 8));
      expect(numbers).toEqual(['00000001', '00000002', '00000001']);
      await bucket.seal(FOLDER, LAST);
      expect(inner.objects.get(METADATA)?.toString(), `${shown}`).toBe('done');
      expect(inner.objects.get(LOG)?.toString(), `${shown}`).toBe('log');
    }
  });

  it('takes nothing from elsewhere that a published list names', async () => {
    const { inner, bucket } = opened();
    await put(bucket, METADATA, 'done');
    const files = {
      'velero-backup.json': '../b2/longshore-once/velero-backup.json/00000001-aaaaaaaa',
    };
    await inner.put(`${FOLDER}longshore-once/_sealed/u1`, [
      Buffer.from(JSON.stringify({ version: 1, files })),
    ]);
    await expect(bucket.seal(FOLDER, LAST)).rejects.toMatchObject({ code: 'DAMAGED_ARCHIVE' });
  });

  it('lists by the beginning of a name, and hides its own folders', async () => {
    const { bucket } = opened();
    await put(bucket, LOG, 'log');
    await put(bucket, `${FOLDER}longshore-logs/app.data.gz`, 'mover');
    expect(await keys(bucket, `${FOLDER}b1-`)).toEqual([LOG]);
    expect(await keys(bucket, `${FOLDER}longshore-logs/`)).toEqual([
      `${FOLDER}longshore-logs/app.data.gz`,
    ]);
    expect(await Array.fromAsync(bucket.listFolders(FOLDER))).toEqual(['longshore-logs']);
    expect(await Array.fromAsync(bucket.listFolders('backups/'))).toEqual(['b1']);
  });
});
