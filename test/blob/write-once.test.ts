import { describe, expect, it } from 'vitest';
import { CodedError } from '../../src/base/index.ts';
import { blobId, type BlobId, type BlobStorage, type PutOptions } from '../../src/blob/index.ts';
import { writeOnce } from '../../src/blob/wrappers/write-once.ts';
import { MemoryStorage } from '../support/memory-storage.ts';
import { PutLog } from '../support/put-log.ts';

const PACK = blobId('p0123');
const SCHEDULE = blobId('kopia.maintenance');

function opened(options: ConstructorParameters<typeof MemoryStorage>[0] = {}) {
  const memory = new MemoryStorage(options);
  const log = new PutLog(memory);
  return { memory, log, storage: writeOnce(log) };
}

const put = (storage: BlobStorage, id: BlobId, text: string, options?: PutOptions): Promise<void> =>
  storage.putBlob(id, [Buffer.from(text)], options);
const read = async (storage: BlobStorage, id: BlobId): Promise<string> =>
  Buffer.from(await storage.getBlob(id)).toString();

describe.each(['works', 'refuses'] as const)(
  'a repository that is written once, where put-if-absent %s',
  (conditionalPut) => {
    it('takes the same bytes again for what is there, and refuses others', async () => {
      const { log, storage } = opened({ conditionalPut });
      await put(storage, PACK, 'pack');
      await put(storage, PACK, 'pack');
      await expect(put(storage, PACK, 'other')).rejects.toMatchObject({ code: 'BLOB_EXISTS' });
      expect(await read(storage, PACK)).toBe('pack');
      expect(log.putTwice).toEqual([]);
    });

    it('puts each maintenance schedule under a name of its own, and reads the newest', async () => {
      const { memory, log, storage } = opened({ conditionalPut });
      for (let i = 0; i < 12; i++) await put(storage, SCHEDULE, `schedule ${i}`);
      expect(await read(storage, SCHEDULE)).toBe('schedule 11');
      expect((await storage.getMetadata(SCHEDULE)).lengthBytes).toBe('schedule 11'.length);
      expect(log.putTwice).toEqual([]);
      expect(memory.blobs.size).toBe(3);
      await storage.deleteBlob(SCHEDULE);
      expect(memory.blobs.size).toBe(0);
      await expect(read(storage, SCHEDULE)).rejects.toMatchObject({ code: 'BLOB_NOT_FOUND' });
    });
  },
);

describe('a repository that is written once', () => {
  it('goes by the schedule that another program has put since', async () => {
    let nowNs = 0n;
    const clock = { nowNs: () => (nowNs += 1_000_000_000n), monotonicNs: () => nowNs };
    const { memory, storage } = opened({ clock: clock });
    memory.set(SCHEDULE, Buffer.from('of Kopia'));
    expect(await read(storage, SCHEDULE)).toBe('of Kopia');
    await put(storage, SCHEDULE, 'ours');
    expect(await read(storage, SCHEDULE)).toBe('ours');
    memory.set(SCHEDULE, Buffer.from('of Kopia, later'));
    expect(await read(storage, SCHEDULE)).toBe('of Kopia, later');
    await put(storage, SCHEDULE, 'ours, later');
    expect(await read(storage, SCHEDULE)).toBe('ours, later');
  });

  it('keeps going where old schedules may not be deleted', async () => {
    const { log, storage } = opened();
    log.deletes = () => {
      throw new CodedError('STORAGE_DENIED', 'no');
    };
    for (let i = 0; i < 6; i++) await put(storage, SCHEDULE, `schedule ${i}`);
    expect(await read(storage, SCHEDULE)).toBe('schedule 5');
  });

  it('leaves a put that wants to be refused to its caller', async () => {
    const { storage } = opened();
    await put(storage, PACK, 'pack', { doNotRecreate: true });
    const again = put(storage, PACK, 'pack', { doNotRecreate: true });
    await expect(again).rejects.toMatchObject({ code: 'BLOB_EXISTS' });
  });

  it('replaces what a change of the password has to', async () => {
    const { log, storage } = opened();
    for (const id of ['kopia.repository', 'kopia.blobcfg'].map(blobId)) {
      await put(storage, id, 'old');
      await put(storage, id, 'new');
      expect(await read(storage, id)).toBe('new');
    }
    expect(log.putTwice).toEqual(['kopia.repository', 'kopia.blobcfg']);
  });
});
