import * as fs from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { Arena, type CodecKeys, type Span } from '../../src/codec/index.ts';
import { type ThreadPool, STAT_FIELDS } from '../../src/volume-files/index.ts';
import { prng } from '../support/golden.ts';
import { tempDirectory } from '../support/kopia.ts';

const KEYS: CodecKeys = {
  hash: 'BLAKE2B-256-128',
  encryption: 'AES256-GCM-HMAC-SHA256',
  secret: prng('secret', 32),
  masterKey: prng('master', 32),
};

/** What threads and the in-process form promise alike; see `ThreadPool`. */
export function poolContract(
  name: string,
  create: (keys: CodecKeys, arena: Arena) => ThreadPool,
): void {
  const open = (): {
    pool: ThreadPool;
    put: (data: Uint8Array) => Span;
    room: (bytes: number) => number;
  } => {
    const arena = new Arena(64 << 20);
    const put = (data: Uint8Array): Span => {
      const address = arena.allocate(data.length + 1);
      arena.bytes.set(data, address);
      return { address, length: data.length };
    };
    return { pool: create(KEYS, arena), put, room: (bytes) => arena.allocate(bytes) };
  };

  describe(`pool contract: ${name}`, () => {
    it('what is hashed and sealed is written to files as it was', async () => {
      const { pool: created, put, room } = open();
      await using pool = created;
      const work = tempDirectory('pool');
      const contents = [
        prng('a', 100_000),
        Buffer.alloc(50_000, 'text '),
        Buffer.alloc(0),
        prng('b', 7),
      ];
      const messages = contents.map((data) => [
        put(data.subarray(0, 5000)),
        put(data.subarray(5000)),
      ]);
      const hashes = await pool.hash(messages);
      const items = messages.map((spans, i) => ({
        spans,
        hash: hashes[i] as Uint8Array,
        compressionHeaderId: 0x1101,
      }));
      const address = room(400_000);
      const sealed = await pool.seal(items, address);
      expect(sealed.map(({ compressionHeaderId }) => compressionHeaderId)).toEqual([
        0, 0x1101, 0, 0,
      ]);
      let at = address;
      const opened = sealed.map(({ packedLength, compressionHeaderId }, i) => {
        const span = { address: at, length: packedLength };
        at += packedLength;
        const attributes = { mode: 0o640, uid: 0, gid: 0, mtimeNs: 1_600_000_000_123_456_789n };
        const target = { path: join(work, String(i)), attributes };
        const originalLength = contents[i]?.length ?? 0;
        const hash = hashes[i] as Uint8Array;
        return { span, hash, compressionHeaderId, originalLength, compressedObject: false, target };
      });
      expect(await pool.open(opened)).toEqual({ failures: [], notSet: [] });
      contents.forEach((data, i) => {
        expect(fs.readFileSync(join(work, String(i))).equals(data)).toBe(true);
        expect(fs.statSync(join(work, String(i))).mode & 0o777).toBe(0o640);
      });
      // A second time the files are there: each item fails on its own, and says how.
      const { failures } = await pool.open(opened);
      expect(failures.map(({ index, code }) => [index, code])).toEqual(
        contents.map((_data, i) => [i, 'EEXIST']),
      );
      fs.rmSync(work, { recursive: true });
    });

    it('files and directories are read; what cannot be is told apart', async () => {
      const { pool: created, room } = open();
      await using pool = created;
      const work = tempDirectory('pool');
      fs.writeFileSync(join(work, 'a'), 'hello');
      fs.writeFileSync(join(work, 'b'), 'grown beyond');
      fs.symlinkSync('a', join(work, 'l'));
      const slab = { address: room(100_000), length: 100_000 };
      const files = ['a', 'b', 'missing', 'l'].map((file) => ({
        path: join(work, file),
        sizeBytes: 5,
      }));
      const [a, b, missing, link] = await pool.readFiles(files, slab);
      expect(a).toMatchObject({ length: 5, grew: false });
      expect(b).toMatchObject({ grew: true });
      expect(missing?.error?.code).toBe('ENOENT');
      expect(link?.error?.code).toBe('ELOOP');
      const listing = await pool.readDirectory(work, 3);
      expect(listing.names).toEqual(['a', 'b', 'l']);
      expect(listing.targets.map(([i, target]) => [i, Buffer.from(target).toString()])).toEqual([
        [2, 'a'],
      ]);
      expect(await pool.readDirectory(work, 2)).toMatchObject({ isTooLong: true, names: [] });
      const looked = await pool.lookAt(work, Buffer.from('l\0missing\0b\0'));
      expect(looked.targets.map(([i]) => i)).toEqual([0]);
      expect(looked.failures.map(([i, code]) => [i, code])).toEqual([[1, 'ENOENT']]);
      expect(looked.stats.at(2 * STAT_FIELDS + 1)).toBe(BigInt(fs.statSync(join(work, 'b')).size));
      await expect(pool.readDirectory(join(work, 'a'), 3)).rejects.toMatchObject({
        code: 'ENOTDIR',
      });
      fs.rmSync(work, { recursive: true });
    });

    it('ranges of files are compared with hashes, part by part and behind the end of a file', async () => {
      const { pool: created, put, room } = open();
      await using pool = created;
      const work = tempDirectory('pool');
      const data = prng('ranges', 20_000);
      fs.writeFileSync(join(work, 'file'), data);
      const zeros = Buffer.alloc(1000);
      const messages = [
        data.subarray(0, 12_000),
        data.subarray(12_000, 19_000),
        Buffer.concat([data.subarray(19_500), zeros]),
        zeros,
        Buffer.alloc(0),
      ];
      const hashes = await pool.hash(messages.map((message) => [put(message)]));
      const descriptor = fs.openSync(join(work, 'file'), 'r');
      const rangeOf = (i: number, offset: number) => {
        const hash = hashes[i] as Uint8Array;
        return { descriptor, offset, length: messages[i]?.length ?? 0, hash };
      };
      // Room for a kilobyte of each range at a time, and no whole number of blocks.
      const slab = { address: room(3100), length: 3100 };
      const good = [0, 12_000, 19_500, 30_000, 7].map((offset, i) => rangeOf(i, offset));
      expect(await pool.compareRanges(good, slab, [rangeOf(0, 0)])).toEqual({
        equal: Uint8Array.of(1, 1, 1, 1, 1),
        failures: [],
      });
      const moved = [1, 12_000, 19_499, 19_900].map((offset, i) => rangeOf(i, offset));
      const { equal } = await pool.compareRanges(moved, slab, []);
      expect(equal).toEqual(Uint8Array.of(0, 1, 0, 0));
      const closed = { ...rangeOf(1, 12_000), descriptor: 999_999 };
      const failed = await pool.compareRanges([rangeOf(0, 0), closed], slab, [closed]);
      expect(failed.equal).toEqual(Uint8Array.of(1, 0));
      expect(failed.failures.map(({ index, code }) => [index, code])).toEqual([[1, 'EBADF']]);
      // Bytes of an earlier range in the same room do not count.
      const zero = rangeOf(3, 30_000);
      const again = [zero, zero, zero, { ...zero, descriptor: 999_999 }];
      expect((await pool.compareRanges(again, slab, [])).equal).toEqual(Uint8Array.of(1, 1, 1, 0));
      fs.closeSync(descriptor);
      fs.rmSync(work, { recursive: true });
    });

    it('damage is an error of that content alone', async () => {
      const { pool: created, put, room } = open();
      await using pool = created;
      const spans = [put(prng('x', 1000))];
      const [hash = new Uint8Array(0)] = await pool.hash([spans]);
      const address = room(2000);
      await pool.seal([{ spans, hash, compressionHeaderId: 0 }], address);
      pool.arena.bytes[address + 500] = (pool.arena.bytes[address + 500] ?? 0) ^ 1;
      const target = {
        path: '/nowhere/never',
        attributes: { mode: 0, uid: 0, gid: 0, mtimeNs: 0n },
      };
      const item = {
        hash,
        compressionHeaderId: 0,
        originalLength: 1000,
        compressedObject: false,
        target,
      };
      const { failures } = await pool.open([{ ...item, span: { address, length: 1028 } }]);
      expect(failures).toMatchObject([{ index: 0, code: 'DECRYPT_FAILED' }]);
    });

    it('many tasks at once are all answered, and closing twice is fine', async () => {
      const { pool, put } = open();
      const span = put(prng('many', 10_000));
      const answers = await Promise.all(Array.from({ length: 200 }, () => pool.hash([[span]])));
      expect(new Set(answers.map(([hash]) => Buffer.from(hash ?? []).toString('hex'))).size).toBe(
        1,
      );
      await pool.close();
      await pool.close();
    });
  });
}
