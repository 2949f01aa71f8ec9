import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { blobId, type BlobStorage, listAll } from '../../src/blob/index.ts';
import { prng } from '../support/golden.ts';

/** What every storage promises; see `BlobStorage`. `open` gives an empty one each time. */
export function storageContract(name: string, open: () => Promise<BlobStorage>): void {
  const LONG = blobId('p527983d1c7a5bdfe0c0a8a6e3b1f5c2d-s0123456789abcdef147');
  const SHORT = blobId('kopia.repository');

  describe(`storage contract: ${name}`, () => {
    it('returns what was put, whole and in ranges, also into given memory', async () => {
      await using storage = await open();
      const data = prng('blob', 100_000);
      await storage.putBlob(LONG, [data.subarray(0, 10), data.subarray(10, 10), data.subarray(10)]);
      expect(Buffer.compare(await storage.getBlob(LONG), data)).toBe(0);
      const range = await storage.getBlob(LONG, { offset: 5, lengthBytes: 100 });
      expect(Buffer.compare(range, data.subarray(5, 105))).toBe(0);
      const shared = new Uint8Array(new SharedArrayBuffer(200));
      const into = await storage.getBlob(LONG, { offset: 99_990, lengthBytes: 10, into: shared });
      expect(Buffer.compare(into, data.subarray(99_990))).toBe(0);
      expect(into.buffer).toBe(shared.buffer);
      expect((await storage.getBlob(LONG, { offset: 3, lengthBytes: 0 })).length).toBe(0);
    });

    it('refuses ranges beyond the end, never with a short answer', async () => {
      await using storage = await open();
      await storage.putBlob(SHORT, [Buffer.from('0123456789')]);
      for (const [offset, lengthBytes] of [
        [0, 11],
        [5, 6],
        [11, 1],
        [1000, 0],
      ] as const) {
        await expect(storage.getBlob(SHORT, { offset, lengthBytes })).rejects.toMatchObject({
          code: 'INVALID_RANGE',
        });
      }
    });

    it('keeps blobs without a byte, which have no range', async () => {
      await using storage = await open();
      await storage.putBlob(SHORT, []);
      expect((await storage.getBlob(SHORT)).length).toBe(0);
      const { lengthBytes } = await storage.getMetadata(SHORT);
      expect(lengthBytes).toBe(0);
      const range = { offset: 0, lengthBytes: 1 };
      await expect(storage.getBlob(SHORT, range)).rejects.toMatchObject({ code: 'INVALID_RANGE' });
    });

    it('says BLOB_NOT_FOUND of what is missing, and deletes it without a word', async () => {
      await using storage = await open();
      const missing = { code: 'BLOB_NOT_FOUND', blobId: LONG };
      await expect(storage.getBlob(LONG)).rejects.toMatchObject(missing);
      await expect(storage.getMetadata(LONG)).rejects.toMatchObject(missing);
      await storage.deleteBlob(LONG);
    });

    it('overwrites, and lists each blob once with length and time', async () => {
      await using storage = await open();
      await storage.putBlob(LONG, [Buffer.from('one')]);
      await storage.putBlob(LONG, [Buffer.from('longer')]);
      await storage.putBlob(SHORT, []);
      const blobs = await listAll(storage, '');
      expect(blobs.map(({ id, lengthBytes }) => [id, lengthBytes])).toEqual([
        [SHORT, 0],
        [LONG, 6],
      ]);
      const { timestampNs, ...metadata } = await storage.getMetadata(LONG);
      expect(metadata).toEqual({ id: LONG, lengthBytes: 6 });
      expect(Number(timestampNs / 1_000_000n)).toBeGreaterThan(Date.UTC(2024, 0));
      // HTTP headers tell whole seconds.
      const differenceNs = Number((blobs[1]?.timestampNs ?? 0n) - timestampNs);
      expect(Math.abs(differenceNs)).toBeLessThanOrEqual(1e9);
    });

    it('lists by prefix, exactly', async () => {
      await using storage = await open();
      const ids = ['xn1_a0', 'xn10_b0', 'xn1_a1', 'p', 'pp', 'q'].map(
        (start) => `${start}${'0'.repeat(30)}`,
      );
      for (const id of [...ids, 'xe1', 'kopia.blobcfg'])
        await storage.putBlob(blobId(id), [Buffer.of(1)]);
      for (const prefix of ['xn1_', 'xn1', 'x', 'p', 'pp', 'nothing', 'kopia.']) {
        const wanted = [...ids, 'xe1', 'kopia.blobcfg']
          .filter((id) => id.startsWith(prefix))
          .sort();
        expect(
          (await listAll(storage, prefix)).map(({ id }) => String(id)),
          prefix,
        ).toEqual(wanted);
      }
    });

    it('stays whole under many writers of one blob', async () => {
      await using storage = await open();
      const versions = Array.from({ length: 8 }, (_, i) => Buffer.alloc(50_000, i));
      await Promise.all(versions.map((data) => storage.putBlob(LONG, [data])));
      const found = await storage.getBlob(LONG);
      expect(versions.some((data) => Buffer.compare(data, found) === 0)).toBe(true);
      expect(await listAll(storage, '')).toHaveLength(1);
    });

    it('puts what must not be there yet for one of many only, or says that it cannot', async () => {
      await using storage = await open();
      const versions = Array.from({ length: 6 }, (_, i) => Buffer.alloc(20_000, i));
      const results = await Promise.allSettled(
        versions.map((data) => storage.putBlob(SHORT, [data], { doNotRecreate: true })),
      );
      const codes = results.map((result) =>
        result.status === 'fulfilled' ? 'put' : (result.reason as { code?: string }).code,
      );
      if (codes.every((code) => code === 'UNSUPPORTED_PUT')) return;
      expect(codes.sort()).toEqual([...Array<string>(5).fill('BLOB_EXISTS'), 'put']);
      const found = await storage.getBlob(SHORT);
      const winner = results.findIndex(({ status }) => status === 'fulfilled');
      expect(versions[winner]?.equals(found)).toBe(true);
      await storage.putBlob(SHORT, [Buffer.from('over')]);
      expect(Buffer.from(await storage.getBlob(SHORT)).toString()).toBe('over');
      expect(await listAll(storage, '')).toHaveLength(1);
    });

    it('keeps any set of blobs through puts, overwrites and deletes', async () => {
      const id = fc.stringMatching(/^[a-z][0-9a-z_.-]{0,40}$/).map(blobId);
      const step = fc.record({ id, data: fc.option(fc.uint8Array({ maxLength: 64 })) });
      await fc.assert(
        fc.asyncProperty(fc.array(step, { maxLength: 12 }), async (steps) => {
          await using storage = await open();
          const model = new Map<string, string>();
          for (const { id: blob, data } of steps) {
            if (data) {
              await storage.putBlob(blob, [data]);
              model.set(blob, Buffer.from(data).toString('hex'));
            } else {
              await storage.deleteBlob(blob);
              model.delete(blob);
            }
          }
          const found = new Map<string, string>();
          for (const blob of await listAll(storage, '')) {
            found.set(blob.id, Buffer.from(await storage.getBlob(blob.id)).toString('hex'));
          }
          expect(found).toEqual(model);
        }),
        { numRuns: 25, seed: 5 },
      );
    });

    it('makes URLs by which anybody gets a blob for a while, or says that it cannot', async () => {
      await using storage = await open();
      const data = prng('signed', 5000);
      await storage.putBlob(SHORT, [data]);
      let url: string;
      try {
        url = await storage.signedUrl(SHORT, 600_000);
      } catch (error) {
        expect(error).toMatchObject({ code: 'UNSUPPORTED_URL' });
        return;
      }
      const answer = await fetch(url);
      expect(answer.status).toBe(200);
      expect(Buffer.from(await answer.arrayBuffer()).equals(data)).toBe(true);
      // Only this blob, and only to read it.
      expect((await fetch(url, { method: 'DELETE' })).ok).toBe(false);
      expect((await fetch(url.replace(SHORT, LONG))).ok).toBe(false);
      expect((await fetch(url.split('?')[0] ?? '')).ok).toBe(false);
      expect((await fetch(await storage.signedUrl(LONG, 600_000))).status).toBe(404);
      const short = await storage.signedUrl(SHORT, 1000);
      await expect.poll(async () => (await fetch(short)).ok, { timeout: 10_000 }).toBe(false);
      const signal = AbortSignal.abort(new Error('enough'));
      await expect(storage.signedUrl(SHORT, 1000, { signal })).rejects.toThrow('enough');
    });

    it('tells which folders there are, each once', async () => {
      await using storage = await open();
      expect(await Array.fromAsync(storage.listFolders(''))).toEqual([]);
      await storage.putBlob(SHORT, [Buffer.of(1)]);
      const names = ['backups/b1/velero-backup.json', 'backups/b2/b2.tar.gz', 'kopia/app/x'];
      try {
        for (const name of names) await storage.putBlob(blobId(name), [Buffer.of(2)]);
      } catch (error) {
        // Directories know no names with folders.
        expect(error).toMatchObject({ code: 'BAD_BLOB_ID' });
        return;
      }
      const folders = async (prefix: string): Promise<string[]> =>
        (await Array.fromAsync(storage.listFolders(prefix))).sort();
      expect(await folders('')).toEqual(['backups', 'kopia']);
      expect(await folders('backups/')).toEqual(['b1', 'b2']);
      expect(await folders('backups/b1/')).toEqual([]);
      expect(await folders('none/')).toEqual([]);
    });

    it('stops when asked to', async () => {
      await using storage = await open();
      await storage.putBlob(SHORT, [Buffer.of(1)]);
      const signal = AbortSignal.abort(new Error('enough'));
      await expect(storage.getBlob(SHORT, { signal })).rejects.toThrow('enough');
      await expect(storage.putBlob(LONG, [Buffer.of(1)], { signal })).rejects.toThrow('enough');
    });
  });
}
