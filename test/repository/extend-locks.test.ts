import { describe, expect, it } from 'vitest';
import { CodedError, Secret, silentLogger } from '../../src/base/index.ts';
import { type BlobId, type BlobStorage, BlobNotFoundError } from '../../src/blob/index.ts';
import { ForwardingStorage } from '../../src/blob/wrappers/forwarding.ts';
import {
  createFormat,
  defaultParameters,
  loadSchedule,
  openRepository,
  putMaintenanceParameters,
  runMaintenance,
} from '../../src/repository/index.ts';
import { BLOBCFG_BLOB } from '../../src/repository/format/format-blob.ts';
import { sealFormat } from '../../src/repository/format/keys.ts';
import { planGarbageCollection as collectGarbage } from '../../src/snapshot/index.ts';
import { MemoryStorage } from '../support/memory-storage.ts';
import { CLIENT, DEFAULT_FORMAT, PASSWORD, sameSalt } from '../support/repositories.ts';

const password = new Secret(PASSWORD);

/**
 * Plays two services: in one the object is already locked for longer, and in the other it was
 * deleted after the listing.
 */
class RefusingStorage extends ForwardingStorage {
  readonly extended: string[] = [];
  readonly #refused: ReadonlySet<string>;
  readonly #gone: string;

  constructor(inner: BlobStorage, refused: ReadonlySet<string>, gone: string) {
    super(inner);
    this.#refused = refused;
    this.#gone = gone;
  }

  override extendRetention(id: BlobId): Promise<void> {
    if (id === this.#gone) return Promise.reject(new BlobNotFoundError(id));
    if (this.#refused.has(id))
      return Promise.reject(new CodedError('STORAGE_DENIED', `${id} is locked`));
    this.extended.push(id);
    return Promise.resolve();
  }
}

/** A repository under object lock, with a pack for each text, whose locks are to be extended. */
async function lockedRepository(texts: readonly string[]): Promise<MemoryStorage> {
  const storage = new MemoryStorage({ hasObjectLock: true });
  await createFormat(storage, password, DEFAULT_FORMAT, sameSalt());
  {
    await using plain = await openRepository({ storage, password, client: CLIENT });
    const config = '{"retentionMode":"GOVERNANCE","retentionPeriod":259200000000000}';
    const { formatKey, uniqueId } = plain.format;
    storage.set(BLOBCFG_BLOB, sealFormat(formatKey, uniqueId, Buffer.from(config)));
  }
  await using writer = await openRepository({ storage, password, client: CLIENT });
  for (const text of texts) {
    await writer.contents.write(Buffer.from(text), { prefix: '' });
    await writer.flush();
  }
  const parameters = { ...defaultParameters(CLIENT), extendObjectLocks: true };
  await putMaintenanceParameters(writer, parameters);
  await writer.flush();
  return storage;
}

const FULL = {
  mode: 'full',
  safety: 'full',
  force: false,
  dryRun: false,
  logger: silentLogger,
  collectGarbage,
} as const;

it('blobs that are locked for longer already keep no other from being locked, nor the index from its care', async () => {
  const storage = await lockedRepository(['one', 'two', 'three']);
  const packs = [...storage.blobs.keys()].filter((id) => id.startsWith('p'));
  const [first = '', second = '', third = ''] = packs;
  const refusing = new RefusingStorage(storage, new Set([first, second]), third);
  await using owner = await openRepository({ storage: refusing, password, client: CLIENT });
  const run = runMaintenance(owner, { ...FULL, signal: new AbortController().signal });
  await expect(run).rejects.toMatchObject({
    code: 'STORAGE_DENIED',
    message: expect.stringMatching(
      /^2 of \d+ blobs could not have their lock extended: /,
    ) as string,
  });
  const others = [...storage.blobs.keys()].filter(
    (id) => /^([pqx]|kopia\.(repository|blobcfg)$)/.test(id) && !packs.includes(id),
  );
  expect(refusing.extended.toSorted()).toEqual(others.toSorted());
  const { runs } = await loadSchedule(owner);
  expect(runs.get('extend-blob-retention-time')?.[0]?.success).toBe(false);
  expect(runs.get('delete-superseded-epoch-indexes')?.[0]?.success).toBe(true);
});

describe('blobs are locked for longer', () => {
  async function expectLocked(storage: MemoryStorage, failure: Error): Promise<void> {
    const watching = new RefusingStorage(storage, new Set(), '');
    await using owner = await openRepository({ storage: watching, password, client: CLIENT });
    const run = runMaintenance(owner, {
      ...FULL,
      signal: new AbortController().signal,
      collectGarbage: () => Promise.reject(failure),
    });
    await expect(run).rejects.toBe(failure);
    const locked = [...storage.blobs.keys()].filter((id) =>
      /^([pqx]|kopia\.(repository|blobcfg)$)/.test(id),
    );
    expect(watching.extended.toSorted()).toEqual(locked.toSorted());
    const { runs } = await loadSchedule(owner);
    expect(runs.get('snapshot-gc')?.[0]?.success).toBe(false);
    expect(runs.get('extend-blob-retention-time')?.[0]?.success).toBe(true);
    // The rest waits for the next run.
    expect(runs.has('full-delete-blobs')).toBe(false);
    expect(runs.has('compact-single-epoch')).toBe(false);
  }

  it('also where a directory that is damaged stops the collection', async () => {
    const storage = await lockedRepository(['one']);
    await expectLocked(storage, new CodedError('DAMAGED_BLOB', 'a directory is damaged'));
  });

  it('but not after the run was ended', async () => {
    const storage = await lockedRepository(['one']);
    const watching = new RefusingStorage(storage, new Set(), '');
    await using owner = await openRepository({ storage: watching, password, client: CLIENT });
    const ending = new AbortController();
    const reason = new Error('ended');
    const run = runMaintenance(owner, {
      ...FULL,
      signal: ending.signal,
      collectGarbage: () => {
        ending.abort(reason);
        return Promise.reject(reason);
      },
    });
    await expect(run).rejects.toBe(reason);
    expect(watching.extended).toEqual([]);
  });
});
