import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { CodedError } from '../../src/base/index.ts';
import {
  blobId,
  type BlobStorage,
  faulty,
  metered,
  openStorage,
  readOnly,
  withRetries,
  withThrottle,
} from '../../src/blob/index.ts';
import { storageContract } from '../contract/storage.ts';
import { tempDirectory } from '../support/kopia.ts';

const work = tempDirectory('blob');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
let next = 0;
const openNew = (): Promise<BlobStorage> =>
  openStorage(join(work, String(next++)), { create: true });
const ID = blobId('p0123456789abcdef0123456789abcdef-s0');

/** Methods that make requests. A new one does not compile here until it is tested. */
type Requests = Exclude<
  {
    [K in keyof BlobStorage]-?: Required<BlobStorage>[K] extends (...a: never[]) => unknown
      ? K
      : never;
  }[keyof BlobStorage],
  'close' | typeof Symbol.asyncDispose
>;

storageContract('file system', openNew);
storageContract('with every wrapper', async () => {
  const plain = faulty(await openNew(), () => undefined);
  const limits = { downloadBytesPerSecond: 2 ** 30, uploadBytesPerSecond: 2 ** 30 };
  return metered(withThrottle(withRetries(plain), limits));
});

describe('the file system store', () => {
  it("lies in Kopia's sharded layout, leaves no temporary file, keeps others out", async () => {
    const path = join(work, 'layout');
    await using storage = await openStorage(path, { create: true });
    await storage.putBlob(ID, [Buffer.from('x')]);
    await storage.putBlob(blobId('kopia.repository'), [Buffer.from('y')]);
    const file = join(path, 'p/012/3456789abcdef0123456789abcdef-s0.f');
    expect(fs.readFileSync(file, 'utf8')).toBe('x');
    expect(fs.statSync(file).mode & 0o777).toBe(0o600);
    expect(fs.readFileSync(join(path, 'kopia.repository.f'), 'utf8')).toBe('y');
    expect(fs.readFileSync(join(path, '.shards'), 'utf8')).toBe(
      '{"default":[1,3],"maxNonShardedLength":20}\n',
    );
    const names = fs.readdirSync(path, { recursive: true }).map(String);
    expect(names.filter((name) => name.includes('.tmp.'))).toEqual([]);
  });

  it('keeps to the modes that it was created with, whoever opens it and whatever the umask is', async () => {
    const path = join(work, 'shared');
    const modeOf = (name: string): number => fs.statSync(join(path, name)).mode & 0o7777;
    const before = process.umask(0o077);
    try {
      const modes = { file: 0o640, directory: 0o2750 };
      await (await openStorage(path, { create: true, modes })).close();
      expect([modeOf('.'), modeOf('.shards')]).toEqual([0o2750, 0o640]);
      await using storage = await openStorage(path);
      await storage.putBlob(ID, [Buffer.from('x')]);
      await storage.putBlob(blobId('kopia.repository'), [Buffer.of(1)], { doNotRecreate: true });
      expect([modeOf('p'), modeOf('p/012')]).toEqual([0o2750, 0o2750]);
      expect(modeOf('p/012/3456789abcdef0123456789abcdef-s0.f')).toBe(0o640);
      expect(modeOf('kopia.repository.f')).toBe(0o640);
      // Kopia's default in a directory that others may see.
      const open = join(work, 'seen');
      fs.mkdirSync(open);
      fs.chmodSync(open, 0o755);
      await using plain = await openStorage(open, { create: true });
      await plain.putBlob(ID, [Buffer.from('x')]);
      expect(fs.statSync(join(open, 'p')).mode & 0o7777).toBe(0o700);
      expect(fs.statSync(join(open, '.shards')).mode & 0o7777).toBe(0o600);
    } finally {
      process.umask(before);
    }
  });

  it('follows the sharding that is there, with overrides, and ignores foreign files', async () => {
    const path = join(work, 'sharded');
    fs.mkdirSync(join(path, 'p'), { recursive: true });
    const shards = {
      default: [3, 3],
      maxNonShardedLength: 5,
      overrides: [{ prefix: 'q', shards: [] }],
    };
    fs.writeFileSync(join(path, '.shards'), JSON.stringify(shards));
    fs.writeFileSync(join(path, 'p', 'leftover.f.tmp.0011223344556677'), 'junk');
    await using storage = await openStorage(path);
    await storage.putBlob(blobId('abcdefghij'), [Buffer.of(1)]);
    await storage.putBlob(blobId('qbcdefghij'), [Buffer.of(2)]);
    expect(fs.existsSync(join(path, 'abc/def/ghij.f'))).toBe(true);
    expect(fs.existsSync(join(path, 'qbcdefghij.f'))).toBe(true);
    expect((await Array.fromAsync(storage.listBlobs(''))).length).toBe(2);
  });

  it.each([
    ['a path that is not there', 'missing', 'STORAGE_NOT_FOUND'],
    ['an unknown scheme', 's9://bucket/', 'BAD_LOCATION'],
    ['a file', 'a-file', 'STORAGE_FAILED'],
    ['damaged sharding', 'bad-shards', 'BAD_SHARDS_FILE'],
  ])('refuses %s', async (_what, location, code) => {
    fs.writeFileSync(join(work, 'a-file'), '');
    fs.mkdirSync(join(work, 'bad-shards'), { recursive: true });
    fs.writeFileSync(join(work, 'bad-shards', '.shards'), '{"default":[0]');
    const path = location.includes(':') ? location : join(work, location);
    await expect(openStorage(path)).rejects.toMatchObject({ code });
  });

  it('takes file URLs, and paths with characters that mean something in URLs', async () => {
    const path = join(work, 'odd #name? %41');
    await using storage = await openStorage(path, { create: true });
    await storage.putBlob(ID, [Buffer.of(1)]);
    expect(fs.existsSync(join(path, '.shards'))).toBe(true);
    await using again = await openStorage(
      new URL(`file://${encodeURIComponent(path).replaceAll('%2F', '/')}`).href,
    );
    expect(await Array.fromAsync(again.listBlobs(''))).toHaveLength(1);
  });
});

describe('wrappers', () => {
  const failing = (times: number, retry: 'never' | 'backoff') => {
    let left = times;
    return (): void => {
      if (left-- > 0) throw new CodedError('STORAGE_FAILED', 'injected', { retry });
    };
  };

  it('retries pass over what passes, also when a put took effect and its answer was lost', async () => {
    const storage = withRetries(faulty(await openNew(), failing(3, 'backoff')), {
      firstDelayMs: 1,
    });
    await storage.putBlob(ID, [Buffer.from('data')]);
    expect(Buffer.from(await storage.getBlob(ID)).toString()).toBe('data');
  });

  it('retries give up at their bound, and at once on what will not pass', async () => {
    for (const [times, retry] of [
      [100, 'backoff'],
      [1, 'never'],
    ] as const) {
      const storage = withRetries(faulty(await openNew(), failing(times, retry)), {
        firstDelayMs: 1,
        attemptsMax: 3,
      });
      await expect(storage.putBlob(ID, [Buffer.of(1)])).rejects.toMatchObject({
        code: 'STORAGE_FAILED',
      });
    }
  });

  it('a read-only storage changes nothing', async () => {
    const inner = await openNew();
    await inner.putBlob(ID, [Buffer.of(1)]);
    const storage = readOnly(inner);
    await expect(storage.putBlob(ID, [Buffer.of(2)])).rejects.toMatchObject({
      code: 'STORAGE_READ_ONLY',
    });
    await expect(storage.deleteBlob(ID)).rejects.toMatchObject({ code: 'STORAGE_READ_ONLY' });
    expect((await storage.getBlob(ID))[0]).toBe(1);
  });

  it('a throttle holds requests per second, of all kinds together', async () => {
    const storage = withThrottle(await openNew(), { requestsPerSecond: 50 });
    const start = performance.now();
    for (let i = 0; i < 3; i++) {
      await storage.putBlob(ID, [Buffer.of(1)]);
      await storage.getBlob(ID);
      await storage.getMetadata(ID);
      await Array.fromAsync(storage.listBlobs(''));
      await storage.deleteBlob(ID);
    }
    expect(performance.now() - start).toBeGreaterThan(270);
  });

  it('a throttle holds requests of every method', async () => {
    const answer = (): unknown => ({
      then: (done: (value: unknown) => void) => {
        done(new Uint8Array(0));
      },
      async *[Symbol.asyncIterator](): AsyncIterable<never> {
        await Promise.resolve();
      },
    });
    const inner = new Proxy({}, { get: () => answer }) as BlobStorage;
    const storage = withThrottle(inner, { requestsPerSecond: 0.001 });
    await storage.getBlob(ID);
    const signal = AbortSignal.abort();
    const requests: Record<Requests, () => unknown> = {
      getBlob: () => storage.getBlob(ID, { signal }),
      getMetadata: () => storage.getMetadata(ID, { signal }),
      putBlob: () => storage.putBlob(ID, [], { signal }),
      deleteBlob: () => storage.deleteBlob(ID, { signal }),
      listBlobs: () => Array.fromAsync(storage.listBlobs('', { signal })),
      listFolders: () => Array.fromAsync(storage.listFolders('', { signal })),
      signedUrl: () => storage.signedUrl(ID, 1000, { signal }),
      isLockable: () => storage.isLockable?.({ signal }),
      extendRetention: () =>
        storage.extendRetention(ID, { mode: 'GOVERNANCE', periodNs: 1n }, { signal }),
      removeUnfinishedPuts: () =>
        storage.removeUnfinishedPuts?.({ beforeNs: 0n, dryRun: true, signal }),
    };
    const passed: string[] = [];
    for (const [name, request] of Object.entries(requests)) {
      // A request that waits for its turn notices the abort. The storage itself would not.
      await Promise.resolve(request()).then(
        () => passed.push(name),
        () => undefined,
      );
    }
    expect(passed).toEqual([]);
  });

  it('retries: by what went wrong, a busy service is waited for longer', async () => {
    const triesOf = async (code: string): Promise<number> => {
      let tries = 0;
      const plan = (): void => {
        tries++;
        throw new CodedError(code, 'injected', { retry: 'backoff', facts: { retryAfterMs: 0 } });
      };
      const storage = withRetries(faulty(await openNew(), plan), {
        firstDelayMs: 0.01,
        delayMsMax: 1,
      });
      const failure: unknown = await storage.getBlob(ID).catch((error: unknown) => error);
      expect(String(failure)).toContain(`(tried ${tries} times`);
      return tries;
    };
    expect(await triesOf('STORAGE_THROTTLED')).toBe(16);
    expect(await triesOf('STORAGE_UNREACHABLE')).toBe(8);
    expect(await triesOf('STORAGE_FAILED')).toBe(8);
  });

  it('a throttle holds the rate, a meter counts', async () => {
    const storage = metered(withThrottle(await openNew(), { uploadBytesPerSecond: 1_000_000 }));
    const start = performance.now();
    for (let i = 0; i < 4; i++) await storage.putBlob(ID, [Buffer.alloc(50_000)]);
    expect(performance.now() - start).toBeGreaterThan(140);
    expect(storage.counters).toMatchObject({ puts: 4, bytesUp: 200_000, errors: 0 });
  });
});
