import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { nothingWritten, Secret, writeAllSync, type WriteSome } from '../../src/base/index.ts';
import {
  type BlobId,
  type BlobStorage,
  type GetOptions,
  openStorage,
  withCache,
} from '../../src/blob/index.ts';
import { ForwardingStorage } from '../../src/blob/wrappers/forwarding.ts';
import { openRepository, type Repository } from '../../src/repository/index.ts';
import { buildIndexBody, mergeEntries } from '../../src/repository/index/merge.ts';
import { sortEntries } from '../../src/repository/index/index-writer.ts';
import { ScratchFile } from '../../src/repository/index/scratch-file.ts';
import { completeIndexSet, loadEpochState } from '../../src/repository/content/epoch-state.ts';
import { writeCompaction } from '../../src/repository/maintenance/compaction.ts';
import { listSnapshots } from '../../src/snapshot/index.ts';
import { canMount, mountSmallDisk } from '../support/full-disk.ts';
import { makeEntries, putIndex } from '../support/index-blobs.ts';
import { tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import {
  backUp,
  CLIENT,
  createTest,
  openTest,
  PASSWORD,
  recordingLogger,
} from '../support/repositories.ts';

const work = tempDirectory('scratch');
const at = (name: string): string => join(work, name);
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

/** Writes only a part of the given bytes, like a disk that is almost full. */
const short: WriteSome = (descriptor, bytes, offset, length, position) =>
  fs.writeSync(descriptor, bytes, offset, Math.min(length, 1000), position);
const USER = new URL('scratch-user.ts', import.meta.url).pathname;
const LARGE = 300_000;

function open(repo: string, indexMemoryBytes: number, scratch: string): string {
  const { stdout, stderr, signal } = spawnSync(
    process.execPath,
    [USER, repo, String(indexMemoryBytes)],
    { encoding: 'utf8', env: { ...process.env, TMPDIR: scratch }, timeout: 60_000 },
  );
  expect(signal, `it never ended: ${stdout}${stderr}`).toBeNull();
  expect(stdout, stderr).not.toBe('');
  return stdout;
}

describe('writes to scratch files', () => {
  it('go on where a short one stopped', () => {
    const path = at('short');
    const file = fs.openSync(path, 'w+');
    const bytes = noise('short', 10_123);
    writeAllSync(file, bytes, 5, short);
    expect(fs.readFileSync(path).subarray(5).equals(bytes)).toBe(true);
    expect(() => {
      writeAllSync(file, bytes, 0, () => 0);
    }).toThrow('ENOSPC');
    fs.closeSync(file);
  });

  it('give a whole merged index, also when each is short', () => {
    const entries = sortEntries(makeEntries(100_000));
    const body = buildIndexBody(
      entries.map((entry) => ({ entry })),
      1000,
      () => new ScratchFile(work, short),
    );
    if (!body) expect.fail();
    expect([...mergeEntries([body.rows()])]).toEqual(entries);
    body.close();
  });

  it('that cannot be read back are no failure of the file whose contents are looked up', () => {
    const file = new ScratchFile(work);
    file.write(Buffer.from('rows'), 0);
    const source = file.toSource();
    expect(source.read(0, 4).toString()).toBe('rows');
    source.close();
    // The descriptor is closed, as with a failing disk. The system reports EBADF, not one of our
    // codes.
    expect(() => source.read(0, 4)).toThrow(
      expect.objectContaining({ code: 'SCRATCH_UNUSABLE' }) as Error,
    );
  });

  it('say which directory is full and what to do', () => {
    const scratch = new ScratchFile(work, () => {
      throw nothingWritten();
    });
    expect(() => {
      scratch.write(Buffer.alloc(10), 0);
    }).toThrow(
      expect.objectContaining({
        code: 'SCRATCH_FULL',
        message: expect.stringMatching(new RegExp(`${work}.*TMPDIR`)) as string,
      }),
    );
    scratch.close();
    expect(() => new ScratchFile(at('nowhere'))).toThrow(
      expect.objectContaining({ code: 'SCRATCH_UNUSABLE' }),
    );
  });
});

describe.skipIf(!canMount)('a scratch directory that is really full', () => {
  beforeAll(async () => {
    for (const name of ['one-large', 'many-small']) {
      await createTest(at(name));
      await using repository = await openTest(at(name));
      const { storage, codec } = repository;
      if (name === 'one-large') await putIndex(storage, codec, makeEntries(LARGE));
      else {
        for (let i = 0; i < 6; i++) {
          const part = makeEntries(LARGE / 3).slice((i * LARGE) / 18, ((i + 1) * LARGE) / 18);
          await putIndex(storage, codec, part);
        }
      }
    }
  });

  it('is named when a large index blob is decrypted into it; nothing waits and no file stays open', () => {
    using disk = mountSmallDisk(3 << 20);
    const told = open(at('one-large'), 48 << 20, disk.path);
    expect(told).toMatch(new RegExp(`SCRATCH_FULL .*${disk.path}.*TMPDIR`));
    expect(told).toContain('descriptors left: 0');
  });

  it('is named when indexes are merged into it; no zeros are taken for entries', () => {
    for (const bytes of [16 << 10, 1 << 20, (2 << 20) + 4096, 3 << 20]) {
      using disk = mountSmallDisk(bytes);
      const told = open(at('many-small'), 1 << 20, disk.path);
      expect(told, `${bytes}`).toMatch(new RegExp(`SCRATCH_FULL .*${disk.path}.*TMPDIR`));
      expect(told).toContain('descriptors left: 0');
    }
    using disk = mountSmallDisk(32 << 20);
    expect(open(at('many-small'), 1 << 20, disk.path)).toContain(`opened ${LARGE / 3}`);
  });

  it('fails no backup when it is the disk of the cache', async () => {
    fs.mkdirSync(at('tree'));
    for (let i = 0; i < 40; i++)
      fs.writeFileSync(join(at('tree'), `f${i}`), noise(`f${i}`, 20_000));
    await createTest(at('cached'));
    for (const isFullBefore of [false, true]) {
      using disk = mountSmallDisk(16 << 10);
      if (isFullBefore) disk.fill();
      const logger = recordingLogger();
      const directory = join(disk.path, 'cache');
      for (let run = 0; run < 2; run++) {
        await using inner = await openStorage(at('cached'));
        const storage = await withCache(inner, { directory, bytesMax: 1 << 30, logger });
        await using repository = await openTest(at('cached'), { wrap: () => storage });
        const { counters } = await backUp(repository, at('tree'));
        expect(counters.errors).toBe(0);
        expect((await listSnapshots(repository)).length).toBeGreaterThan(0);
        await storage.close();
      }
      expect(logger.messages.join('\n')).toMatch(/cache/);
    }
  });
});

/** A scratch file that loses some of the bytes, without a word. */
class LosingScratch extends ScratchFile {
  readonly #from: number;

  constructor(from: number) {
    super(work);
    this.#from = from;
  }

  override write(bytes: Uint8Array, position: number): void {
    const copy = Uint8Array.from(bytes);
    const from = this.#from - position;
    if (from >= 0 && from < copy.length) copy.fill(0, from, from + 500);
    super.write(copy, position);
  }
}

describe('a compaction', () => {
  const COUNT = 60_000;
  const inputs = [
    makeEntries(COUNT).slice(0, 40_000),
    makeEntries(COUNT, { timestampSeconds: 1_700_000_001, packOffset: 9 }).slice(30_000),
    makeEntries(COUNT, { timestampSeconds: 1_700_000_002, deleted: true }).slice(100, 200),
    makeEntries(COUNT).slice(0, 40_000),
  ];

  async function withInputs(
    test: (repository: Repository, blobs: ReturnType<typeof completeIndexSet>) => Promise<void>,
  ): Promise<void> {
    const repo = fs.mkdtempSync(at('compaction-'));
    await createTest(repo);
    await using repository = await openTest(repo);
    const blobs = [];
    for (const [i, entries] of inputs.entries()) {
      const suffix = `-s0123456789abcde${i}147-c1`;
      blobs.push(await putIndex(repository.storage, repository.codec, entries, { suffix }));
    }
    await test(repository, blobs);
  }

  it('that passed through scratch files holds what its inputs hold', async () => {
    await withInputs(async (repository, blobs) => {
      const openScratch = (): ScratchFile => new ScratchFile(work, short);
      const options = { memoryBytes: 1 << 20, openScratch };
      const [id] = await writeCompaction(repository, 'xs0_', blobs, options);
      expect(id).toMatch(/^xs0_/);
      expect((await loadEpochState(repository.storage)).compacted.get(0)).toHaveLength(1);
    });
  });

  it('whose scratch file lost entries is not put', async () => {
    await withInputs(async (repository, blobs) => {
      for (const from of [17, 500_000, 1_100_000]) {
        const openScratch = (): ScratchFile => new LosingScratch(from);
        const options = { memoryBytes: 1 << 20, openScratch };
        await expect(
          writeCompaction(repository, 'xs0_', blobs, options),
          `${from}`,
        ).rejects.toMatchObject({ code: 'COMPACTION_MISMATCH' });
      }
      expect((await loadEpochState(repository.storage)).compacted.size).toBe(0);
    });
  });
});

/** Flips a bit in the first read of each range. */
class FlippingStorage extends ForwardingStorage {
  readonly #seen = new Set<string>();

  override async getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    const bytes = await super.getBlob(id, options);
    const isLarge = id.startsWith('xn') && (options.lengthBytes ?? 0) > 1 << 20;
    if (!isLarge || this.#seen.has(id)) return bytes;
    this.#seen.add(id);
    bytes[1000] = (bytes[1000] ?? 0) ^ 1;
    return bytes;
  }
}

it('a bit that flipped in a large index blob, once cached, is read anew from the storage', async () => {
  const repo = at('flipped');
  await createTest(repo);
  {
    await using repository = await openTest(repo);
    await putIndex(repository.storage, repository.codec, makeEntries(LARGE));
  }
  const wraps: ((storage: BlobStorage) => BlobStorage)[] = [
    (storage) => new FlippingStorage(storage),
    (storage) => storage,
  ];
  for (const wrap of wraps) {
    await using inner = await openStorage(repo);
    const storage = await withCache(wrap(inner), {
      directory: at('flipped-cache'),
      bytesMax: 1 << 30,
      logger: recordingLogger(),
    });
    const options = { storage, password: new Secret(PASSWORD), client: CLIENT };
    await using repository = await openRepository(options);
    expect([...repository.contents.entries({ prefix: '' })]).toHaveLength(LARGE);
    await storage.close();
  }
});
