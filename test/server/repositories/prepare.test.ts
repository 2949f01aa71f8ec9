import { describe, expect, it } from 'vitest';
import { ManualClock, Secret, silentLogger, systemClock } from '../../../src/base/index.ts';
import { blobId } from '../../../src/blob/index.ts';
import {
  createFormat,
  loadMaintenanceParameters,
  openRepository,
  putMaintenanceParameters,
  defaultParameters,
} from '../../../src/repository/index.ts';
import { prepareRepository, type PrepareOptions } from '../../../src/server/index.ts';
import {
  fullIntervalNs,
  repositoryConfigOf,
} from '../../../src/server/repositories/repository-config.ts';
import { MemoryStorage } from '../../support/memory-storage.ts';

const PASSWORD = new Secret('static-passw0rd');
const SETUP = 'udmrepo.Repository';
const HOUR = 3_600_000_000_000n;

const prepare = (storage: MemoryStorage, more: Partial<PrepareOptions> = {}): Promise<void> =>
  prepareRepository({
    storage,
    password: PASSWORD,
    clock: systemClock,
    logger: silentLogger,
    locationName: 'velero/default',
    isReadOnly: false,
    ...more,
  });
const create = (storage: MemoryStorage): Promise<void> =>
  createFormat(storage, PASSWORD, {
    hash: 'BLAKE2B-256-128',
    encryption: 'AES256-GCM-HMAC-SHA256',
    splitter: 'DYNAMIC-4M-BUZHASH',
    version: 3,
  });
async function parametersOf(storage: MemoryStorage) {
  const client = { username: 'default', hostname: 'default' };
  await using repository = await openRepository({ storage, password: PASSWORD, client });
  return await loadMaintenanceParameters(repository);
}

describe('a repository is made ready', () => {
  it('where the location is empty; what is ready stays as it is', async () => {
    const storage = new MemoryStorage();
    await prepare(storage, { fullIntervalNs: 6n * HOUR });
    const [format, setup] = ['kopia.repository', SETUP].map(
      (id) => JSON.parse(storage.blobs.get(id)?.bytes.toString() ?? '') as { uniqueID: string },
    );
    expect(setup).toEqual({ uniqueID: format?.uniqueID });
    expect(await parametersOf(storage)).toMatchObject({
      owner: 'default@default',
      quick: { enabled: true, interval: Number(HOUR) },
      full: { enabled: true, interval: Number(6n * HOUR) },
    });
    const before = new Map(storage.blobs);
    await prepare(storage);
    expect(storage.blobs).toEqual(before);
  });

  it('where it was created, and not set up', async () => {
    const storage = new MemoryStorage();
    await create(storage);
    await prepare(storage);
    expect(storage.blobs.has(SETUP)).toBe(true);
    expect(await parametersOf(storage)).toMatchObject({ owner: 'default@default' });
  });

  it("where it is somebody else's, whose parameters give way as with Velero", async () => {
    const storage = new MemoryStorage();
    await create(storage);
    const client = { username: 'me', hostname: 'here' };
    {
      await using repository = await openRepository({ storage, password: PASSWORD, client });
      await putMaintenanceParameters(repository, defaultParameters(client));
      await repository.flush();
    }
    await prepare(storage);
    expect(await parametersOf(storage)).toMatchObject({ owner: 'default@default' });
  });

  it('where its creation was killed an hour ago, between its two blobs', async () => {
    const storage = new MemoryStorage();
    await create(storage);
    storage.blobs.delete('kopia.repository');
    const nowNs = systemClock.nowNs();
    await expect(prepare(storage)).rejects.toMatchObject({ code: 'REPOSITORY_UNFINISHED' });
    await prepare(storage, { clock: new ManualClock(nowNs + 2n * HOUR) });
    expect(storage.blobs.has(SETUP)).toBe(true);
    // Other blobs may belong to a repository that another cluster is creating, or to a broken one.
    storage.blobs.delete('kopia.repository');
    await expect(
      prepare(storage, { clock: new ManualClock(nowNs + 2n * HOUR) }),
    ).rejects.toMatchObject({ code: 'REPOSITORY_UNFINISHED' });
  });

  it('not where the location is read-only; one that is there will do', async () => {
    const storage = new MemoryStorage();
    await expect(prepare(storage, { isReadOnly: true })).rejects.toThrow(
      'cannot create new backup repo for read-only backup storage location velero/default',
    );
    expect(storage.blobs.size).toBe(0);
    await create(storage);
    const before = storage.blobs.size;
    await prepare(storage, { isReadOnly: true });
    expect(storage.blobs.size).toBe(before);
  });

  it('not with another password, not on foreign data, not where the setup is of another one', async () => {
    const storage = new MemoryStorage();
    await prepare(storage);
    await expect(prepare(storage, { password: new Secret('other') })).rejects.toMatchObject({
      code: 'WRONG_PASSWORD',
    });
    await storage.putBlob(blobId(SETUP), [Buffer.from('{"uniqueID":"AAAA"}')]);
    await expect(prepare(storage)).rejects.toMatchObject({ code: 'REPOSITORY_CORRUPTED' });
    await storage.putBlob(blobId(SETUP), [Buffer.from('{')]);
    await expect(prepare(storage)).rejects.toMatchObject({ code: 'REPOSITORY_CORRUPTED' });
    const used = new MemoryStorage();
    await used.putBlob(blobId('photo'), [Buffer.from('x')]);
    await expect(prepare(used)).rejects.toMatchObject({ code: 'STORAGE_NOT_EMPTY' });
  });

  it('by nobody who leads no more', async () => {
    const storage = new MemoryStorage();
    const assertLeading = (): void => {
      throw new Error('not leading');
    };
    await expect(prepare(storage, { assertLeading })).rejects.toThrow('not leading');
    expect(storage.blobs.size).toBe(0);
  });
});

describe('the ConfigMap of repository settings', () => {
  it('is kept as text, whole numbers whole', () => {
    const kopia = '{"cacheLimitMB": 5000000, "fullMaintenanceInterval": "fastGC", "x": true}';
    expect(repositoryConfigOf('settings', { kopia }, 'kopia')).toEqual({
      cacheLimitMB: '5000000',
      fullMaintenanceInterval: 'fastGC',
      x: 'true',
    });
    expect(repositoryConfigOf('settings', { kopia }, 'restic')).toBeUndefined();
    expect(repositoryConfigOf('settings', undefined, 'kopia')).toBeUndefined();
  });
  it.each(['{', '[]', 'null'])('is refused where it is no object: %s', (kopia) => {
    expect(() => repositoryConfigOf('settings', { kopia }, 'kopia')).toThrow(
      /^ConfigMap settings: the value of its key kopia is not/,
    );
  });
  it('knows three intervals', () => {
    expect(fullIntervalNs({ fullMaintenanceInterval: 'eagerGC' })).toBe(6n * HOUR);
    expect(fullIntervalNs({})).toBeUndefined();
    expect(() => fullIntervalNs({ fullMaintenanceInterval: 'toString' })).toThrow(
      'invalid full maintenance interval option "toString"; fullMaintenanceInterval may be normalGC, fastGC, eagerGC',
    );
  });
});
