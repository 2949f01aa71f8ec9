import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { codeOf } from '../../src/base/index.ts';
import type { Bucket } from '../../src/blob/index.ts';
import { prng } from '../support/golden.ts';

const MIB = 1 << 20;
/** More than two parts, and no whole number of them. */
const LONG_BYTES = 19 * MIB + 5;

/** What every bucket promises; see `Bucket`. `open` gives an empty one each time. */
export function bucketContract(name: string, open: () => Promise<Bucket>): void {
  const KEY = 'backups/b1/b1.tar.gz';

  describe(`bucket contract: ${name}`, () => {
    it('returns what was put, under keys with slashes', async () => {
      await using bucket = await open();
      const data = prng('object', 100_000);
      await bucket.put(KEY, [data.subarray(0, 7), data.subarray(7, 7), data.subarray(7)]);
      await bucket.put('backups/b1/velero-backup.json', [Buffer.from('{}')]);
      expect(Buffer.compare(await read(bucket, KEY), data)).toBe(0);
      expect((await read(bucket, 'backups/b1/velero-backup.json')).toString()).toBe('{}');
      await bucket.put(KEY, [Buffer.from('shorter')]);
      expect((await read(bucket, KEY)).toString()).toBe('shorter');
    });

    it('keeps an object without a byte', async () => {
      await using bucket = await open();
      await bucket.put(KEY, []);
      expect(await bucket.has(KEY)).toBe(true);
      expect(await read(bucket, KEY)).toHaveLength(0);
    });

    it('takes a long body whose length nobody tells, and gives it back whole', async () => {
      await using bucket = await open();
      const sent = createHash('sha256');
      await bucket.put(KEY, longBody(sent));
      const got = createHash('sha256');
      let length = 0;
      for await (const piece of bucket.get(KEY)) {
        got.update(piece);
        length += piece.length;
      }
      expect(length).toBe(LONG_BYTES);
      expect(got.digest('hex')).toBe(sent.digest('hex'));
    }, 60_000);

    it('takes bodies of exactly one part and of two', async () => {
      await using bucket = await open();
      for (const parts of [1, 2]) {
        const data = Buffer.alloc(parts * 8 * MIB, parts);
        await bucket.put(KEY, [data]);
        expect((await read(bucket, KEY)).equals(data)).toBe(true);
      }
    }, 60_000);

    it('leaves what was there when a body breaks off', async () => {
      await using bucket = await open();
      await bucket.put(KEY, [Buffer.from('before')]);
      for (const after of [1, 17 * MIB]) {
        let isClosed = false;
        const broken = async function* (): AsyncGenerator<Uint8Array> {
          try {
            for (let at = 0; at < after; at += MIB) yield Buffer.alloc(MIB, 1);
            await Promise.resolve();
            throw new Error('the disk is broken');
          } finally {
            isClosed = true;
          }
        };
        await expect(bucket.put(KEY, broken())).rejects.toThrow('the disk is broken');
        expect(isClosed).toBe(true);
        expect((await read(bucket, KEY)).toString()).toBe('before');
      }
      expect(await Array.fromAsync(bucket.list(''))).toEqual([KEY]);
    }, 60_000);

    it('refuses to replace what is there when it is told so, also with a long body', async () => {
      await using bucket = await open();
      for (const [index, length] of [10, 9 * MIB].entries()) {
        const key = `${KEY}.${index}`;
        const data = Buffer.alloc(length, 1);
        await bucket.put(key, [data], { ifAbsent: true });
        expect((await read(bucket, key)).equals(data)).toBe(true);
        const again = bucket.put(key, [Buffer.alloc(length, 2)], { ifAbsent: true });
        await expect(again).rejects.toMatchObject({ code: 'BLOB_EXISTS' });
        expect((await read(bucket, key)).equals(data)).toBe(true);
        await bucket.put(key, [Buffer.from('replaced')]);
        expect((await read(bucket, key)).toString()).toBe('replaced');
      }
    }, 60_000);

    it('says BLOB_NOT_FOUND of what is missing, and deletes it without a word', async () => {
      await using bucket = await open();
      await expect(read(bucket, KEY)).rejects.toMatchObject({ code: 'BLOB_NOT_FOUND' });
      expect(await bucket.has(KEY)).toBe(false);
      await bucket.delete(KEY);
      await bucket.put(KEY, [Buffer.from('x')]);
      await bucket.delete(KEY);
      expect(await bucket.has(KEY)).toBe(false);
    });

    it('lists keys by prefix and the folders below one', async () => {
      await using bucket = await open();
      const keys = [
        ...['backups/b1/velero-backup.json', 'backups/b1/logs/x/y.gz', 'backups/b10/a'],
        ...['backups/loose', 'restores/r1/restore-r1-logs.gz', 'kopia/app/p0'],
      ];
      for (const key of keys) await bucket.put(key, [Buffer.from(key)]);
      const list = async (prefix: string): Promise<string[]> =>
        (await Array.fromAsync(bucket.list(prefix))).sort();
      const folders = async (prefix: string): Promise<string[]> =>
        (await Array.fromAsync(bucket.listFolders(prefix))).sort();
      expect(await list('')).toEqual([...keys].sort());
      expect(await list('backups/b1/')).toEqual([
        'backups/b1/logs/x/y.gz',
        'backups/b1/velero-backup.json',
      ]);
      expect(await list('backups/b1')).toHaveLength(3);
      expect(await list('backups/b2/')).toEqual([]);
      expect(await folders('')).toEqual(['backups', 'kopia', 'restores']);
      expect(await folders('backups/')).toEqual(['b1', 'b10']);
      expect(await folders('backups/b1/')).toEqual(['logs']);
      expect(await folders('backups/b2/')).toEqual([]);
      for (const key of keys) await bucket.delete(key);
      expect(await folders('')).toEqual([]);
      expect(await list('')).toEqual([]);
    });

    it('signs URLs for a plain GET, or says that it cannot', async () => {
      await using bucket = await open();
      await bucket.put(KEY, [Buffer.from('to download')]);
      let url: string;
      try {
        url = await bucket.signedUrl(KEY, 600_000);
      } catch (error) {
        expect(codeOf(error)).toBe('UNSUPPORTED_URL');
        return;
      }
      const answer = await fetch(url);
      expect(answer.status).toBe(200);
      expect(answer.headers.get('content-encoding')).toBeNull();
      expect(await answer.text()).toBe('to download');
    });

    it('ends a put and a get when it is told to', async () => {
      await using bucket = await open();
      await bucket.put(KEY, longBody(createHash('sha256')));
      const reading = new AbortController();
      const read = async (): Promise<void> => {
        for await (const piece of bucket.get(KEY, { signal: reading.signal })) {
          if (piece.length > 0) reading.abort(new Error('enough read'));
        }
      };
      await expect(read()).rejects.toThrow(/enough read|abort/i);
      const writing = new AbortController();
      async function* body(): AsyncGenerator<Uint8Array> {
        for (let i = 0; i < 40; i++) {
          yield Buffer.alloc(MIB, i);
          await new Promise(setImmediate);
          if (i === 20) writing.abort(new Error('enough written'));
        }
      }
      const key = 'backups/b2/b2.tar.gz';
      await expect(bucket.put(key, body(), { signal: writing.signal })).rejects.toThrow(
        /enough written|abort/i,
      );
      expect(await bucket.has(key)).toBe(false);
    }, 60_000);
  });
}

function* longBody(hash: ReturnType<typeof createHash>): Generator<Uint8Array> {
  for (let at = 0; at < LONG_BYTES; at += MIB) {
    const piece = Buffer.alloc(Math.min(MIB, LONG_BYTES - at), at / MIB + 1);
    hash.update(piece);
    yield piece;
  }
}

async function read(bucket: Bucket, key: string): Promise<Buffer> {
  return Buffer.concat(await Array.fromAsync(bucket.get(key)));
}
